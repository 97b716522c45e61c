"""Adapters before ranks start: what is refused, what is said, what a checkpoint holds."""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig, get_peft_model

from runner.adapters.checks import linear_layers
from runner.adapters.quantized import quantized_bytes
from runner.compose.app import compose_run
from runner.config import plan
from runner.config.resolve import resolve_machine
from runner.engines.rank import RankError
from runner.engines.replicated import load_stored_weights, stored_weights
from runner.errors import Problem
from runner.preflight.contradictions import contradictions
from runner.preflight.unused_keys import unused_keys
from runner.recipe import load_recipe
from runner.train import assets

CHAT = ("recipe=chat_sft", "launcher=ddp")


def problems(*overrides: str) -> dict[str, Problem]:
    composed = compose_run([*CHAT, *overrides])
    config, found = resolve_machine(composed.config)
    found += contradictions(config, load_recipe(config)) + unused_keys(config, composed.explicit)
    return {problem.key: problem for problem in found if problem.severity == "error"}


def built(*overrides: str):
    config, _ = resolve_machine(compose_run([*CHAT, *overrides]).config)
    return assets.build_model(load_recipe(config), assets.build_tokenizer(config))[0]


def test_the_learning_rate_is_ten_times_that_of_full_fine_tuning_unless_it_was_typed() -> None:
    assert compose_run([*CHAT]).config.optimizer.lr == 2e-3
    assert compose_run([*CHAT, "adapter=lora"]).config.optimizer.lr == 2e-2
    assert compose_run([*CHAT, "adapter=lora", "optimizer.lr=1e-4"]).config.optimizer.lr == 1e-4


@pytest.mark.parametrize(
    ("overrides", "method"),
    [
        (["adapter=none"], "DDP"),
        (["adapter=lora"], "DDP LoRA"),
        (["adapter=dora", "launcher=deepspeed", "zero_stage=3"], "ZeRO-3 DoRA"),
    ],
)
def test_a_method_is_called_by_its_launcher_and_its_adapter(overrides: list[str], method: str) -> None:
    assert plan.method(compose_run([*CHAT, *overrides]).config) == method


def test_a_key_of_an_adapter_that_is_not_chosen_is_an_error() -> None:
    assert problems("adapter.r=4")["adapter.r"].fix == "add adapter=lora, or leave it out"
    assert "quantization.type" in problems("adapter=lora", "quantization.type=fp4")
    assert problems("adapter=lora", "adapter.r=4") == {}
    assert problems("adapter=qlora", "quantization.type=fp4") == {}


def test_a_wrong_layer_among_right_ones_is_named_with_the_models_own() -> None:
    """peft takes the right one and passes over the other."""
    found = problems("adapter=lora", "adapter.target_modules=[q_proj,v_porj]")["adapter.target_modules"]
    assert found.value == "v_porj"
    assert "down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj" in found.why
    assert found.fix == "did you mean adapter.target_modules=[q_proj,v_proj]?"
    assert problems("adapter=lora", "adapter.target_modules=[q_proj,v_proj]") == {}


def test_layers_are_read_from_the_source_of_transformers() -> None:
    assert linear_layers("gpt2") == {"c_attn", "q_attn", "c_proj", "c_fc"}
    assert {"query_proj", "key_proj", "value_proj", "dense"} <= linear_layers("deberta-v2")
    assert linear_layers("no_such_model") == frozenset()


def test_a_head_that_shares_its_weights_is_not_trained_as_a_copy() -> None:
    assert "tie" in problems("adapter=lora", "adapter.modules_to_save=[lm_head]")["adapter.modules_to_save"].why
    untied = ["adapter=lora", "adapter.modules_to_save=[lm_head]", "model.config.tie_word_embeddings=false"]
    assert problems(*untied) == {}


@pytest.mark.parametrize(
    ("overrides", "key", "fix"),
    [
        (["adapter=lora", "mode=evaluate"], "adapter", "leave adapter out"),
        (["adapter=lora", "adapter.init=orthogonal", "adapter.r=3"], "adapter.r", "use adapter.r=4"),
        (["adapter=qlora", "precision=bf16", "quantization.storage=fp32"], "quantization.storage", "storage=uint8"),
        (
            ["adapter=qlora", "launcher=fsdp", "quantization.storage=uint8", "precision=bf16"],
            "quantization.storage",
            "use quantization.storage=bf16",
        ),
        (
            ["adapter=qlora", "launcher=deepspeed", "zero_stage=3", "zero.partition_at_load=true"],
            "zero.partition_at_load",
            "use zero.partition_at_load=false",
        ),
        (["adapter=qlora", "recipe=deberta_mrpc"], "adapter", "use adapter=lora"),
    ],
)
def test_what_an_adapter_cannot_stand_is_refused_with_a_way_out(overrides: list[str], key: str, fix: str) -> None:
    assert fix in problems(*overrides)[key].fix


