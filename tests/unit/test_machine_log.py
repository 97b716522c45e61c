"""What `system.jsonl` says of a run's machine: means, energy, curves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runner.monitors.system_log import SYSTEM_FILE
from runner.report.machine import SYSTEM_NAME, energy_wh, machine_line, read_moments

GIB = 2**30


def write(folder: Path, *lines: object) -> Path:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    (folder / SYSTEM_NAME).write_text("\n".join(texts) + "\n")
    return folder


def line(seconds: float, cpu: float, gib: float, *gpus: tuple[float, float]) -> dict[str, object]:
    told = {str(i): {"utilization_percent": used, "power_watts": watts} for i, (used, watts) in enumerate(gpus)}
    return {"elapsed_seconds": seconds, "cpu_percent": cpu, "host_memory_bytes": gib * GIB} | (
        {"gpu": told} if told else {}
    )


def test_the_name_is_the_monitors() -> None:
    assert SYSTEM_NAME == SYSTEM_FILE


def test_means_and_energy_of_two_gpus(tmp_path: Path) -> None:
    """0–10 s from 300 W to 500 W, 10–40 s at 500 W: 4,000 + 15,000 Ws = 19,000 / 3600 = 5.28 Wh."""
    write(
        tmp_path,
        line(0, 20, 3, (80, 100), (100, 200)),
        line(10, 40, 5, (100, 250), (100, 250)),
        line(40, 60, 4, (90, 250), (70, 250)),
    )
    assert energy_wh(read_moments(tmp_path)) == pytest.approx(19_000 / 3600)
    # (90 + 100 + 80) / 3
    assert machine_line(tmp_path) == "CPU 40 % used, host memory at most 5.0 GiB; 2 GPUs 90 % used, 5.3 Wh"


def test_the_pause_between_two_attempts_costs_no_energy(tmp_path: Path) -> None:
    write(
        tmp_path, line(0, 1, 1, (1, 360)), line(10, 1, 1, (1, 360)), line(2, 1, 1, (1, 360)), line(12, 1, 1, (1, 360))
    )
    assert energy_wh(read_moments(tmp_path)) == pytest.approx(2.0)  # twice 10 s at 360 W


def test_without_gpus_and_with_damaged_lines(tmp_path: Path) -> None:
    write(tmp_path, line(2, 50, 2), "{cut", [1], {"elapsed_seconds": "x"}, line(7, 70, 1))
    assert machine_line(tmp_path) == "CPU 60 % used, host memory at most 2.0 GiB"
    assert [moment.gpu_percent for moment in read_moments(tmp_path)] == [None, None]
    assert energy_wh(read_moments(tmp_path)) is None


def test_without_a_log_nothing_is_said(tmp_path: Path) -> None:
    assert machine_line(tmp_path) is None
