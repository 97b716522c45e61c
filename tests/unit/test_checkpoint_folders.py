"""Which checkpoints are whole, which stay, what a resume may change: without ranks."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from pathlib import Path

import pytest

from runner import render, resume, rundir, secrets
from runner.checkpoint import compatibility, folders, retention
from runner.checkpoint.manifest import FileFacts, Manifest, write_manifest
from runner.config.schema import RunConfig
from runner.engines import engine_of
from runner.engines.deepspeed import universal_checkpoint as conversion
from runner.errors import RequestError
from runner.rundir.record import Record, write_atomically


def checkpoint(run_dir: Path, step: int, metric: float | None = None, evaluated: bool = False) -> Path:
    """A checkpoint of one small file."""
    folder = run_dir / folders.CHECKPOINTS / folders.name_of(step, evaluated)
    folder.mkdir(parents=True)
    (folder / "rank_0.pt").write_bytes(b"state")
    facts = FileFacts(5, hashlib.sha256(b"state").hexdigest())
    write_manifest(
        folder,
        Manifest(
            step,
            0,
            step,
            evaluated,
            metric,
            2,
            "ddp",
            None,
            16,
            1,
            "hash",
            "2026-01-01T00:00:00Z",
            {},
            {"rank_0.pt": facts},
        ),
    )
    return folder


def names(run_dir: Path) -> list[str]:
    return sorted(path.name for path in (run_dir / folders.CHECKPOINTS).iterdir())


def test_the_newest_is_found_by_number_and_damage_is_named(tmp_path: Path) -> None:
    """9, 99999999 and 100000000: as text the last would come first."""
    for step in (9, 99_999_999, 100_000_000):
        checkpoint(tmp_path, step)
    assert [item.step for item in folders.checkpoints(tmp_path)] == [100_000_000, 99_999_999, 9]
    newest = folders.checkpoints(tmp_path)[0]
    (newest.path / "rank_0.pt").write_bytes(b"stale")
    assert newest.damage(checksums=False) is None
    assert newest.damage() == "rank_0.pt has another checksum than when it was written"
    (newest.path / "rank_0.pt").write_bytes(b"st")
    assert newest.damage() == "rank_0.pt has 2 bytes instead of 5"
    (newest.path / "rank_0.pt").unlink()
    assert newest.damage() == "rank_0.pt is missing"
    (newest.path / "manifest.json").unlink()
    assert "no readable manifest" in str(newest.damage())
    found = folders.newest(tmp_path, checksums=True)
    assert found is not None
    assert found.step == 99_999_999


@pytest.mark.parametrize(("greater", "best"), [(True, 2), (False, 1)])
def test_the_last_k_and_the_best_stay(tmp_path: Path, greater: bool, best: int) -> None:
    for step, metric in ((1, 0.2), (2, 0.9), (3, 0.5), (10, 0.9), (11, 0.4)):
        checkpoint(tmp_path, step, metric, evaluated=True)
    torn = tmp_path / folders.CHECKPOINTS / "step_00000012"
    torn.mkdir()
    removed = retention.apply(tmp_path, retention.Policy(2, True, greater))
    assert len(removed) == 2
    assert names(tmp_path) == sorted([f"step_{step:08d}_evaluated" for step in (best, 10, 11)] + ["step_00000012"])


def test_the_evaluated_one_replaces_its_step_and_the_only_one_stays(tmp_path: Path) -> None:
    checkpoint(tmp_path, 7)
    assert retention.apply(tmp_path, retention.Policy(1, False, True)) == []
    checkpoint(tmp_path, 7, 0.5, evaluated=True)
    assert retention.apply(tmp_path, retention.Policy(1, False, True)) == ["step_00000007"]
    assert names(tmp_path) == ["step_00000007_evaluated"]


def config(ranks: int = 2, **train: int) -> RunConfig:
    made = RunConfig()
    made.launcher.num_processes = ranks
    made.launcher.omp_num_threads = 1
    made.train.micro_batch_size, made.train.gradient_accumulation_steps = 16, 1
    for name, value in train.items():
        setattr(made.train, name, value)
    return made


@pytest.mark.parametrize(("ranks", "micro", "accumulation"), [(1, 16, 2), (4, 8, 1), (8, 4, 1), (32, 1, 1)])
def test_the_global_batch_of_32_stays(ranks: int, micro: int, accumulation: int) -> None:
    after = config(ranks)
    assert compatibility.keep_global_batch(config(), after, frozenset({"launcher.num_processes"})) == []
    assert (after.train.micro_batch_size, after.train.gradient_accumulation_steps) == (micro, accumulation)


def test_a_global_batch_that_cannot_stay_is_refused() -> None:
    assert "does not divide by 3 ranks" in compatibility.keep_global_batch(config(), config(3), frozenset())[0].why
    assert (
        "would be 5 × 1"
        in compatibility.keep_global_batch(config(), config(micro_batch_size=5), frozenset({"train.micro_batch_size"}))[
            0
        ].why
    )


def test_the_length_may_change_under_a_constant_rate_only() -> None:
    """100 rows in batches of 32 are 4 steps an epoch: 12 steps in 3 epochs, 20 in 5."""
    assert "over 12 optimizer steps, not 20" in compatibility.check_changes(config(), config(epochs=5), 100, 8)[0].why
    before, after = config(), config(epochs=5)
    before.scheduler.name = after.scheduler.name = "constant"
    assert compatibility.check_changes(before, after, 100, 8) == []
    after.train.epochs = 1
    assert "the checkpoint has 8 optimizer steps" in compatibility.check_changes(before, after, 100, 8)[0].why


def test_all_ranks_stop_after_the_same_step(tmp_path: Path) -> None:
    """Rank 0 sees the request before step 5, so step 5 is done by all; a rank that asks late gets the same answer."""
    assert not rundir.stop_requested(tmp_path, 4, is_main=True)
    rundir.request_stop(tmp_path)
    assert not rundir.stop_requested(tmp_path, 4, is_main=False)
    assert not rundir.stop_requested(tmp_path, 4, is_main=True)
    assert not rundir.stop_requested(tmp_path, 4, is_main=False)
    assert rundir.stop_requested(tmp_path, 5, is_main=False)
    assert rundir.stop_requested(tmp_path, 5, is_main=True)
    rundir.clear_requests(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_held_once(tmp_path: Path) -> None:
    with rundir.held(tmp_path), pytest.raises(RequestError, match="still going on"), rundir.held(tmp_path):
        pass
    with rundir.held(tmp_path):
        pass


def test_secrets_are_masked_where_files_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`deepspeed` and 12345678 may stand anywhere; a path says nothing; the others are secrets."""
    hub = tmp_path / "token"
    hub.write_text("hub-file-token-1\n")
    values = {
        "A_TOKEN": "deepspeed",
        "B_KEY": "12345678",
        "C_KEY": "/home/me/key1",
        "D_API_KEY": "abcd1234",
        "HF_TOKEN_PATH": str(hub),
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    secrets.known_secrets.cache_clear()
    written = tmp_path / "file"
    write_atomically(written, "deepspeed 12345678 /home/me/key1 abcd1234 hub-file-token-1 hf_" + "a1B" * 10)
    secrets.known_secrets.cache_clear()
    assert written.read_text() == "deepspeed 12345678 /home/me/key1 SECRET-HIDDEN SECRET-HIDDEN SECRET-HIDDEN"


def test_a_conversion_ends_when_the_run_is_asked_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(tmp_path / "log", "w") as log:
        began = time.monotonic()
        assert (
            conversion._run(
                [sys.executable, "-c", "import time; time.sleep(60)"], log, lambda: time.monotonic() > began + 0.3
            )
            is None
        )
        assert conversion._run([sys.executable, "-c", "raise SystemExit(3)"], log, lambda: False) == 3
    checkpoint(tmp_path, 4)
    monkeypatch.setattr(conversion, "_run", lambda *_: None)
    with pytest.raises(conversion.ConversionStopped):
        conversion.convert(folders.checkpoints(tmp_path)[0], tmp_path / "logs/conversion.log", lambda: True)
    assert names(tmp_path) == ["step_00000004"]


def test_a_killed_attempt_lasted_until_its_last_sign_of_life(tmp_path: Path) -> None:
    """Started at 10:00, its last heartbeat at 10:30 (in an evaluation, which writes nothing else),
    resumed days later.
    """
    record = Record(tmp_path)
    record.data = {
        "status": "running",
        "phases": {"forward": 60.0},
        "attempts": [{"started_at": "2026-01-01T10:00:00.000Z", "status": "running"}],
    }
    record.write()
    (tmp_path / "heartbeat").mkdir()
    (tmp_path / "heartbeat/rank_0.json").write_text("{}")
    early, late = 1767261600.0, 1767263400.0  # 10:00 and 10:30 of that day
    os.utime(tmp_path / "record.json", (early, early))
    os.utime(tmp_path / "heartbeat/rank_0.json", (late, late))
    resume._close_killed(resume.Found(tmp_path, record, RunConfig(), {}, None, [], []))
    attempt = Record.read(tmp_path).data["attempts"][0]
    assert (attempt["status"], attempt["wall_seconds"], attempt["ended_at"]) == (
        "failed",
        1800.0,
        "2026-01-01T10:30:00.000Z",
    )
    assert Record.read(tmp_path).data["status"] == "failed"


def test_pinned_memory_may_change_at_a_resume(tmp_path: Path) -> None:
    config = RunConfig()
    config.launcher.device, config.launcher.num_processes, config.launcher.omp_num_threads = "cuda", 2, 1
    config.precision.name, config.optimizer.owner, config.scheduler.owner = "fp32", "deepspeed", "client"
    config.zero.stage, config.offload.name, config.offload.optimizer = 3, "optimizer_cpu", "cpu"
    render.write(render.render(config, tmp_path, 10), tmp_path)
    pinned = engine_of(config).file_of_run(tmp_path)
    config.offload.pin_memory = False
    resume._render_anew(tmp_path, config)
    changed = engine_of(config).file_of_run(tmp_path)
    assert pinned is not None
    assert changed is not None
    places = [content["zero_optimization"]["offload_optimizer"] for content in (pinned, changed)]
    assert places == [{"device": "cpu", "pin_memory": True}, {"device": "cpu", "pin_memory": False}]
