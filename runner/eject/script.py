"""The training script of one configuration, from the template and what its engine contributes."""

from __future__ import annotations

import importlib.resources
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner import __version__, render
from runner.adapters import adapter_of
from runner.config import plan
from runner.config.catalogue import BUNDLED_TOKENIZER
from runner.config.schema import RunConfig
from runner.engines import engine_of
from runner.engines.standalone import Standalone
from runner.errors import Problem, RequestError
from runner.recipe import Recipe
from runner.train.assets import model_source, tokenizer_source
from runner.train.batching import POOL

_SCHEDULES = ("linear", "constant", "cosine")
# Places of this machine; by hand the libraries choose their own.
_OWN_VARIABLES = ("TORCH_EXTENSIONS_DIR", "GOMP_SPINCOUNT", "OMP_NUM_THREADS")
TOKENIZER = "tokenizer"  # folder of a bundled tokenizer
_INSTALL = "the script is written with jinja2: pip install 'finetune-runner[report]'"


@dataclass(frozen=True)
class Ejected:
    """A configuration that can be written as a script, with its engine's part."""

    config: RunConfig
    recipe: Recipe
    engine: Standalone

    @classmethod
    def of(cls, config: RunConfig, recipe: Recipe) -> Ejected:
        """Raises RequestError, with every choice for which there is no script."""
        engine = engine_of(config).standalone(config)
        problems = _without_script(config)
        if engine is None:
            why = f"there is no standalone script for {plan.method(config)} yet"
            problems.append(Problem("launcher", config.launcher.name, why, "use launcher=ddp or launcher=deepspeed"))
        if problems or engine is None:
            raise RequestError(problems)
        return cls(config, recipe, engine)

    @property
    def command(self) -> str:
        """The line that starts the script, in its folder."""
        variables = {
            name: value for name, value in render.rank_environment(self.config).items() if name not in _OWN_VARIABLES
        }
        words = [f"{name}={shlex.quote(value) if value else ''}" for name, value in variables.items()]
        return " ".join([*words, "accelerate launch --config_file accelerate.yaml train.py"])

    def render(self, splits: list[str]) -> dict[str, str]:
        """train.py and README.md.

        Args:
            splits: whose rows lie in data/.
        """
        values = self._values(splits)
        return {name: _template(f"{name}.j2", values) for name in ("train.py", "README.md")}

    def _values(self, splits: list[str]) -> dict[str, Any]:
        config, recipe = self.config, self.recipe
        facts = config.model.init == "random" and bool(config.model.config) and not config.model.path
        method = plan.method(config)
        return {
            "title": f"{config.model.name} on {config.dataset.name} with {method}, {plan.world_size(config)} "
            f"{config.launcher.device} ranks, {config.precision.name}.",
            "version": __version__,
            "command": self.command,
            "engine": self.engine,
            "accelerate_utils": sorted({*self.engine.accelerate_utils, "GradientAccumulationPlugin", "gather_object"}),
            "transformers": sorted({"AutoConfig", "AutoTokenizer", recipe.auto_class}),
            "recipe": type(recipe).__name__,
            "auto_class": recipe.auto_class,
            "auto_config": facts,
            "random_init": config.model.init == "random",
            "model_source": _arguments(model_source(config.model), config),
            "tokenizer_source": self._tokenizer(),
            "train": config.train,
            "optimizer": config.optimizer,
            "scheduler": config.scheduler,
            "warmup": "WARMUP" if config.scheduler.warmup_steps else 0,
            "client_schedule": config.scheduler.owner != "deepspeed",
            "pool": POOL,
            "threads": config.launcher.omp_num_threads,
            "splits": splits,
            "evaluates": "validation" in splits,
            "tests": "test" in splits,
            "has_reference": recipe.label_column is not None,
            "workers": f", num_workers={config.train.dataloader_workers}" if config.train.dataloader_workers else "",
            "files_of_engine": sorted(engine_of(config).files(config, Path("."), 1, None)),
        }

    def _tokenizer(self) -> str:
        source = tokenizer_source(self.config.model)
        if self.config.model.tokenizer and self.config.model.tokenizer.startswith(BUNDLED_TOKENIZER):
            return f'"{TOKENIZER}"'
        return _arguments(source, self.config)


def _without_script(config: RunConfig) -> list[Problem]:
    """Choices that the template does not know."""
    found = []
    if config.mode != "train":
        found.append(Problem("mode", config.mode, "only a training can be written as a script", "use mode=train"))
    if config.launcher.num_nodes > 1:
        why = "the script is for one machine"
        found.append(Problem("launcher.num_nodes", config.launcher.num_nodes, why, "use cluster=local"))
    if config.optimizer.name != "adamw":
        why = "the script knows AdamW only"
        found.append(Problem("optimizer", config.optimizer.name, why, "use optimizer=adamw"))
    if config.scheduler.name not in _SCHEDULES:
        why = f"the script knows {', '.join(_SCHEDULES)}"
        found.append(Problem("scheduler", config.scheduler.name, why, "use scheduler=linear"))
    if config.scheduler.warmup_ratio is not None:
        why = "the script takes a number of steps"
        found.append(
            Problem("scheduler.warmup_ratio", config.scheduler.warmup_ratio, why, "use scheduler.warmup_steps")
        )
    if adapter_of(config).label:
        found.append(Problem("adapter", adapter_of(config).name, "the script trains whole models", "use adapter=none"))
    train = config.train.model_dump(include={"evaluate_every_steps", "early_stopping_patience", "load_best_at_end"})
    degrees = config.parallel.model_dump(exclude_defaults=True)
    typed = {f"train.{name}": value for name, value in train.items()}
    typed |= {f"parallel.{name}": value for name, value in degrees.items()}
    for key, value in typed.items():
        if value:
            fix = f"use {key}={'false' if value is True else 'null'}" if key.startswith("train.") else "leave it out"
            found.append(Problem(key, value, "the script does not know this", fix))
    return found


def _arguments(source: str | None, config: RunConfig) -> str:
    """Arguments of `from_pretrained` for a source."""
    model = config.model
    revision = f', revision="{model.revision}"' if model.revision and source == model.hub_id else ""
    code = ", trust_remote_code=True" if model.trust_remote_code else ""
    return f'"{source}"{revision}{code}'


def _template(name: str, values: dict[str, Any]) -> str:
    try:
        from jinja2 import Environment, StrictUndefined
    except ImportError:
        raise RequestError(Problem("eject", None, _INSTALL)) from None
    text = (importlib.resources.files("runner.eject") / "templates" / name).read_text(encoding="utf-8")
    environment = Environment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    return environment.from_string(text).render(values)