def test_only_the_adapter_is_trained_and_its_size_follows_from_the_shapes() -> None:
    """Two layers of q (128 → 128), k and v (128 → 64), o (128 → 128), gate and up (128 → 256), down (256 → 128): a
    rank of 4 trains 4 × (inputs + outputs) of each: 4 × (256 + 192 + 192 + 256 + 384 + 384 + 384) = 8,192 a layer.
    """
    model = built("adapter=lora", "adapter.r=4")
    trained = {name: item.numel() for name, item in model.named_parameters() if item.requires_grad}
    assert all(".lora_A." in name or ".lora_B." in name for name in trained)
    assert sum(trained.values()) == 2 * 8192


def test_an_adapter_does_not_change_the_model_at_the_start_and_the_frozen_weights_are_those_without_it() -> None:
    plain, adapted = built(), built("adapter=lora")
    own = dict(plain.named_parameters())
    for name, parameter in adapted.named_parameters():
        if not parameter.requires_grad:
            short = name.removeprefix("base_model.model.").replace(".base_layer", "")
            assert torch.equal(parameter, own[short]), name
    tokens = torch.arange(20).reshape(2, 10)
    assert torch.allclose(plain(tokens).logits, adapted(tokens).logits, atol=1e-6)


def test_a_new_head_is_trained_whole() -> None:
    config, _ = resolve_machine(compose_run(["launcher=ddp", "adapter=lora"]).config)
    model, _ = assets.build_model(load_recipe(config), assets.build_tokenizer(config))
    whole = {name for name, item in model.named_parameters() if item.requires_grad and "lora_" not in name}
    assert whole == {f"base_model.model.classifier.modules_to_save.default.{part}" for part in ("weight", "bias")}


def test_quantised_layers_still_learn_after_an_evaluation() -> None:
    """bitsandbytes packs weights anew in the first evaluation on a processor with AVX512-BF16, and then no gradient
    passes the layer: the first layer's adapter would get none through the second.
    """
    model = built("adapter=qlora")
    tokens = torch.arange(40).reshape(2, 20)
    with torch.no_grad():
        model.eval()(tokens)
    model.train()(input_ids=tokens, labels=tokens).loss.backward()
    first = [item.grad for name, item in model.named_parameters() if "layers.0" in name and "lora_B" in name]
    assert len(first) == 7
    assert all(grad is not None and float(grad.abs().sum()) > 0 for grad in first)


def test_bytes_of_quantised_weights_are_those_of_the_live_tensors() -> None:
    for double in ("true", "false"):
        model = built("adapter=qlora", f"quantization.double={double}")
        for name, item in model.named_parameters():
            state = getattr(item, "quant_state", None)
            if state is None:
                continue
            parts = [item.data, state.absmax, state.code]
            parts += [state.offset, state.state2.absmax, state.state2.code] if double == "true" else []
            live = sum(part.numel() * part.element_size() for part in parts)
            assert quantized_bytes(state.shape.numel(), double == "true") == live, name


def test_a_checkpoint_holds_what_is_trained_and_takes_up_nothing_else() -> None:
    def model(rank: int) -> torch.nn.Module:
        layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
        return get_peft_model(layers, LoraConfig(target_modules=["0"], r=rank))

    first, second = model(2), model(2)
    stored = stored_weights(first)
    trained = {name for name, item in first.named_parameters() if item.requires_grad}
    assert trained <= set(stored)
    assert not any("base_layer" in name for name in stored)
    assert any("running_mean" in name for name in stored), "buffers change although they are not trained"
    with torch.no_grad():
        stored = {name: value + 1 for name, value in stored.items()}
    load_stored_weights(second, stored)
    assert all(torch.equal(dict(second.named_parameters())[name], stored[name]) for name in trained)
    with pytest.raises(RankError, match="of another adapter"):
        load_stored_weights(second, {**stored, "something.else": torch.zeros(1)})


def test_the_estimate_says_that_it_counts_the_whole_model_as_trained() -> None:
    from runner.memory.configured import workload_from_config
    from runner.memory.estimate import estimate

    def notes(adapter: str) -> list[str]:
        config, _ = resolve_machine(compose_run([*CHAT, f"adapter={adapter}"]).config)
        return [note for note in estimate(workload_from_config(config, 2)).notes if "full fine-tuning" in note]

    assert notes("none") == []
    assert len(notes("lora")) == 1
