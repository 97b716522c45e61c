"""Parameter counts and activations of real model classes on the meta device."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from workloads import made

from runner.memory.activations import activations
from runner.memory.architecture import model_facts
from runner.memory.estimate import estimate
from runner.memory.facts import Architecture
from runner.memory.workload import Workload

DEBERTA_XL: dict[str, Any] = {
    "model_type": "deberta-v2",
    "vocab_size": 128100,
    "hidden_size": 1536,
    "num_hidden_layers": 24,
    "num_attention_heads": 24,
    "intermediate_size": 6144,
    "type_vocab_size": 0,
    "position_biased_input": False,
    "relative_attention": True,
    "position_buckets": 256,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "conv_kernel_size": 3,
    "conv_act": "gelu",
}
GPT = {
    "model_type": "gpt2",
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 2,
    "vocab_size": 101,
    "n_positions": 64,
    "resid_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "embd_pdrop": 0.0,
}
LLAMA_70B = {
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}


def gpt(**changes: Any) -> Workload:
    fields = {"architecture": Architecture.of("causal_lm", GPT), "micro_batch_size": 4, "source_length": 16}
    return made(**(fields | {"device": "cpu"} | changes))


def test_parameter_counts_of_known_models() -> None:
    assert model_facts(Architecture.of("encoder", DEBERTA_XL)).numel == 886_957_058
    # GPT-2: 50257 × 768 + 1024 × 768 + 12 × (12 × 768² + 13 × 768) + 2 × 768; its head shares the embedding.
    gpt2 = model_facts(Architecture.of("causal_lm", {"model_type": "gpt2"}))
    assert gpt2.numel == 50257 * 768 + 1024 * 768 + 12 * (12 * 768**2 + 13 * 768) + 2 * 768


def test_decay_groups_follow_the_number_of_dimensions() -> None:
    facts = model_facts(Architecture.of("causal_lm", GPT))
    decayed, plain = facts.groups(split_by_decay=True)
    # Per block: c_attn 32×96, c_proj 32×32, c_fc 32×128, mlp c_proj 128×32; embeddings 101×32 and 64×32.
    assert sum(decayed) == 2 * (32 * 96 + 32 * 32 + 2 * 32 * 128) + (101 + 64) * 32
    assert sum(decayed) + sum(plain) == facts.numel


def test_kept_tensors_of_one_gpt2_block_by_hand() -> None:
    """The difference that one more block makes, in fp32 without dropout, counted from the formulas of the block.

    n = rows × length tokens of width d: input of the 1st norm (n d), its mean and rstd (2 n), input of c_attn (n d),
    the joined q, k, v (3 n d; k and v copied once more into the key-value cache: 2 n d), attention output (n d) and
    logsumexp (n heads), inputs of the 2nd norm (n d, 2 n) and of c_fc (n d). Of width 4 d: gelu_new(x) = x/2 (1 +
    tanh(…x³…)) keeps x, x/2, the tanh, 1 + tanh, and the second projection its input. The output of c_attn is kept
    through q, its slice.
    """
    rows, length, d, heads = 4, 16, 32, 2
    n = rows * length
    two = activations(gpt()).kept
    three = activations(gpt(architecture=Architecture.of("causal_lm", GPT | {"n_layer": 3}))).kept
    narrow = n * (d + 2 + d + 3 * d + 2 * d + d + heads + d + 2 + d)
    assert three - two == 4 * (narrow + 5 * n * 4 * d)


@pytest.mark.parametrize(
    "longer", [replace(gpt(), micro_batch_size=5), replace(gpt(), source_length=17), replace(gpt(), source_length=64)]
)
def test_more_rows_or_tokens_need_more(longer: Workload) -> None:
    assert estimate(longer).device_bytes_per_rank > estimate(gpt()).device_bytes_per_rank


@pytest.mark.parametrize(("precision", "launcher"), [("fp32", "ddp"), ("bf16", "ddp"), ("bf16", "deepspeed")])
def test_twice_the_rows_keep_twice_the_bytes(precision: Any, launcher: Any) -> None:
    """Apart from the mask and the relative positions all that is kept belongs to a row."""
    small, large = (
        activations(gpt(precision=precision, launcher=launcher, micro_batch_size=rows)).kept for rows in (8, 16)
    )
    assert large == pytest.approx(2 * small, rel=0.01)


def test_gradient_checkpointing_keeps_one_input_per_layer() -> None:
    plain, thrifty = activations(gpt()), activations(gpt(gradient_checkpointing=True))
    assert thrifty.kept < plain.kept / 2
    assert 0 < thrifty.layer < plain.kept
    # Embedding output and one more input for the second block, and the final norm's input, at least.
    assert thrifty.kept >= 3 * 4 * 4 * 16 * 32


def test_half_precision_halves_most_and_autocast_adds_copies() -> None:
    full, cast = activations(gpt()), activations(gpt(precision="bf16", launcher="ddp"))
    half = activations(gpt(precision="bf16", launcher="deepspeed"))
    assert half.kept < 0.6 * full.kept
    assert half.autocast_copies == full.autocast_copies == 0
    # Every matrix but the position table is read by a product in bf16: 2 bytes an element (biases are cast too).
    matrices = 2 * (32 * 96 + 32 * 32 + 2 * 32 * 128) + 101 * 32
    assert cast.autocast_copies >= 2 * matrices


def test_logits_are_vocabulary_times_tokens() -> None:
    # fp32: the softmax kept by the loss (shifted labels are padded, not cut) and the logits themselves.
    assert activations(gpt()).logits == 2 * 4 * 4 * 16 * 101
    assert activations(gpt()).logits_gradient == 4 * 4 * 16 * 101


def test_dropout_keeps_one_byte_on_cuda_and_four_on_cpu() -> None:
    facts = GPT | {"resid_pdrop": 0.1}
    sizes = {}
    for device in ("cuda", "cpu"):
        with_dropout = activations(gpt(architecture=Architecture.of("causal_lm", facts), device=device)).kept
        sizes[device] = with_dropout - activations(gpt(device=device)).kept
    # Two dropouts a block, two blocks, 4 × 16 tokens of width 32.
    elements = 2 * 2 * 4 * 16 * 32
    assert sizes == {"cuda": elements, "cpu": 4 * elements}


def test_ddp_on_a_cpu_ignores_fp16() -> None:
    assert activations(gpt(precision="fp16", launcher="ddp")) == activations(gpt(precision="fp32", launcher="ddp"))


def test_a_length_beyond_the_positions_is_refused() -> None:
    with pytest.raises(ValueError, match="65 tokens are more than the model's 64 positions"):
        estimate(gpt(source_length=65))


@pytest.mark.soak  # a process of its own that builds the largest model: 15 s
def test_70_billion_parameters_within_two_gibibytes() -> None:
    program = f"""
