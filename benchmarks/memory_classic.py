"""The classic memory tables, estimated: largest micro batches on 24 GB devices, next to what others measured.

    python benchmarks/memory_classic.py --mrpc /path/to/mrpc/train.jsonl

No GPU is needed. Prints the tables of benchmarks/memory_classic.md. Without `--mrpc` the longest row is taken to be 128
tokens (the task's limit).
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runner.engines.ddp.memory import DdpLayout
from runner.engines.deepspeed.memory import Buckets, ZeroLayout
from runner.memory.estimate import estimate
from runner.memory.facts import Architecture
from runner.memory.search import fit
from runner.memory.workload import Workload

DEVICE_BYTES = 24 * 2**30
SPECIAL_TOKENS_OF_A_PAIR = 3
DEBERTA_XL: dict[str, Any] = {
    "model_type": "deberta-v2",
    "vocab_size": 128100,
    "hidden_size": 1536,
    "num_hidden_layers": 24,
    "num_attention_heads": 24,
    "intermediate_size": 6144,
    "max_position_embeddings": 512,
    "type_vocab_size": 0,
    "position_biased_input": False,
    "relative_attention": True,
    "position_buckets": 256,
    "max_relative_positions": -1,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "conv_kernel_size": 3,
    "conv_act": "gelu",
    "attention_head_size": 64,
    "pooler_dropout": 0,
}
BLENDERBOT_400M: dict[str, Any] = {
    "model_type": "blenderbot",
    "vocab_size": 8008,
    "d_model": 1280,
    "encoder_layers": 2,
    "decoder_layers": 12,
    "encoder_attention_heads": 32,
    "decoder_attention_heads": 32,
    "encoder_ffn_dim": 5120,
    "decoder_ffn_dim": 5120,
    "max_position_embeddings": 128,
}
GPT2_XL: dict[str, Any] = {
    "model_type": "gpt2",
    "n_embd": 1600,
    "n_layer": 48,
    "n_head": 25,
    "n_positions": 1024,
    "vocab_size": 50257,
}


@dataclass(frozen=True)
class Case:
    """One published number: `measured` rows; `at_least` when more was not tried, or 0 when nothing fitted."""

    name: str
    workload: Workload
    measured: int
    at_least: bool = False

    def verdict(self, rows: int) -> str:
        """How an estimate of `rows` compares."""
        if self.measured == 0:
            return "agrees" if rows == 0 else "disagrees"
        if self.at_least and rows >= self.measured:
            return "agrees"
        return f"{rows / self.measured - 1:+.0%}"


def row_lengths(path: Path) -> tuple[list[int], list[int]]:
    """Tokens of each MRPC pair, special tokens included, by two stand-ins for DeBERTa's tokenizer (not available
    offline).

    First: words and punctuation marks, which no subword tokenizer undercuts much. Second: a 16,000-piece
    byte-level BPE trained on the same rows, which cuts rare words.
    """
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    pairs = [(row["sentence1"], row["sentence2"]) for row in rows]
    words = [sum(len(re.findall(r"\w+|[^\w\s]", text)) for text in pair) + SPECIAL_TOKENS_OF_A_PAIR for pair in pairs]
    return words, list(_bpe_lengths(pairs))


def _bpe_lengths(pairs: list[tuple[str, str]]) -> Iterator[int]:
    from tokenizers import ByteLevelBPETokenizer

    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator((text for pair in pairs for text in pair), vocab_size=16_000, show_progress=False)
    for pair in pairs:
        yield sum(len(tokenizer.encode(text).ids) for text in pair) + SPECIAL_TOKENS_OF_A_PAIR


def cases(mrpc_length: int) -> list[Case]:
    """The published runs on today's stack with the runner's defaults; two ranks unless said otherwise."""
    deberta = Workload(
        Architecture.of("encoder", DEBERTA_XL), ZeroLayout(2), source_length=mrpc_length, precision="fp16"
    )
    blenderbot = Workload(
        Architecture.of("seq2seq", BLENDERBOT_400M),
        ZeroLayout(2),
        source_length=128,
        target_length=64,
        precision="fp16",
    )
    gpt2 = Workload(Architecture.of("causal_lm", GPT2_XL), ZeroLayout(2), source_length=128, precision="fp16")
    offloaded = replace(gpt2, layout=ZeroLayout(3, "cpu", "cpu"), num_processes=1)
    return [
        Case("DeBERTa-XL, DDP", _ddp(deberta), 8),
        Case("DeBERTa-XL, ZeRO-2", deberta, 40),
        Case("BlenderBot-400M, DDP", _ddp(blenderbot), 100),
        Case("BlenderBot-400M, ZeRO-2", blenderbot, 200),
        Case("GPT-2-XL, DDP", _ddp(gpt2), 0),
        Case("GPT-2-XL, ZeRO-3 + CPU offload, one device", offloaded, 16, at_least=True),
    ]


def _ddp(workload: Workload) -> Workload:
    return replace(workload, layout=DdpLayout())


def as_measured_in_2022(case: Case) -> Case:
    """The same run with the defaults of the libraries it was measured with.

    PyTorch before 2.0 zeroed gradients in place (set_to_none=False) and looped over tensors in Adam; DeepSpeed's
    buckets were 500,000,000 elements without overlap; attention kept its probabilities (no fused kernels).
    """
    workload = case.workload
    architecture = workload.architecture
    eager = Architecture.of(
        architecture.family, architecture.mapping() | {"attn_implementation": "eager"}, architecture.num_labels
    )
    if isinstance(workload.layout, ZeroLayout):
        overlap = workload.layout.stage == 3
        buckets = Buckets(reduce_bucket_size=500_000_000, allgather_bucket_size=500_000_000, overlap_comm=overlap)
        layout, kernel = replace(workload.layout, buckets=buckets), "fused"
    else:
        layout, kernel = DdpLayout(gradients_kept_between_steps=True), "loop"
    old = replace(workload, architecture=eager, layout=layout, optimizer_kernel=kernel)
    return replace(case, workload=old)


def table(mrpc_length: int) -> Iterator[str]:
    """Markdown rows: measured by others, and estimated for three sets of assumptions."""
    yield "| run | measured by others | libraries of 2022 | | today's libraries | | today's, without the margin | |"
    yield "|---|---:|---:|---|---:|---|---:|---|"
    for case in cases(mrpc_length):
        bare = replace(case, workload=replace(case.workload, margin_fraction=0.0))
        cells = [case.name, f"≥ {case.measured}" if case.at_least else str(case.measured or "none fits")]
        for each in (as_measured_in_2022(case), case, bare):
            rows = fit(each.workload, DEVICE_BYTES).rows
            cells += [str(rows or "none fits"), case.verdict(rows)]
        yield f"| {' | '.join(cells)} |"


def moments(mrpc_length: int) -> Iterator[str]:
    """Markdown rows: GiB per rank at three moments of a step, at the measured batch (one row where none fits)."""
    yield "| run | rows | libraries | end of forward | end of backward | optimizer step |"
    yield "|---|---:|---|---:|---:|---:|"
    for case in cases(mrpc_length):
        rows = case.measured or 1
        for label, each in (("2022", as_measured_in_2022(case)), ("today", case)):
            found = estimate(each.workload.with_batch(rows))
            sizes = " | ".join(f"{found.at(moment) / 2**30:.1f}" for moment in ("forward", "backward", "step"))
            yield f"| {case.name} | {rows} | {label} | {sizes} |"


def main() -> None:
    """Print the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mrpc", type=Path, help="train.jsonl of MRPC")
    options = parser.parse_args()
    words, pieces = row_lengths(options.mrpc) if options.mrpc else ([128], [128])
    length = max(*words, *pieces)
    for stand_in, lengths in (("words and punctuation", words), ("BPE of 16,000 pieces", pieces)):
        ordered = sorted(lengths)
        print(
            f"- {stand_in}: mean {sum(lengths) / len(lengths):.0f}, 95th percentile "
            f"{ordered[int(0.95 * len(ordered))]}, longest {ordered[-1]} tokens"
        )
    print()
    print("\n".join(table(length)))
    print()
    print("\n".join(moments(length)))


if __name__ == "__main__":
    main()
