"""Direct preference optimisation: of two answers the chosen one becomes likelier than the rejected one.

Read by `recipe=dpo` (conf/recipe/dpo.yaml), which says how it is run. The reference is the model with its adapter
switched off, so an adapter is needed and no second model. What a new task usually changes: `pair` and `loss`. The
loop, launching and timing are elsewhere.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from pydantic import Field

from runner import recipe
from runner.adapters.config import adapter_section
from runner.config.schema import RunConfig
from runner.data import chat_formats
from runner.data.chat_template import IGNORED, ChatEncoder, with_template
from runner.errors import Problem

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase


class PreferenceOptimisation(recipe.Recipe):
    """DPO (arXiv:2305.18290) with any decoder that transformers can build."""

    class Options(recipe.Options):
        """Keys under `task`."""

        beta: float = Field(0.1, gt=0.0, description="How strongly the model is held to its reference.")
        label_smoothing: float = Field(
            0.0, ge=0.0, lt=0.5, description="Share of pairs that are assumed to be the wrong way round."
        )
        max_length: int = Field(512, ge=8, description="Longest conversation in tokens; longer ones lose their end.")
        chat_template: str | None = Field(
            None, description="Jinja file, or `plain` for the runner's own; null: the tokenizer's template."
        )

    auto_class = "AutoModelForCausalLM"
    columns = ("prompt", "chosen", "rejected")
    optional_columns = ("prompt",)
    checks_rows = True
    keeps_rows = False
    metrics = ("loss", "reward_accuracy", "reward_margin")

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self._encoder: ChatEncoder | None = None
        self._rows = self._dropped = 0

    def option_problems(self) -> list[Problem]:
        chosen = adapter_section(self.config).name
        if chosen != "none":
            return []
        why = "the reference of DPO is the model with its adapter switched off, and this run has none"
        return [Problem("adapter", chosen, why, "use adapter=lora")]

    def max_positions(self) -> dict[str, int]:
        return {"max_length": self.options.max_length}

    def adjust_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        with_template(tokenizer, self.options.chat_template)

    def pair(self, row: dict[str, Any]) -> list[chat_formats.Conversation]:
        """The chosen and the rejected conversation, which differ in their last turn only.

        Texts are a user's turn and its answer; without a prompt both columns hold whole conversations.

        Raises:
            WrongRow: where a row has no such pair; the message names the column.
        """
        values = {name: row.get(self.column(name) or "") for name in self.columns}
        found = []
        for name in ("chosen", "rejected"):
            if values[name] in (None, "", []):
                raise chat_formats.WrongRow(f"column {self.column(name)!r} is empty or missing")
            if values["prompt"] is None:
                layout, known = "messages", {"messages": values[name]}
            else:
                layout, known = "prompt_completion", {"prompt": values["prompt"], "completion": values[name]}
            try:
                found.append(chat_formats.read(known, layout, list(row)))
            except chat_formats.WrongRow as error:
                raise chat_formats.WrongRow(f"column {self.column(name)!r}: {error}") from None
        chosen, rejected = (conversation.messages for conversation in found)
        if chosen[:-1] != rejected[:-1]:
            raise chat_formats.WrongRow("the chosen and the rejected conversation differ before their last turn")
        if chosen == rejected:
            raise chat_formats.WrongRow("the chosen and the rejected answer are the same")
        return found

    def row_problem(self, row: dict[str, Any]) -> str | None:
        try:
            self.pair(row)
        except chat_formats.WrongRow as error:
            return str(error)
        return None

    def features(self, rows: dict[str, list[Any]], tokenizer: PreTrainedTokenizerBase) -> dict[str, list[Any]]:
        """Tokens and labels (IGNORED but on the last answer) of both conversations; a pair that is cut before one of
        its answers is left out.
        """
        if self._encoder is None:
            self._encoder = ChatEncoder(tokenizer, "last_answer", self.options.max_length)
        made: dict[str, list[Any]] = {"input_ids": [], "labels": [], "rejected_ids": [], "rejected_labels": []}
        for values in zip(*rows.values(), strict=True):
            self._rows += 1
            try:
                pair = [self._encoder.encode(one) for one in self.pair(dict(zip(rows, values, strict=True)))]
            except chat_formats.WrongRow as error:
                raise ValueError(f"row {self._rows}: {error}") from None
            if not all(pair):
                self._dropped += 1
                continue
            (chosen,), (rejected,) = pair
            parts = (chosen.input_ids, chosen.labels, rejected.input_ids, rejected.labels)
            for values_of, part in zip(made.values(), parts, strict=True):
                values_of.append(part)
        return made

    def preparation_notes(self) -> list[str]:
        dropped = f"{self._dropped:,} of {self._rows:,} pairs are left out: an answer lies behind task.max_length"
        return [dropped] * bool(self._dropped) + (
            self._encoder.counts.notes(self.options.max_length) if self._encoder else []
        )

    def length(self, features: dict[str, Any]) -> int:
        return len(features["input_ids"]) + len(features["rejected_ids"])

    def collate(self, features: list[dict[str, Any]], tokenizer: PreTrainedTokenizerBase) -> recipe.Batch:
        """Shape (2 × pairs, longest): all chosen conversations, then all rejected ones. Padding comes last, so no token
        before it sees it.
        """
        import torch

        ids = [row["input_ids"] for row in features] + [row["rejected_ids"] for row in features]
        labels = [row["labels"] for row in features] + [row["rejected_labels"] for row in features]
        longest = max(map(len, ids))

        def padded(rows: list[list[int]], value: int) -> torch.Tensor:
            return torch.tensor([row + [value] * (longest - len(row)) for row in rows])

        pad = tokenizer.pad_token_id
        assert isinstance(pad, int)
        return {"input_ids": padded(ids, pad), "labels": padded(labels, IGNORED)}

    def loss(self, model: torch.nn.Module, batch: recipe.Batch) -> torch.Tensor:
        return self._compared(model, batch)[0].mean()

    def _compared(self, model: torch.nn.Module, batch: recipe.Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss, and rewards of the chosen and the rejected answer (2, pairs), of each pair.

        The reward of an answer is beta × log (its probability / its probability under the reference), eq. 5 of
        arXiv:2305.18290; the loss −log σ(difference of the rewards), eq. 7, smoothed as in its official code.
        """
        import torch
        from torch.nn.functional import logsigmoid

        with torch.no_grad(), disabled_adapter(model):
            reference = answer_log_probabilities(model, batch)
        rewards = self.options.beta * (answer_log_probabilities(model, batch) - reference).view(2, -1)
        margins, smoothing = rewards[0] - rewards[1], self.options.label_smoothing
        return -(1 - smoothing) * logsigmoid(margins) - smoothing * logsigmoid(-margins), rewards

    def predict(
        self, model: torch.nn.Module, batch: recipe.Batch, tokenizer: PreTrainedTokenizerBase, synced: bool
    ) -> list[Any]:
        """Loss, and both rewards, of each pair."""
        losses, rewards = self._compared(model, batch)
        return [list(row) for row in zip(losses.tolist(), *rewards.tolist(), strict=True)]

    def samples(self, predictions: list[Any]) -> list[Any]:
        return [{"loss": row[0], "reward_chosen": row[1], "reward_rejected": row[2]} for row in predictions]

    def score(self, predictions: list[Any], references: list[Any]) -> dict[str, float]:
        """Means over pairs; accuracy: the share whose chosen answer has the larger reward."""
        count = len(predictions)
        return {
            "loss": sum(row[0] for row in predictions) / count,
            "reward_accuracy": sum(row[1] > row[2] for row in predictions) / count,
            "reward_margin": sum(row[1] - row[2] for row in predictions) / count,
        }


def disabled_adapter(model: torch.nn.Module) -> contextlib.AbstractContextManager[None]:
    """A context in which peft's model, inside whatever the launcher wrapped it into, answers without its adapter."""
    from peft import PeftModel

    inner = next(module for module in model.modules() if isinstance(module, PeftModel))
    return inner.disable_adapter()  # type: ignore[no-any-return]


def answer_log_probabilities(model: torch.nn.Module, batch: recipe.Batch) -> torch.Tensor:
    """Summed log-probability of each row's labelled tokens, shape (rows,), in fp32."""
    from torch.nn.functional import cross_entropy

    logits, labels = model(input_ids=batch["input_ids"], use_cache=False).logits[:, :-1].float(), batch["labels"][:, 1:]
    losses = cross_entropy(logits.transpose(1, 2), labels, reduction="none", ignore_index=IGNORED)
    return -losses.sum(dim=-1)
