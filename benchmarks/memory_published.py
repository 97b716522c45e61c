"""Further published memory figures next to the estimate's: whole runs on GPUs, and training state by formula.

    python -m benchmarks.memory_published [--write]

Prints the tables of benchmarks/memory_published.md; `--write` puts them into the page. No GPU is needed, and nothing
was measured on one here.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runner.engines.ddp.memory import DdpLayout
from runner.engines.deepspeed.memory import ZeroLayout
from runner.engines.fsdp.memory import FsdpLayout
from runner.memory.estimate import estimate
from runner.memory.facts import Architecture, ModelFacts, ParameterFact
from runner.memory.search import fit
from runner.memory.workload import StateLayout, Workload

PAGE = Path(__file__).with_name("memory_published.md")
GIB, MIB = 2**30, 2**20
STATE = ("parameters", "gradients", "optimizer_states", "master_weights")
T5_LARGE: dict[str, Any] = {
    "model_type": "t5",
    "d_model": 1024,
    "d_ff": 4096,
    "d_kv": 64,
    "num_heads": 16,
    "num_layers": 24,
    "vocab_size": 32128,
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
}
T5_3B = T5_LARGE | {"d_ff": 16384, "d_kv": 128, "num_heads": 32}
BERT_LARGE: dict[str, Any] = {
    "model_type": "bert",
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "vocab_size": 30522,
}
LLAMA_7B: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}


@dataclass(frozen=True)
class Run:
    """A published run: the largest micro batch (or with `at_least` one that fitted) on devices of `device_bytes`."""

    name: str
    workload: Workload
    device_bytes: int
    rows: int
    at_least: bool = False


def runs() -> list[Run]:
    """Published runs with the libraries of their day where that changes what is kept (attention, Adam, gradients)."""
    large = Workload(
        _eager("seq2seq", T5_LARGE), DdpLayout(gradients_kept_between_steps=True), source_length=128,
        target_length=128, precision="fp32", optimizer_kernel="loop",
    )  # fmt: skip
    zero = replace(large, layout=ZeroLayout(2), precision="fp16", optimizer_kernel="fused")
    three = replace(zero, architecture=_eager("seq2seq", T5_3B), num_processes=1, layout=ZeroLayout(2, "cpu"))
    alpaca = Workload(_eager("causal_lm", LLAMA_7B), FsdpLayout(), source_length=512, precision="bf16", num_processes=4)
    card = 24 * GIB
    return [
        Run("T5-large, DDP, fp32", large, card, 16),
        Run("T5-large, DDP, fp16", replace(large, precision="fp16"), card, 20),
        Run("T5-large, ZeRO-2, fp16", zero, card, 40),
        Run("T5-large, ZeRO-2 + CPU optimizer offload", replace(zero, layout=ZeroLayout(2, "cpu")), card, 50),
        Run("T5-3B, ZeRO-2 + CPU optimizer offload, one device", three, card, 20),
        Run("LLaMA-7B, FSDP, 4 × 80 GB, 512 tokens", alpaca, 80 * GIB, 4, at_least=True),
        Run("LLaMA-7B, ZeRO-3, 4 × 80 GB, 512 tokens", replace(alpaca, layout=ZeroLayout(3)), 80 * GIB, 4,
            at_least=True),
    ]  # fmt: skip


def _eager(family: Any, facts: dict[str, Any]) -> Architecture:
    return Architecture.of(family, facts | {"attn_implementation": "eager"})


def run_rows() -> Iterator[str]:
    """Markdown: rows of the published run, rows of the estimate, their ratio, what explains it."""
    yield "| run | published rows | estimated rows | ratio | why |"
    yield "|---|---:|---:|---:|---|"
    for run in runs():
        rows = fit(run.workload, run.device_bytes).rows
        ratio = rows / run.rows
        near = 0.8 <= ratio <= 1.25 or (run.at_least and ratio >= 1)
        shown = f"≥ {run.rows}" if run.at_least else str(run.rows)
        yield f"| {run.name} | {shown} | {rows} | {ratio:.2f} | {'' if near else _at_half_the_length(run)} |"


def _at_half_the_length(run: Run) -> str:
    """What the estimate gives for batches whose longest texts have half the tokens of the limit."""
    length = run.workload.source_length // 2
    rows = fit(replace(run.workload, source_length=length, target_length=length), run.device_bytes).rows
    return f"the limit is {2 * length} + {2 * length} tokens; for texts of up to {length} it is {rows} rows"


def step_rows() -> Iterator[str]:
    """Markdown: one training step of BERT-large in fp32 on one GPU, in use according to the driver.

    That holds what torch's allocator keeps as well, so the margin is counted; the context is left out on both sides.
    """
    workload = Workload(
        _eager("encoder", BERT_LARGE), DdpLayout(), micro_batch_size=4, source_length=512, precision="fp32",
        num_processes=1,
    )  # fmt: skip
    found = estimate(workload)
    ours = (found.device_bytes_per_rank - found.category_at("framework", found.peak_moment)) / MIB
    published = 14_949 - 1_343
    yield "| step | published MiB | estimated MiB | ratio |"
    yield "|---|---:|---:|---:|"
    yield f"| BERT-large, 4 rows of 512 tokens, fp32 | {published:,} | {ours:,.0f} | {ours / published:.2f} |"


@dataclass(frozen=True)
class State:
    """Published bytes of training state a device, in units of 10^9 bytes."""

    name: str
    layout: StateLayout
    processes: int
    published: float
    why: str = ""


def even_model(parameters: int, tensors: int) -> ModelFacts:
    """A model of equal matrices."""
    facts = tuple(ParameterFact(f"w{index}", parameters // tensors, True) for index in range(tensors))
    return ModelFacts(facts, 0, 0, None)


def states() -> list[State]:
    """The table of the ZeRO paper (arXiv:1910.02054, figure 1: 7.5 B parameters, 64 devices, mixed-precision Adam), and
    DeepSpeed's own calculators for the same model on one node of 8 devices
    (`estimate_zero2_model_states_mem_needs`, `estimate_zero3_model_states_mem_needs`).
    """
    early = "DeepSpeed frees the gradients of other partitions in stage 1, too, unless it accumulates"
    return [
        State("ZeRO paper, no ZeRO", ZeroLayout(0), 64, 120.0),
        State("ZeRO paper, P_os", ZeroLayout(1), 64, 31.4, early),
        State("ZeRO paper, P_os+g", ZeroLayout(2), 64, 16.6),
        State("ZeRO paper, P_os+g+p", ZeroLayout(3), 64, 1.9),
        State("DeepSpeed's calculator, ZeRO-2, 8 devices", ZeroLayout(2), 8, 2 * 7.5 + 18 * 7.5 / 8),
        State("DeepSpeed's calculator, ZeRO-3, 8 devices", ZeroLayout(3), 8, 18 * 7.5 / 8 + 4 * 0.025),
    ]


def state_gigabytes(state: State) -> float:
    """Parameters, gradients, master copies and Adam's states of the fullest rank, in 10^9 bytes."""
    workload = Workload(
        Architecture.of("causal_lm", {"model_type": "gpt2"}), state.layout, precision="bf16",
        num_processes=state.processes, weight_decay_groups=False,
    )  # fmt: skip
    items = state.layout.items(workload, even_model(7_500_000_000, 300), None)
    return sum(item.bytes for item in items if item.category in STATE) / 1e9


