"""Which code a cell's identity covers: what decides a run's numbers, found from imports."""

from __future__ import annotations

from pathlib import Path

from runner.sweep.identity import DECIDES_NUMBERS
from runner.sweep.imports import PACKAGE, file_of, imported, module_files
from tests.conftest import ROOT


def test_what_decides_numbers_is_found_and_what_only_shows_them_is_not() -> None:
    found = module_files([*DECIDES_NUMBERS, *imported(ROOT / "recipes" / "seq2seq.py")])
    for name in ("train.loop", "train.batching", "config.plan", "launch.preload", "generation", "metrics", "render"):
        assert f"runner.{name}" in found
    assert not [
        name for name in found if name.startswith(("runner.report", "runner.sweep", "runner.cli", "runner.fit"))
    ]


def test_imports_in_functions_count_and_those_for_types_do_not(tmp_path: Path) -> None:
    path = tmp_path / "one.py"
    path.write_text(
        "import a\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import only_types\n"
        "def f():\n    from runner.config import plan\n"
    )
    assert set(imported(path)) == {"a", "typing", "typing.TYPE_CHECKING", "runner.config", "runner.config.plan"}


def test_names_lead_to_files() -> None:
    assert file_of("runner.config.plan") == PACKAGE / "config" / "plan.py"
    assert file_of("runner.config") == PACKAGE / "config" / "__init__.py"
    assert file_of("runner.config.plan.world_size") is None
    assert file_of("torch") is None
