"""Build the tiny models' tokenizers from the generated train splits.

All say `tokenizer_class: PreTrainedTokenizerFast`, so that transformers reads `tokenizer.json` as it
stands. Named after their model's own class (DebertaV2Tokenizer, BlenderbotTokenizer), transformers 5 would
build that class's Unigram or BPE pipeline around our vocabulary instead.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

# A word, with its apostrophe if it has one, or one mark of punctuation.
WORD = r"\w+(?:'\w+)*|[^\w\s]"
GPT2_VOCABULARY_SIZE = 512


def words_by_count(texts: Iterable[str]) -> list[str]:
    """All words and marks of `texts`, the most frequent first, ties in alphabetical order."""
    counts = Counter(word for text in texts for word in re.findall(WORD, text))
    return sorted(counts, key=lambda word: (-counts[word], word))


def number(tokens: Iterable[str]) -> dict[str, int]:
    """Number tokens in their order, leaving repeats out."""
    return {token: index for index, token in enumerate(dict.fromkeys(tokens))}


def special(tokens: Iterable[str]) -> list[AddedToken]:
    """Mark tokens as special, to be found in raw text as they are written."""
    return [AddedToken(token, normalized=False, special=True) for token in tokens]


def build_wordpiece(texts: Iterable[str]) -> Tokenizer:
    """Lower-cased WordPiece: whole words of `texts`, and single letters to spell any other word with."""
    specials = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
    words = words_by_count(text.lower() for text in texts)
    letters = sorted(set("".join(words)) | set("abcdefghijklmnopqrstuvwxyz0123456789"))
    vocabulary = number([*specials, *words, *letters, *("##" + letter for letter in letters)])
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")],
    )
    tokenizer.add_special_tokens(special(specials))
    return tokenizer


def build_word_level(texts: Iterable[str]) -> Tokenizer:
    """Cased word-level vocabulary; decoding puts marks back against their word ("apples ." → "apples.")."""
    specials = ["<pad>", "<s>", "</s>", "<unk>"]  # Blenderbot's numbers: pad 0, start 1, end 2
    plain = [text.replace("</s> <s>", " ") for text in texts]
    vocabulary = number([*specials, "chatbot", *words_by_count(plain)])
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(WORD), "removed", invert=True)
    tokenizer.decoder = decoders.WordPiece(cleanup=True)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>",
        pair="$A </s> $B </s>",
        special_tokens=[("</s>", vocabulary["</s>"])],
    )
    tokenizer.add_special_tokens(special(specials))
    return tokenizer


def build_byte_bpe(texts: Iterable[str], specials: Sequence[str] = ("<|endoftext|>",)) -> Tokenizer:
    """Byte-level BPE as GPT-2's: any text round-trips; the special tokens are the last numbers."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=GPT2_VOCABULARY_SIZE - len(specials),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens(special(specials))
    return tokenizer


Settings = Mapping[str, str | int | list[str]]

DEBERTA_SETTINGS: Settings = {
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
    "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
    "model_max_length": 512,
    "pad_token": "[PAD]",
    "sep_token": "[SEP]",
    "unk_token": "[UNK]",
}
BLENDERBOT_SETTINGS: Settings = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "model_max_length": 128,
    "pad_token": "<pad>",
    "unk_token": "<unk>",
}
GPT2_SETTINGS: Settings = {
    "bos_token": "<|endoftext|>",
    "eos_token": "<|endoftext|>",
    "model_max_length": 128,
    "unk_token": "<|endoftext|>",
}

CHAT_SPECIALS = ("<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>")
# Without generation marks, as most public templates; tools and tool calls are written as JSON.
CHAT_TEMPLATE = (
    "{%- if tools %}<|system|>\nTools: {{ tools | tojson }}<|end|>\n{% endif %}"
    "{%- for message in messages %}<|{{ message.role }}|>\n{{ message.content }}"
    "{%- if message.tool_calls %}{% for call in message.tool_calls %}{{ call.function | tojson }}{% endfor %}{% endif %}"  # noqa: E501
    "<|end|>\n{% endfor %}"
    "{%- if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
LLAMA_SETTINGS: Settings = {
    "chat_template": CHAT_TEMPLATE,
    "eos_token": "<|end|>",
    "model_max_length": 256,
    "pad_token": "<|pad|>",
}


def write_tokenizer(tokenizer: Tokenizer, settings: Settings, folder: Path) -> None:
    """Write the files that `AutoTokenizer.from_pretrained(folder)` needs, without a model beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **settings}
    texts = {
        "tokenizer.json": tokenizer.to_str(pretty=True),
        "tokenizer_config.json": json.dumps(config, indent=2, sort_keys=True),
    }
    for name, text in texts.items():
        (folder / name).write_text(text + "\n", encoding="utf-8", newline="\n")
