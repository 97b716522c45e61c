"""A conversation in the words of a model's chat template, and which of its tokens are learned.

Where the answers stand is found by rendering the conversation's beginnings, so it needs no generation marks
(`{% generation %}`) in the template, which most public ones lack:

    begin of answer i = template(messages before i, with the opening of an answer)
    end of answer i   = template(messages up to i)

Both must be beginnings of the whole text. That is checked for every answer of every row, since a template may
render an earlier turn differently once later ones follow (Qwen3 drops earlier reasoning).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from runner.data.chat_formats import Conversation, Message, WrongRow
from runner.regular_files import read_regular

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

IGNORED = -100  # label of a token that is not learned
Learn = Literal["answers", "last_answer", "each_answer", "all"]


@dataclass(frozen=True)
class Encoded:
    """Tokens of one training row; `labels` are the tokens themselves where they are learned, else IGNORED."""

    input_ids: list[int]
    labels: list[int]


@dataclass
class Counts:
    """What encoding did to rows, for the record."""

    rows: int = 0
    cut: int = 0
    cut_in_answer: int = 0
    cut_tokens: int = 0
    dropped: int = 0
    joined: int = 0
    ends_added: int = 0

    def notes(self, max_length: int) -> list[str]:
        """One line for each thing that happened."""
        lines = []
        if self.cut:
            lines.append(
                f"{self.cut:,} of {self.rows:,} conversations were longer than task.max_length={max_length} "
                "tokens and lost "
                f"their end ({self.cut_tokens / self.cut:.1f} tokens on average), {self.cut_in_answer:,} of them "
                "inside an answer"
            )
        if self.dropped:
            lines.append(
                f"{self.dropped:,} of {self.rows:,} conversations have no token to learn within "
                f"task.max_length={max_length} "
                "(no answer, or all of it cut off) and are left out"
            )
        if self.joined:
            lines.append(
                f"in {self.joined:,} answers the first token is joined with the template's text before it: it is "
                "not learned"
            )
        if self.ends_added:
            lines.append(
                "the chat template ends an answer with no special token: the tokenizer's end-of-text token was "
                f"added to {self.ends_added:,} last answers"
            )
        return lines


@dataclass
class ChatEncoder:
    """Renders and tokenises conversations.

    Args:
        learn: answers: all assistant turns; last_answer: the last one; each_answer: one row for every answer, with
            the conversation before it; all: every token.
        max_length: tokens of a row; the end of a longer one is cut off.
    """

    tokenizer: PreTrainedTokenizerBase
    learn: Learn
    max_length: int
    system_into_user: bool = False
    counts: Counts = field(default_factory=Counts)

    def __post_init__(self) -> None:
        self._special = set(self.tokenizer.all_special_ids) | set(getattr(self.tokenizer, "added_tokens_decoder", {}))

    def encode(self, conversation: Conversation) -> list[Encoded]:
        """The training rows of a conversation; none where nothing in it is learned.

        Raises:
            WrongRow: where the template cannot render it, leaves a turn out, or has no prefix property.
        """
        messages = merged_system(conversation.messages) if self.system_into_user else conversation.messages
        answers = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
        if self.learn == "each_answer":
            parts = [(messages[: index + 1], [index]) for index in answers] or [(messages, [])]
        else:
            parts = [(messages, answers[-1:] if self.learn == "last_answer" else answers)]
        self.counts.rows += len(parts)
        rows = (self._encode(part, chosen, conversation.tools) for part, chosen in parts)
        return [row for row in rows if row is not None]

    def _encode(self, messages: list[Message], answers: list[int], tools: list[Any] | None) -> Encoded | None:
        text = self.render(messages, tools)
        spans = [] if self.learn == "all" else [self._span(messages, index, text, tools) for index in answers]
        encoded = self.tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=True, truncation=False, verbose=False
        )
        ids, offsets = list(encoded["input_ids"]), encoded["offset_mapping"]
        learned = [True] * len(ids) if self.learn == "all" else self._learned(ids, offsets, spans, text)
        if messages[-1]["role"] == "assistant" and not self._ends_by_special_token(ids):
            ids, learned = [*ids, self.tokenizer.eos_token_id], [*learned, True]
            self.counts.ends_added += 1
        return self._cut(ids, learned)

    def render(self, messages: list[Message], tools: list[Any] | None = None, opening: bool = False) -> str:
        """Text of the messages.

        Args:
            opening: whether what opens an answer follows them.
        """
        try:
            # Its stub knows no list of messages beside one of lists, nor that `tokenize=False` gives text.
            text = str(
                self.tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=opening)
            )
        except Exception as error:  # templates are programs; they refuse roles and orders in words of their own  # noqa: BLE001
            raise WrongRow(
                f"the model's chat template refuses it ({type(error).__name__}: {' '.join(str(error).split())})"
            ) from None
        _check_nothing_left_out(messages, text)
        return text

    def prompt(self, conversation: Conversation) -> str:
        """The text that asks for the next answer: the turns up to the last that is none, and the opening of one.

        Raises:
            WrongRow: where no turn asks for an answer.
        """
        messages = list(conversation.messages)
        while messages and messages[-1]["role"] == "assistant":
            messages.pop()
        if not messages:
            raise WrongRow("has no turn that asks for an answer")
        return self.render(messages, conversation.tools, opening=True)

    def _span(self, messages: list[Message], index: int, text: str, tools: list[Any] | None) -> tuple[int, int]:
        """Characters of an answer, what ends it included."""
        before = self.render(messages[:index], tools, opening=True) if index else ""
        until = self.render(messages[: index + 1], tools)
        if not text.startswith(before) or not text.startswith(until) or len(until) <= len(before):
            raise WrongRow(
                f"turn {index + 1}: the model's chat template renders an answer differently once other turns follow it "
                "(or opens answers in another way), so its tokens cannot be told apart; use task.learn=each_answer, "
                "which trains every answer in a row of its own, or task.learn=all"
            )
        return len(before), len(until)

    def _learned(
        self, ids: list[int], offsets: list[tuple[int, int]], spans: list[tuple[int, int]], text: str
    ) -> list[bool]:
        """Whether each token is learned: those that begin inside a span, without blanks after what ends the turn."""
        learned = [False] * len(ids)
        for begin, end in spans:
            inside = [place for place, (start, stop) in enumerate(offsets) if begin <= start < end and stop > start]
            self.counts.joined += any(start < begin < stop for start, stop in offsets)
            while len(inside) > 1 and self._blank_after_end(ids, offsets, inside, text):
                inside.pop()
            for place in inside:
                learned[place] = True
        return learned

    def _blank_after_end(self, ids: list[int], offsets: list[tuple[int, int]], inside: list[int], text: str) -> bool:
        """Whether the last token is only the line feed that a template writes behind its end-of-turn token."""
        start, stop = offsets[inside[-1]]
        return not text[start:stop].strip() and any(ids[place] in self._special for place in inside[-3:-1])

    def _ends_by_special_token(self, ids: list[int]) -> bool:
        """Whether one of the last tokens ends the turn (a line feed may follow it)."""
        return any(token in self._special for token in ids[-3:])

    def _cut(self, ids: list[int], learned: list[bool]) -> Encoded | None:
        limit = self.max_length
        if len(ids) > limit:
            self.counts.cut += 1
            self.counts.cut_tokens += len(ids) - limit
            self.counts.cut_in_answer += learned[limit] and learned[limit - 1]
        learned = [False, *learned[1:limit]]  # nothing comes before the first token: it cannot be predicted
        if not any(learned):
            self.counts.dropped += 1
            return None
        ids = ids[:limit]
        return Encoded(ids, [token if wanted else IGNORED for token, wanted in zip(ids, learned, strict=True)])


# For base models, which have no template: roles as headings, each answer ended by the end-of-text token.
PLAIN = (
    "{%- for message in messages %}### {{ message.role | capitalize }}:\n{{ message.content }}"
    "{% if message.role == 'assistant' %}{{ eos_token }}{% endif %}\n\n{% endfor %}"
    "{%- if add_generation_prompt %}### Assistant:\n{% endif %}"
)


def with_template(tokenizer: PreTrainedTokenizerBase, named: str | None) -> None:
    """Give the tokenizer the template that was asked for; it is saved with the model.

    Raises:
        ValueError: where there is none, or the tokenizer cannot tell which characters a token stands for.
    """
    if named is not None:
        tokenizer.chat_template = PLAIN if named == "plain" else read_regular(Path(named).expanduser())
    if not tokenizer.chat_template:
        raise ValueError(
            "this tokenizer has no chat template (a base model's has none); use task.chat_template=plain or "
            "task.chat_template=FILE"
        )
    if not tokenizer.is_fast:
        raise ValueError(
            "this tokenizer does not say where its tokens stand in the text; a fast one (tokenizer.json) is needed"
        )


def _check_nothing_left_out(messages: list[Message], text: str) -> None:
    """Templates pass over turns and tool calls that they do not know; what is silently left out is refused."""
    for number, message in enumerate(messages, start=1):
        content = message["content"].rpartition("</think>")[2].strip()  # earlier reasoning may be left out on purpose
        names = [call["function"]["name"] for call in message.get("tool_calls") or []]
        for expected in [content, *names]:
            if expected not in text and _escaped(expected) not in text:
                what = "tool call" if expected in names else f"{message['role']} turn"
                raise WrongRow(f"turn {number}: the model's chat template leaves out this {what}")


def _escaped(text: str) -> str:
    """As it stands inside JSON: some templates print tool results so."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def merged_system(messages: list[Message]) -> list[Message]:
    """The system prompt at the head of the first user turn, for templates that know no system role (Gemma)."""
    if len(messages) < 2 or messages[0]["role"] != "system" or messages[1]["role"] != "user":
        return messages
    text = f"{messages[0]['content']}\n\n{messages[1]['content']}"
    return [{**messages[1], "content": text}, *messages[2:]]
