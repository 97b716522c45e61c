"""What the host leaves out while it imports must be there for ranks that use it."""

from __future__ import annotations

import subprocess
import sys

from tests.conftest import cli_environment

PROGRAM = """
import gc, sys
from runner.launch import preload
from runner.engines import engine_named
preload.preload([*preload.LIBRARIES, *engine_named("deepspeed").preloaded])
import torch

assert "scipy.optimize" not in sys.modules, "the stand-in is gone, and nothing has imported the real one"
assert gc.get_freeze_count() > 100_000 and not gc.isenabled()
from transformers.loss.loss_for_object_detection import linear_sum_assignment
assert [list(found) for found in linear_sum_assignment([[4, 1], [2, 3]])] == [[0, 1], [1, 0]]  # cost 1 + 2
import scipy.optimize
assert scipy.optimize.minimize

from deepspeed.runtime.zero.muon.original_muon import zeropower_via_newtonschulz5
assert type(zeropower_via_newtonschulz5).__name__ == "function", "as it is written, not compiled"
assert torch.compile.__module__ == "torch", "the real one again"
assert "torch._inductor.compile_fx" not in sys.modules
assert type(torch.compile(torch.nn.Linear(1, 1))).__name__ == "OptimizedModule", "a recipe's own model compiles"
"""


def test_what_was_left_out_is_there_when_it_is_used() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=120,
        env=cli_environment(DS_ACCELERATOR="cpu", HF_HUB_OFFLINE="1"),
    )
    assert done.returncode == 0, done.stderr


METRICS = """
import sys
from runner import metrics
metrics.import_libraries(("loss", "accuracy", "f1"))
assert metrics.classification([1, 0, 1, 1], [1, 0, 0, 1], 2) == {"accuracy": 0.75, "f1": 0.8}  # 2 · 2/3 · 1 / (2/3 + 1)
assert not {"evaluate", "datasets", "sklearn", "sacrebleu", "scipy"} & set(sys.modules)
metrics.import_libraries(("bleu",))
before = set(sys.modules)
assert metrics.corpus_bleu(["a b c d"], ["a b c d"])["bleu"] > 99.9
assert not {name.partition(".")[0] for name in set(sys.modules) - before} & {"sacrebleu", "evaluate", "datasets"}
"""


def test_what_a_score_needs_is_there_before_it_is_asked_for() -> None:
    """Rank 0 does this after its first step, so that no evaluation's time has an import in it."""
    done = subprocess.run(
        [sys.executable, "-c", METRICS],
        capture_output=True,
        text=True,
        timeout=120,
        env=cli_environment(HF_HUB_OFFLINE="1"),
    )
    assert done.returncode == 0, done.stderr
