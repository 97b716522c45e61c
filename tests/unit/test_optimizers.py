"""Each optimizer: its arithmetic by hand, its states to the byte, what it is refused with."""

from __future__ import annotations

import copy

import pytest
import torch

from runner.config.catalogue import option_files
from runner.config.optimization import OptimizerConfig
from runner.config.resolve import resolve_machine
from runner.config.schema import RunConfig
from runner.memory.facts import ParameterFact
from runner.optimizers import OPTIMIZERS, optimizer_of
from runner.preflight.optimizers import check_optimizer_package, optimizer_problems
from runner.preflight.unused_keys import unused_keys

NAMES = sorted(OPTIMIZERS)


class Small(torch.nn.Module):
    """A matrix of a layer, a table, and a vector."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.h = torch.nn.ModuleList([torch.nn.Linear(96, 64)])
        self.table = torch.nn.Embedding(70, 96)


def built(config: OptimizerConfig, model: torch.nn.Module) -> torch.optim.Optimizer:
    library = optimizer_of(config).package
    if library:
        pytest.importorskip(library)
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return optimizer_of(config).build(config, groups, model)


def fill_gradients(model: torch.nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def test_every_optimizer_has_its_option_and_its_value_in_the_schema():
    assert set(OptimizerConfig.model_fields["name"].annotation.__args__) == set(NAMES) == set(option_files("optimizer"))


def test_lion_steps_by_the_sign_of_its_momentum():
    """By hand: decay by 1 − lr · wd, then lr against the sign of (1 − β₁) g; the second gradient turns the sign."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(model.weight, 2.0)
    optimizer = built(OptimizerConfig(name="lion", lr=0.1, betas=(0.5, 0.5), weight_decay=0.5), model)
    for gradient, expected in ((4.0, 2.0 * 0.95 - 0.1), (-3.0, (2.0 * 0.95 - 0.1) * 0.95 + 0.1)):
        model.weight.grad = torch.tensor([[gradient]])  # momentum 2, so that 0.5 · 2 + 0.5 · (−3) is negative
        optimizer.step()
        assert model.weight.item() == pytest.approx(expected, abs=1e-6)


