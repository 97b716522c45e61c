"""Cells: what they are composed of, what tells them apart, where they go; no rank is started here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runner.compose import compose_run
from runner.compose.multirun import ComposedCell, run_multirun
from runner.errors import RequestError
from runner.preflight.check import check
from runner.sweep.history import earlier_cells, folder_of_sweep, free_folder, write_sweep
from runner.sweep.identity import cell_hash, sweep_id
from runner.sweep.jobs import jobs_of


def cells_of(*arguments: str, value: float | None = 0.5) -> list[ComposedCell]:
    """The cells that these overrides describe, all batches together."""
    found: list[ComposedCell] = []

    def keep(cells: list[ComposedCell]) -> list[float | None]:
        found.extend(cells)
        return [value for _ in cells]

    run_multirun(list(arguments), keep)
    return found


def test_numbers_choose_options_in_a_sweep() -> None:
    cells = cells_of("zero_stage=0,1,2,3", "train.micro_batch_size=4")
    assert [cell.composed.config.zero.stage for cell in cells if cell.composed] == [0, 1, 2, 3]
    assert [cell.run_dir.name for cell in cells] == ["0", "1", "2", "3"]
    assert len({cell.run_dir.parent for cell in cells}) == 1


def test_a_wrong_cell_is_not_the_end_of_the_others() -> None:
    cells = cells_of("zero_stage=1,7", "train.micro_batch_size=4,0")
    assert [cell.composed is not None for cell in cells] == [True, False, False, False]
    assert "train.micro_batch_size=0: input should be greater than or equal to 1" in cells[1].problems[0].line()
    assert cells[1].plain["train"]["micro_batch_size"] == 0
    assert "zero_stage=7: there is no such option; zero_stage has 0, 1, 2, 3" in cells[2].problems[0].line()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("train.micro_bach_size=1,2",), "did you mean train.micro_batch_size"),
        (("zero_stage=8,9",), "there is no such option"),
        (("+sweep=ddp_vs_zro",), r"use \+sweep=ddp_vs_zero"),
        (("zero_stage=8,9", "optimizer.lr=-1"), "no such option(.|\n)*optimizer.lr=-1"),
        (("sweep.rerun=all,missing",), "this says how the whole sweep goes"),
        (("hydra/launcher=joblib", "train.seed=1,2"), "one after the other"),
    ],
)
def test_what_concerns_every_cell_stops_the_sweep(arguments: tuple[str, ...], why: str) -> None:
    with pytest.raises(RequestError, match=why):
        cells_of(*arguments)


def test_a_reference_that_only_some_cells_can_follow_stops_no_sweep() -> None:
    cells = cells_of("recipe=gpt2_wikitext,deberta_mrpc", "note=${task.block_size}")
    assert [cell.composed.config.note if cell.composed else cell.problems[0].key for cell in cells] == ["128", "note"]


def test_prepared_sweeps() -> None:
    compared = [cell.composed.config for cell in cells_of("+sweep=ddp_vs_zero") if cell.composed]
    assert [(config.launcher.name, config.zero.stage) for config in compared] == [
        ("ddp", 0),
        ("deepspeed", 0),
        ("deepspeed", 1),
        ("deepspeed", 2),
        ("deepspeed", 3),
    ]
    assert len({config.train.micro_batch_size for config in compared}) == 1
    assert all(config.sweep.largest_batch for config in compared)
    sizes = cells_of("+sweep=batch_sizes", "train.micro_batch_size=1,2")
    configs = [cell.composed.config for cell in sizes if cell.composed]
    assert [(config.launcher.name, config.train.micro_batch_size) for config in configs] == [
        ("ddp", 1),
        ("ddp", 2),
        ("deepspeed", 1),
        ("deepspeed", 2),
    ]


def test_repeats_and_largest_are_jobs_of_their_own(tmp_path: Path) -> None:
    cells = cells_of("launcher=ddp,deepspeed", "sweep.repeats=2", "sweep.largest_batch=true", "train.seed=7")
    jobs = jobs_of(
        cells, tmp_path, ["launcher=ddp,deepspeed", "sweep.repeats=2", "sweep.largest_batch=true", "train.seed=7"]
    )
    assert [job.name for job in jobs] == [
        f"{cell}{part}-repeat{repeat}" for part in ("", "-largest") for repeat in (0, 1) for cell in (0, 1)
    ]
    assert [job.checked.config.train.seed for job in jobs if job.checked] == [7, 7, 8, 8] * 2
    assert len({job.hash for job in jobs}) == 8
    assert [job.run_dir.name for job in jobs] == [job.name for job in jobs]
    assert jobs[0].label == "launcher=ddp, repeat 0"


def test_a_cell_is_what_it_computes() -> None:
    """The same run typed differently is the same cell; another seed, another row of data are others."""
    typed = {name: cell_hash(check(compose_run(list(overrides)), starting=False)) for name, overrides in {
        "plain": ("launcher=ddp",),
        "spelled out": ("launcher=ddp", "train.micro_batch_size=16", "note=hello"),
        "seed": ("launcher=ddp", "train.seed=1"),
        "rows": ("launcher=ddp", "dataset.max_train_rows=100"),
    }.items()}  # fmt: skip
    assert typed["plain"] == typed["spelled out"]
    assert len(set(typed.values())) == 3


def test_edited_data_make_another_cell(tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    hashes = []
    for word in ("red", "blue"):
        rows.write_text("sentence1,sentence2,label\n" + f"a {word} house,a house,0\na cat,a dog,1\n" * 4)
        overrides = [
            "dataset=files",
            f'dataset.train="{rows}"',
            f'dataset.validation="{rows}"',
            "launcher=ddp",
            "train.micro_batch_size=1",
        ]
        hashes.append(cell_hash(check(compose_run(overrides), starting=False)))
    assert hashes[0] != hashes[1]


def test_the_same_sweep_is_found_again(tmp_path: Path) -> None:
    assert sweep_id(["a=1,2", "train.seed=3"]) == sweep_id(["train.seed=3", "a=1,2", "sweep.rerun=failed", "note=x"])
    assert sweep_id(["a=1,2"]) != sweep_id(["a=1,3"])
    write_sweep(tmp_path / "day" / "time", "abc", "typed", [])
    assert folder_of_sweep([tmp_path], "abc") == tmp_path / "day" / "time"
    assert folder_of_sweep([tmp_path], "other") is None


def test_history_prefers_the_completed_run(tmp_path: Path) -> None:
    for name, status, started in (("a", "completed", "2026-01-01"), ("b", "failed", "2026-01-02")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "record.json").write_text(
            json.dumps({"schema_version": 1, "status": status, "started_at": started, "cell": {"hash": "h"}})
        )
    assert earlier_cells([tmp_path])["h"].folder.name == "a"


def test_no_run_is_overwritten(tmp_path: Path) -> None:
    wanted = tmp_path / "0"
    assert free_folder(wanted) == wanted
    wanted.mkdir()
    (wanted / "config.yaml").touch()  # stored when the sweep started, never run
    assert free_folder(wanted) == wanted
    (wanted / "record.json").touch()
    assert free_folder(wanted) == tmp_path / "0-2"


def test_optuna_drives_the_same_cells(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its trials arrive one after the other; it takes the best for the one with the largest value."""
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")
    monkeypatch.chdir(tmp_path)
    rates: list[float] = []
    values: list[float] = []

    def run(cells: list[ComposedCell]) -> list[float | None]:
        cells[0].sweep_dir.mkdir(parents=True, exist_ok=True)
        configs = [cell.composed.config for cell in cells if cell.composed]
        rates.extend(config.optimizer.lr for config in configs)
        values.extend(config.zero.stage + 0.5 for config in configs)
        return [*values[-len(configs) :]]

    run_multirun(["+sweep=optuna_learning_rate", "hydra.sweeper.n_trials=4", "zero_stage=0,2"], run)
    assert len(rates) == 4
    assert len(set(rates)) == 4
    assert all(1e-4 <= rate <= 1e-2 for rate in rates)
    found = next(tmp_path.glob("multirun/*/*/optimization_results.yaml")).read_text()
    assert f"best_value: {max(values)}" in found
