"""`keys` knows what a recipe reads, too."""

from __future__ import annotations

import pytest

from runner.cli.keys import main


def test_a_recipes_own_keys_are_found_by_name_and_by_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["num_beams"]) == 0
    assert "(seq2seq.py)" in next(
        line for line in capsys.readouterr().out.splitlines() if line.startswith("task.num_beams=")
    )
    assert main(["task.block_size"]) == 0
    assert "(causal_lm.py)" in capsys.readouterr().out
