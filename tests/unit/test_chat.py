"""Conversations: five layouts, what is learned of them under several templates, and packing without contamination.

Templates are written here in the style of the named models; the tokenizer makes a token of every word and of every mark,
so that expected tokens can be written down.
"""  # noqa: E501

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from runner.data import chat_formats, packing
from runner.data.chat_template import IGNORED, PLAIN, ChatEncoder, Encoded, merged_system

LLAMA = (
    "<s>{% for m in messages %}<h>{{ m.role }}</h>{{ m.content }}<eot>{% endfor %}"
    "{% if add_generation_prompt %}<h>assistant</h>{% endif %}"
)
QWEN = (
    "{% for m in messages %}<im>{{ m.role }}\n{{ m.content }}</im>\n{% endfor %}"
    "{% if add_generation_prompt %}<im>assistant\n{% endif %}"
)
MISTRAL = (
    "<s>{% for m in messages %}{% if m.role == 'user' %}<inst> {{ m.content }} </inst>"
    "{% else %} {{ m.content }}</s>{% endif %}{% endfor %}"
)
GEMMA = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "<turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content }}</turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<turn>model\n{% endif %}"
)
FORGETFUL = (  # an earlier answer is rendered shorter once another turn follows it
    "{% for m in messages %}<im>{{ m.role }}\n{% if m.role == 'assistant' and not loop.last %}"
    "{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}</im>\n{% endfor %}"
    "{% if add_generation_prompt %}<im>assistant\n{% endif %}"
)
TURNS = [
    {"role": "user", "content": "hello there"},
    {"role": "assistant", "content": "good day"},
    {"role": "user", "content": "bye"},
    {"role": "assistant", "content": "see you"},
]
WORDS = [
    "hello",
    "there",
    "good",
    "day",
    "bye",
    "see",
    "you",
    "be",
    "brief",
    "user",
    "assistant",
    "system",
    "model",
    "###",
    "User",
    "Assistant",
    ":",
    "why",
    "because",
    "hm",
]
MARKS = ["<s>", "</s>", "<h>", "</h>", "<eot>", "<im>", "</im>", "<inst>", "</inst>", "<turn>", "</turn>", "<think>"]
MARKS += ["</think>", "<pad>"]


def tokenizer(template: str) -> Any:
    from transformers import PreTrainedTokenizerFast

    known = {word: number for number, word in enumerate([*MARKS, *WORDS, "\n", " ", "?"])}
    made = Tokenizer(models.WordLevel(known, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n| |###|:|[A-Za-z]+"), behavior="isolated")
    fast = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="</s>", pad_token="<pad>", unk_token="?")
    fast.add_special_tokens({"additional_special_tokens": MARKS})
    fast.chat_template = template
    return fast


def learned(template: str, turns: list[dict[str, str]], learn: Any = "answers", **options: Any) -> list[str]:
    """Texts of the runs of learned tokens, one run after the other."""
    own = tokenizer(template)
    runs: list[str] = []
    for row in ChatEncoder(own, learn, 100, **options).encode(chat_formats.Conversation(turns)):
        before = False
        for token, label in zip(row.input_ids, row.labels, strict=True):
            if label == IGNORED:
                before = False
                continue
            assert label == token
            text = own.convert_ids_to_tokens(token)
            runs = [*runs[:-1], runs[-1] + text] if before else [*runs, text]
            before = True
    return runs


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (LLAMA, ["good day<eot>", "see you<eot>"]),
        (QWEN, ["good day</im>", "see you</im>"]),  # not the line feed that the template writes after it
        (MISTRAL, [" good day</s>", " see you</s>"]),
        (GEMMA, ["good day</turn>", "see you</turn>"]),
        (PLAIN, ["good day</s>", "see you</s>"]),
    ],
    ids=["Llama-3", "Qwen", "Mistral", "Gemma", "no template of its own"],
)
def test_answers_and_what_ends_them_are_learned(template: str, expected: list[str]) -> None:
    assert learned(template, TURNS) == expected
    assert learned(template, TURNS, "last_answer") == expected[1:]
    assert learned(template, TURNS, "each_answer") == expected


def test_an_answer_that_later_turns_change_is_refused() -> None:
    """Training its tokens would teach another text than the one that stands there."""
    turns = [{"role": "user", "content": "why"}, {"role": "assistant", "content": "<think>hm</think>because"}, *TURNS]
    with pytest.raises(chat_formats.WrongRow, match=r"turn 2: .*use task\.learn=each_answer"):
        learned(FORGETFUL, turns)
    assert learned(FORGETFUL, turns, "each_answer")[0] == "<think>hm</think>because</im>"


