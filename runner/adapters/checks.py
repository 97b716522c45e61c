"""What an adapter needs of a run, looked at before ranks start; nothing of torch or peft is imported."""

from __future__ import annotations

import importlib.util
import re
from functools import lru_cache
from pathlib import Path

from runner.adapters.config import adapter_section
from runner.config.model_types import config_class
from runner.config.schema import RunConfig
from runner.config.sequence_limits import architecture_facts, is_adapter_folder
from runner.errors import Problem, nearest
from runner.machine import is_installed
from runner.recipe import Recipe

# transformers' auto class → peft's task type, which decides what becomes of the task's head.
TASK_TYPES = {
    "AutoModelForCausalLM": "CAUSAL_LM",
    "AutoModelForSeq2SeqLM": "SEQ_2_SEQ_LM",
    "AutoModelForSequenceClassification": "SEQ_CLS",
    "AutoModelForTokenClassification": "TOKEN_CLS",
    "AutoModelForQuestionAnswering": "QUESTION_ANS",
}
_OUTPUT_HEADS = ("lm_head", "embed_out")
_TASK_HEADS = ("classifier", "score", "qa_outputs", "summary")


def package_problem(adapter: str, package: str, extra: str) -> list[Problem]:
    """A package that is not installed."""
    if is_installed(package):
        return []
    why = f"it needs {package}, which is not installed"
    return [Problem("adapter", adapter, why, f"pip install 'finetune-runner[{extra}]'")]


def adapter_problems(config: RunConfig, recipe: Recipe) -> list[Problem]:
    """What holds for every adapter."""
    section, problems = adapter_section(config), []
    if config.mode == "evaluate":
        why = "nothing is trained under mode=evaluate"
        fix = "leave adapter out: model.path=RUN_DIR/model model.init=pretrained brings a run's adapter along"
        problems.append(Problem("adapter", section.name, why, fix))
    if recipe.auto_class not in TASK_TYPES:
        why = f"peft knows no task for a {recipe.auto_class}, so that its head would stay frozen"
        problems.append(Problem("adapter", section.name, why, "use adapter=none"))
    if is_adapter_folder(config.model.path):
        why = "this folder holds an adapter, and a second one on top of it could not be told apart when it is saved"
        fix = "merge it first: python -m runner merge RUN_DIR, then model.path=RUN_DIR/merged"
        problems.append(Problem("model.path", config.model.path, why, fix))
    if section.init == "orthogonal" and section.r % 2:
        why = "adapter.init=orthogonal needs an even rank"
        problems.append(Problem("adapter.r", section.r, why, f"use adapter.r={section.r + 1}"))
    return problems + _names(config) + _tied_head(config)


def _names(config: RunConfig) -> list[Problem]:
    """Layers that the model's code does not have; where its code is not found, the rank compares the live names."""
    section, kind = adapter_section(config), str(architecture_facts(config.model).get("model_type", ""))
    known = linear_layers(kind)
    if section.target_modules == "auto" or not known or config.model.trust_remote_code:
        return []
    if not section.target_modules:
        return [Problem("adapter.target_modules", [], "no layer is named", "use adapter.target_modules=auto")]
    unknown = [name for name in section.target_modules if name.rpartition(".")[2] not in known]
    problems = []
    for name in unknown:
        near = nearest(name.rpartition(".")[2], known)
        why = f"a {kind} has no linear layer of this name; it has {', '.join(sorted(known))}"
        right = [near if item == name else item for item in section.target_modules] if near else None
        fix = f"did you mean adapter.target_modules=[{','.join(map(str, right))}]?" if right else ""
        problems.append(Problem("adapter.target_modules", name, why, fix or "use adapter.target_modules=auto"))
    return problems


def _tied_head(config: RunConfig) -> list[Problem]:
    """A head that shares its weights with the embeddings: peft would train a copy, and the model would lose the tie."""
    facts = architecture_facts(config.model)
    settings = config_class(str(facts.get("model_type", "")))
    tied = facts.get("tie_word_embeddings", settings.defaults.get("tie_word_embeddings") if settings else None)
    named = [name for name in adapter_section(config).modules_to_save if name in _OUTPUT_HEADS]
    if not tied or not named:
        return []
    why = "it shares its weights with the embeddings: a copy would be trained, and the saved model would lose the tie"
    return [Problem("adapter.modules_to_save", named[0], why, "leave it out, or use adapter=none")]


@lru_cache(maxsize=8)
def linear_layers(model_type: str) -> frozenset[str]:
    """Last names of a model type's linear layers, from the source text of transformers; empty where it is not found."""
    found = importlib.util.find_spec("transformers")
    module = model_type.replace("-", "_")
    if not module or found is None or found.origin is None:
        return frozenset()
    try:
        file = Path(found.origin).parent / "models" / module / f"modeling_{module}.py"
        source = file.read_text(encoding="utf-8")
    except OSError:
        return frozenset()
    return frozenset(re.findall(r"self\.(\w+) = (?:nn\.)?(?:Linear|Conv1D)\(", source)) - {*_OUTPUT_HEADS, *_TASK_HEADS}
