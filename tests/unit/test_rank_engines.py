"""Training knows no engine by name, and counts replicas, not ranks."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import ROOT

torch = pytest.importorskip("torch")

from runner.config.schema import RunConfig  # noqa: E402
from runner.engines.rank import RankError, rank_engine_of  # noqa: E402
from runner.train.batching import deal  # noqa: E402
from runner.train.ranks import RankPlace  # noqa: E402

ENGINE_WORDS = re.compile(
    r"deepspeed_engine_wrapped|\bds_(id|shape|tensor)\b|launcher\.name\s*[!=]=|zero\.stage|import deepspeed"
)
TRAINING = [path for room in ("train", "checkpoint") for path in sorted((ROOT / "runner" / room).glob("*.py"))]


@pytest.mark.parametrize("path", TRAINING, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_engine_is_named_in_training(path: Path) -> None:
    assert ENGINE_WORDS.search(path.read_text()) is None


@pytest.mark.parametrize("path", TRAINING, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_training_imports_nothing_that_launches_or_renders(path: Path) -> None:
    assert re.search(r"^\s*(from|import) runner[. ](import )?(launch|render)", path.read_text(), re.MULTILINE) is None


def test_an_engine_without_a_rank_side_is_a_plain_error() -> None:
    config = RunConfig()
    object.__setattr__(config.launcher, "name", "nothing")
    with pytest.raises(RankError, match="launcher=nothing: there is no engine of this name"):
        rank_engine_of(config)


def test_ranks_of_a_replica_share_their_rows_and_speak_once() -> None:
    """Four ranks, two replicas of two: rows go to replicas, and the second rank of each is silent."""
    places = [RankPlace(rank, 4, rank // 2, 2, torch.device("cpu")) for rank in range(4)]
    dealt = deal(np.arange(6), 2)
    assert [dealt[place.data_parallel_rank].rows for place in places] == [[0, 2, 4], [0, 2, 4], [1, 3, 5], [1, 3, 5]]
    assert [place.speaks_for_replica for place in places] == [True, False, True, False]
    assert [place.is_main for place in places] == [True, False, False, False]