import json, resource
from runner.memory.estimate import estimate
from runner.memory.facts import Architecture
from runner.memory.workload import Workload
from runner.engines.deepspeed.memory import ZeroLayout
from runner.memory.search import fit
work = Workload(Architecture.of("causal_lm", {LLAMA_70B!r}), ZeroLayout(3), micro_batch_size=1, source_length=4096,
                precision="bf16",
                num_processes=8, num_nodes=8, gradient_checkpointing=True)
found = estimate(work)
largest = fit(work, 80 * 2**30)
print(json.dumps([found.num_parameters, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, largest.rows]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True)
    parameters, resident, _ = json.loads(done.stdout.splitlines()[-1])
    # Per layer: attention 2 × 8192² + 2 × 8192 × 1024, feed-forward 3 × 8192 × 28672, two norms; two tables; last norm.
    assert parameters == 80 * (2 * 8192**2 + 2 * 8192 * 1024 + 3 * 8192 * 28672 + 2 * 8192) + 2 * 128256 * 8192 + 8192
    assert resident < 2 * 2**30


def test_importing_the_package_imports_no_torch() -> None:
    program = (
        "import sys, runner.memory, runner.memory.search, runner.memory.estimate_table, runner.cli.estimate; "
        "print('torch' in sys.modules, 'transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["False", "False"]
