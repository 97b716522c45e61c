"""`docs/combinations.md`, from the checks' own answers: `python -m runner.combinations > docs/combinations.md`."""

from __future__ import annotations

from runner import engines
from runner.compose import compose_run
from runner.config import plan
from runner.config.resolve import resolve_machine, resolve_owners
from runner.config.schema import RunConfig
from runner.engines import engine_of
from runner.errors import Problem
from runner.preflight.contradictions import contradictions
from runner.recipe import load_recipe

RANKS = 4
OPENING = f"""# What goes with what

Written by `make docs` from the answers that the checks before a run give, on {RANKS} ranks; a test holds that the page
is true. "yes": the checks let it pass; a number: it is refused, for the reason below. What was also trained and
compared with DDP is said in [ways to split a model](parallel.md).
"""
METHODS = (
    ("launcher=ddp",),
    *((f"zero_stage={stage}",) for stage in range(4)),
    ("zero_stage=2", "offload=optimizer_cpu"),
    ("zero_stage=3", "offload=cpu"),
    ("zero_stage=3", "parallel.hybrid_shard=2"),
    *((f"zero_stage={stage}", "parallel.tensor=2") for stage in range(4)),
    ("launcher=fsdp",),
    ("launcher=fsdp", "fsdp.reshard_after_forward=false"),
    ("launcher=fsdp", "parallel.hybrid_shard=2"),
)
LLAMA = ("recipe=chat_sft", "model=llama_tiny")
ON_GPU = "launcher.device=cuda"
COLUMNS = {
    "DeBERTa": (),
    "Blenderbot": ("recipe=blenderbot_mudoconv", "model=blenderbot_tiny"),
    "GPT-2": ("recipe=gpt2_wikitext", "model=gpt2_tiny"),
    "Llama": LLAMA,
    "Llama, bf16": (*LLAMA, "precision=bf16"),
    "Llama, fp16 on GPUs": (*LLAMA, "precision=fp16", ON_GPU),
    "Llama, LoRA": (*LLAMA, "adapter=lora"),
}
OTHER_RANKS = "resumes on other ranks"


def page() -> str:
    """The page as Markdown."""
    reasons: list[str] = []
    bases = {name: compose_run(list(overrides)).config for name, overrides in COLUMNS.items()}
    rows = []
    for overrides in METHODS:
        method = compose_run([*LLAMA, *overrides, f"launcher.num_processes={RANKS}"]).config
        found = [_first_error(_with_method(base, method)) for base in bases.values()]
        found.append(_resume_error(_with_method(bases["Llama"], method)))
        cells = [_cell(problem, reasons) for problem in found]
        typed = " ".join(overrides)
        rows.append(f"| {plan.method(method)} | `{typed}` | {' | '.join(cells)} |")
    heads = ["method", "typed as", *COLUMNS, OTHER_RANKS]
    table = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads), *rows]
    notes = [f"{number}. {reason}" for number, reason in enumerate(reasons, 1)]
    return "\n".join([OPENING, *table, "", *notes]) + "\n"


def _with_method(base: RunConfig, method: RunConfig) -> RunConfig:
    """A copy of a configuration with the launcher, the degrees and the engines' sections of another."""
    config = base.model_copy(deep=True)
    device = config.launcher.device
    for name in ("launcher", "parallel", *engines.sections()):
        setattr(config, name, getattr(method, name).model_copy(deep=True))
    config.launcher.device = "cpu" if device == "auto" else device
    return config


def _first_error(config: RunConfig) -> Problem | None:
    resolved, problems = resolve_machine(config)
    problems = problems + contradictions(resolved, load_recipe(resolved)) + resolve_owners(resolved, True)
    return next((problem for problem in problems if problem.severity == "error"), None)


def _resume_error(config: RunConfig) -> Problem | None:
    """Why a checkpoint of twice as many ranks is not taken up."""
    resolved, _ = resolve_machine(config)
    return next(iter(engine_of(resolved).checkpoint_problems(resolved, 2 * RANKS)), None)


def _cell(problem: Problem | None, reasons: list[str]) -> str:
    if problem is None:
        return "yes"
    reason = f"`{problem.key}`: {problem.why}"
    if reason not in reasons:
        reasons.append(reason)
    return f"no ({reasons.index(reason) + 1})"


if __name__ == "__main__":
    print(page(), end="")