def state_rows() -> Iterator[str]:
    """Markdown: published and estimated training state, their ratio, what explains it."""
    yield "| training state a device, 7.5 B parameters | published GB | estimated GB | ratio | why |"
    yield "|---|---:|---:|---:|---|"
    for state in states():
        found = state_gigabytes(state)
        ratio = found / state.published
        why = "" if 0.8 <= ratio <= 1.25 else state.why
        yield f"| {state.name} | {state.published:.1f} | {found:.1f} | {ratio:.2f} | {why} |"


TABLES = {"runs": run_rows, "step": step_rows, "states": state_rows}


def written(page: str, name: str) -> str:
    """The rows of a table as the page holds them."""
    found = re.search(rf"<!-- {name} -->\n(.*?)\n<!-- end -->", page, re.DOTALL)
    return found.group(1) if found else ""


def main() -> None:
    """Print the tables, or write them into the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="into benchmarks/memory_published.md")
    options = parser.parse_args()
    page = PAGE.read_text()
    for name, rows in TABLES.items():
        text = "\n".join(rows())
        print(text, end="\n\n")
        page = page.replace(f"<!-- {name} -->\n{written(page, name)}\n", f"<!-- {name} -->\n{text}\n")
    if options.write:
        PAGE.write_text(page)


if __name__ == "__main__":
    main()