def test_a_system_prompt_that_the_template_refuses() -> None:
    system = [{"role": "system", "content": "be brief"}, *TURNS[:2]]
    with pytest.raises(chat_formats.WrongRow, match="no system role"):
        learned(GEMMA, system)
    assert merged_system(system)[0] == {"role": "user", "content": "be brief\n\nhello there"}
    assert learned(GEMMA, system, system_into_user=True) == ["good day</turn>"]


def test_what_is_cut_or_left_out_is_counted() -> None:
    """Under the Qwen style TURNS are 6, 6, 5 and 6 + 1 tokens: <im> role LF … </im> LF, words with blanks between."""
    own = tokenizer(QWEN)
    encoder = ChatEncoder(own, "answers", 14, False)
    (row,) = encoder.encode(chat_formats.Conversation(TURNS))
    assert len(row.input_ids) == 14
    assert encoder.encode(chat_formats.Conversation(TURNS[:1])) == []
    assert (encoder.counts.rows, encoder.counts.cut, encoder.counts.dropped) == (2, 1, 1)
    assert any("lost their end" in note for note in encoder.counts.notes(14))


LAYOUTS: dict[str, dict[str, Any]] = {
    "messages": {"messages": TURNS[:2]},
    "sharegpt": {
        "conversations": [{"from": "human", "value": "hello there"}, {"from": "gpt", "value": "good day"}],
    },
    "alpaca": {"instruction": "hello", "input": "there", "output": "good day"},
    "prompt_completion": {"prompt": "hello there", "completion": "good day"},
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_four_layouts_are_one_conversation(name: str) -> None:
    row = LAYOUTS[name]
    found = chat_formats.read({column: row.get(column) for column in chat_formats.COLUMNS}, "auto", list(row))
    question = "hello\nthere" if name == "alpaca" else "hello there"
    assert found.messages == [{"role": "user", "content": question}, TURNS[1]]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"text": "hello"}, "fits no layout of a conversation: it has 'text'"),
        ({"messages": [{"role": "wizard", "content": "hi"}]}, "turn 1 of 'messages' has the role 'wizard'"),
        ({"messages": [{"role": "user", "content": 3}]}, "turn 1 of 'messages' holds a int under 'content'"),
        ({"conversations": [{"from": "human"}]}, "turn 1 of 'conversations' holds nothing under 'value'"),
        ({"messages": []}, "has no turn"),
        ({"prompt": "a", "completion": "b", "instruction": "c", "output": "d"}, "fits several layouts"),
    ],
)
def test_a_row_that_is_no_conversation_says_why(row: dict[str, Any], why: str) -> None:
    with pytest.raises(chat_formats.WrongRow) as refused:
        chat_formats.read({column: row.get(column) for column in chat_formats.COLUMNS}, "auto", list(row))
    assert why in str(refused.value)


def test_rows_are_packed_best_fit_and_never_cut() -> None:
    """5, 9, 7, 3 and 12 into 16: 12 + 3, then 9 + 7, then 5."""
    rows = [Encoded([number] * size, [number] * size) for number, size in enumerate((5, 9, 7, 3, 12))]
    made = packing.packed(rows, 16)
    assert [len(row.input_ids) for row in made] == [15, 16, 5]
    assert made[0].positions == [*range(12), *range(3)]
    assert [place for place, label in enumerate(made[0].labels) if label == IGNORED] == [0, 12]


def test_packed_rows_see_nothing_of_each_other() -> None:
    """Logits of two conversations in one row equal those of the conversations alone (fp32: within 1e-5)."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = AutoModelForCausalLM.from_config(LlamaConfig(vocab_size=50, max_position_embeddings=64, **sizes)).eval()
    first, second = [3, 4, 5, 6, 7, 8], [9, 10, 11, 12]
    row = packing.packed([Encoded(first, first), Encoded(second, second)], 16)[0]

    def logits(ids: list[int], positions: list[int]) -> torch.Tensor:
        inputs = {"input_ids": torch.tensor([ids]), "position_ids": torch.tensor([positions])}
        return model(**inputs, use_cache=False).logits[0]

    together = logits(row.input_ids, row.positions)
    apart = torch.cat([logits(ids, list(range(len(ids)))) for ids in (first, second)])
    assert torch.allclose(together, apart, atol=1e-5)
    assert not torch.allclose(logits(row.input_ids, list(range(10))), apart, atol=1e-2), "the check can fail"
