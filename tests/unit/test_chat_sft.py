"""Chat fine-tuning without a model: layouts, learned spans written by hand, packing."""

from __future__ import annotations

from typing import Any

import pytest

from runner.data import chat_formats, packing
from runner.data.chat_template import IGNORED, ChatEncoder, Encoded
from runner.samples import tokenizer_folder

EXPECTED = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]
ROWS = {
    "messages": {"messages": EXPECTED},
    "sharegpt": {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yo"}]},
    "alpaca": {"instruction": "Hi", "input": "", "output": "Yo"},
    "prompt_completion": {"prompt": "Hi", "completion": "Yo"},
}
# Templates in the style of each family; the spans are what a reader of the text would mark.
STYLES = {
    "llama3": (
        "{% for m in messages %}<|{{ m.role }}|>\n\n{{ m.content }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n\n{% endif %}",
        "Yo<|end|>",
    ),
    "qwen": (
        "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
        "Yo<|end|>",
    ),
    "mistral": (
        "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
        "{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}",
        " Yo<|end|>",
    ),
}


def tokenizer() -> Any:
    return pytest.importorskip("transformers").AutoTokenizer.from_pretrained(tokenizer_folder("llama_tiny"))


@pytest.mark.parametrize("name", ROWS)
def test_each_layout_is_recognised(name: str) -> None:
    assert chat_formats.read(ROWS[name], "auto", list(ROWS[name])).messages == EXPECTED


def test_wrong_rows_are_named() -> None:
    with pytest.raises(chat_formats.WrongRow, match="fits no layout"):
        chat_formats.read({"q": "a"}, "auto", ["q"])
    with pytest.raises(chat_formats.WrongRow, match="role 'narrator'"):
        chat_formats.read({"messages": [{"role": "narrator", "content": "x"}]}, "auto", ["messages"])


@pytest.mark.parametrize("style", STYLES)
def test_only_the_answer_and_its_end_are_learned(style: str) -> None:
    tokens = tokenizer()
    tokens.chat_template, expected = STYLES[style]
    [row] = ChatEncoder(tokens, "answers", 64).encode(chat_formats.Conversation(EXPECTED))
    assert tokens.decode([label for label in row.labels if label != IGNORED]) == expected


def test_a_template_that_rewrites_earlier_answers_is_refused() -> None:
    tokens = tokenizer()
    tokens.chat_template = (
        "{% for m in messages %}{% if loop.last %}!{% endif %}{{ m.role }}{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}assistant{% endif %}"
    )
    with pytest.raises(chat_formats.WrongRow, match="each_answer"):
        ChatEncoder(tokens, "answers", 64).encode(chat_formats.Conversation([*EXPECTED, *EXPECTED]))


def test_no_row_is_cut_or_lost_in_packing() -> None:
    rows = [Encoded([n] * n, [IGNORED] + [n] * (n - 1)) for n in (5, 9, 7, 3, 12)]
    made = packing.packed(rows, 16)
    assert sorted(len(row.input_ids) for row in made) == [5, 15, 16]
    for row in made:
        starts = [place for place, position in enumerate(row.positions) if position == 0]
        assert all(row.labels[place] == IGNORED for place in starts)


def test_packed_logits_equal_those_of_separate_rows() -> None:
    torch = pytest.importorskip("torch")
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=32,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
        )
    ).eval()
    rows = [Encoded([3, 4, 5, 6, 7], [IGNORED, 4, 5, 6, 7]), Encoded([8, 9, 10], [IGNORED, 9, 10])]
    [made] = packing.packed(rows, 8)
    ids, positions = torch.tensor([made.input_ids]), torch.tensor([made.positions])
    with torch.no_grad():
        whole = model(input_ids=ids, position_ids=positions, use_cache=False).logits[0]
        apart = torch.cat([model(input_ids=torch.tensor([row.input_ids]), use_cache=False).logits[0] for row in rows])
    assert torch.allclose(whole, apart, atol=1e-5)