def test_sgd_with_momentum_by_hand():
    """v ← 0.9 v + g: steps of lr · 1, then of lr · (0.9 + 2)."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(model.weight, 1.0)
    optimizer = built(OptimizerConfig(name="sgd", lr=0.1), model)
    for gradient, expected in ((1.0, 0.9), (2.0, 0.9 - 0.29)):
        model.weight.grad = torch.tensor([[gradient]])
        optimizer.step()
        assert model.weight.item() == pytest.approx(expected, abs=1e-6)


def test_muon_orthogonalises_the_layers_matrices_and_nothing_else():
    """One step of Muon moves a matrix by singular values that are all about 0.2 · √max(rows, columns) · lr; AdamW moves
    each element of table and bias by lr.
    """
    model, lr = Small(), 0.01
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = built(OptimizerConfig(name="muon", lr=lr, momentum=0.95), model)
    fill_gradients(model, 1)
    optimizer.step()
    moved = {name: before[name] - parameter.detach() for name, parameter in model.named_parameters()}
    values = torch.linalg.svdvals(moved["h.0.weight"]) / (0.2 * 96**0.5 * lr)
    assert 0.5 < values.min() < values.max() < 1.5  # Newton–Schulz ends near 1 on purpose
    for name in ("table.weight", "h.0.bias"):
        assert moved[name].abs().flatten() == pytest.approx(torch.full((moved[name].numel(),), lr), abs=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_states_take_the_bytes_that_the_estimate_says(name):
    model, config = Small(), OptimizerConfig(name=name)
    optimizer = built(config, model)
    fill_gradients(model, 1)
    optimizer.step()
    kept = [
        value
        for state in optimizer.state.values()
        for key, value in state.items()
        if isinstance(value, torch.Tensor) and key != "step" and "qmap" not in key  # one table for all
    ]
    measured = sum(value.numel() * value.element_size() for value in kept)
    facts = [ParameterFact(n, p.numel(), p.ndim > 1, p.shape[0], tuple(p.shape)) for n, p in model.named_parameters()]
    assert optimizer_of(config).states(config).whole_bytes(facts) == measured


@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_continues_exactly_and_the_schedule_reaches_every_group(name):
    config = OptimizerConfig(name=name, weight_decay=0.1)
    straight, resumed = Small(), Small()
    first, second = built(config, straight), built(config, resumed)
    for seed in (1, 2):
        fill_gradients(straight, seed)
        first.step()
    resumed.load_state_dict(straight.state_dict())
    second.load_state_dict(copy.deepcopy(first.state_dict()))  # torch would share the tensors
    for model, optimizer in ((straight, first), (resumed, second)):
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5)
        assert {group["lr"] for group in optimizer.param_groups} == {config.lr * 0.5}
        fill_gradients(model, 3)
        optimizer.step()
        schedule.step()
    for one, other in zip(straight.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, other)


def run(name: str, launcher: str, stage: int = 0, offload: str = "none", **keys) -> RunConfig:
    made = RunConfig()
    made.launcher.name, made.launcher.device, made.launcher.num_processes = launcher, "cpu", 2
    made.zero.stage, made.offload.optimizer, made.optimizer.name = stage, offload, name
    for key, value in keys.items():
        setattr(made.optimizer, key, value)
    return made


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("launcher", "stage"), [("ddp", 0), ("deepspeed", 0), ("deepspeed", 2), ("fsdp", 0)])
def test_what_needs_whole_tensors_is_refused_where_they_are_cut(name, launcher, stage):
    needs_whole = name in ("adafactor", "adamw_8bit", "muon")
    cut = (launcher, stage) in (("deepspeed", 2), ("fsdp", 0))
    lines = [problem.line() for problem in optimizer_problems(run(name, launcher, stage))]
    assert bool(lines) is (needs_whole and cut) or (name, launcher) == ("lion", "fsdp"), lines
    assert all("or optimizer=adamw" in line for line in lines)


def test_only_adamw_is_offloaded():
    assert optimizer_problems(run("adamw", "deepspeed", 2, "cpu")) == []
    (found,) = optimizer_problems(run("lion", "deepspeed", 2, "cpu"))
    assert "offload=none" in found.line()


def test_the_package_is_named_before_anything_starts(monkeypatch):
    monkeypatch.setattr("runner.preflight.optimizers.is_installed", lambda module: False)
    (found,) = check_optimizer_package(run("lion", "ddp"))
    assert "pip install 'finetune-runner[bitsandbytes]'" in found.line()
    assert check_optimizer_package(run("muon", "ddp")) == []


def test_keys_of_other_optimizers_and_schedules_are_refused():
    made = run("sgd", "ddp", betas=(0.8, 0.9))
    made.scheduler.power, made.scheduler.warmup_steps, made.scheduler.warmup_ratio = 2.0, 3, 0.1
    typed = {"optimizer.betas", "scheduler.power", "scheduler.warmup_steps"}
    assert {problem.key for problem in unused_keys(made, typed)} == typed
    assert unused_keys(made, ()) == []  # what models and options bring is no mistake


def test_the_client_builds_what_deepspeeds_json_does_not_know():
    from runner.config.resolve import resolve_owners

    made = run("lion", "deepspeed", 2)
    assert resolve_owners(made, total_steps_known=True) == []
    assert made.optimizer.owner == "client"
    made.optimizer.owner = "deepspeed"
    (found,) = resolve_owners(made, total_steps_known=True)
    assert found.key == "optimizer.owner"
    assert "optimizer.owner=client" in found.line()


@pytest.mark.parametrize(
    ("name", "launcher", "precision", "offload", "expected"),
    [
        ("adamw", "ddp", "bf16", "none", True),
        ("adamw", "ddp", "fp16", "none", False),  # torch's loss scaler could not see a skipped step
        ("adamw", "deepspeed", "fp16", "none", True),  # DeepSpeed's own scaler skips before the step
        ("adamw", "deepspeed", "bf16", "cpu", False),
        ("muon", "ddp", "bf16", "none", False),
        ("sgd", "ddp", "bf16", "none", True),
        ("sgd", "fsdp", "bf16", "none", False),  # torch has no fused SGD for sharded tensors
    ],
)
def test_fused_by_default_wherever_it_can_be(name, launcher, precision, offload, expected):
    """On a GPU, which this test only names: nothing is started."""
    made = run(name, launcher, 2 if launcher == "deepspeed" else 0, offload)
    made.launcher.device, made.precision.name = "cuda", precision
    assert resolve_machine(made)[0].optimizer.fused is expected
