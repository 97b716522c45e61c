"""The doctor tells the truth with and without GPU, network and compilers, quickly, and never imports torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from runner import diagnostics, machine
from runner.cli import doctor as verb
from runner.diagnostics import (
    check_compilers,
    check_devices,
    check_disks,
    check_interconnect,
    check_network,
    check_precision,
    check_versions,
)
from runner.machine import Finding

FAST_SECONDS = 10.0
TOPOLOGY = "        GPU0    GPU1    CPU Affinity\nGPU0     X      {link}    0-15\nGPU1    {link}     X      0-15\n"


@pytest.fixture(autouse=True)
def fresh_devices() -> Any:
    machine.installed_devices.cache_clear()
    yield
    machine.installed_devices.cache_clear()


def program(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def pretend_gpus(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], count: int = 1) -> None:
    devices = [
        {"index": i, "name": "Test GPU", "memory_bytes": 24 * 2**30, "compute_capability": capability}
        for i in range(count)
    ]
    monkeypatch.setenv(machine.DEVICES_VARIABLE, json.dumps(devices))


def find(findings: Any, words: str) -> Finding:
    matching = [finding for finding in findings if words in finding.text]
    assert len(matching) == 1, [finding.text for finding in findings]
    return matching[0]


def run(path: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "TRANSFORMERS_"))}
    environment |= {"PATH": str(path)} | variables
    code = (
        "import sys; from runner.cli.doctor import main; status = main(sys.argv[1:]); assert 'torch' not in "
        "sys.modules; sys.exit(status)"
    )
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.alone
def test_without_compilers_gpu_and_network(tmp_path: Path) -> None:
    """PATH is empty, so g++, ninja, nvcc and nvidia-smi are absent; the endpoint is a port nobody listens on."""
    started = time.perf_counter()
    done = run(
        tmp_path,
        "--json",
        HF_ENDPOINT="http://127.0.0.1:9",
        XDG_CACHE_HOME=str(tmp_path),
        TORCH_EXTENSIONS_DIR=str(tmp_path),
    )
    assert time.perf_counter() - started < FAST_SECONDS
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    texts = "\n".join(finding["text"] for finding in answer["findings"])
    assert answer["problems"] == 0
    for true in (
        "none found; not on PATH: g++, ninja, nvcc",
        "no GPU found",
        "the hub cannot be reached",
        "can be built: none",
        "fp32; bf16",
    ):
        assert true in texts
    lacking = [finding for finding in answer["findings"] if "cannot be built" in finding["text"]]
    assert {finding["text"].split()[0] for finding in lacking} == {"cpu_adam", "async_io"}
    assert all(finding["fix"].startswith("apt install g++ ninja-build") for finding in lacking)


def test_one_screen_with_problems_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    findings = [
        Finding("problem", "disk", "no room", "make room"),
        Finding("warning", "network", "no hub"),
        Finding("ok", "machine", "2 cores"),
    ]
    monkeypatch.setattr(diagnostics, "CHECKS", [lambda each=each: iter([each]) for each in reversed(findings)])
    assert verb.main([]) == 1
    printed = capsys.readouterr().out
    assert printed.index("no room") < printed.index("make room") < printed.index("no hub") < printed.index("2 cores")
    assert "would be stopped" in printed


def test_warnings_alone_end_with_0(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(diagnostics, "CHECKS", [lambda: iter([Finding("warning", "network", "no hub")])])
    assert verb.main(["--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "problems": 0,
        "warnings": 1,
        "findings": [{"level": "warning", "topic": "network", "text": "no hub", "fix": ""}],
    }


def test_a_check_that_breaks_is_reported_and_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def check_broken() -> Any:
        raise OSError("no such thing")

    monkeypatch.setattr(diagnostics, "CHECKS", [check_broken, lambda: iter([Finding("ok", "machine", "here")])])
    assert [(finding.level, finding.topic) for finding in diagnostics.examine()] == [
        ("warning", "broken"),
        ("ok", "machine"),
    ]


def test_missing_and_conflicting_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = dict.fromkeys(diagnostics.NEEDED, "1.0") | {"torch": None, "omegaconf": "2.4.0"}
    monkeypatch.setattr(diagnostics, "version_of", versions.get)
    requirements = {"hydra-core": ["omegaconf>=2.2,<2.4", "tokenizers>=9; extra == 'never'"]}
    monkeypatch.setattr(diagnostics.importlib.metadata, "requires", requirements.get)
    findings = list(check_versions())
    assert find(findings, "not installed: torch").level == "problem"
    assert find(findings, "hydra-core 1.0 asks for omegaconf<2.4,>=2.2, 2.4.0 is installed").level == "warning"
    assert sum(finding.level == "warning" for finding in findings) == 1


def test_a_gpu_with_a_cpu_build_of_torch_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpus(monkeypatch, (8, 0))
    monkeypatch.setattr(machine, "torch_cuda", lambda: None)
    findings = list(check_devices())
    assert find(findings, "Test GPU (24 GiB)").level == "ok"
    assert find(findings, "CPU build").level == "problem"


@pytest.mark.parametrize(("driver", "problems"), [("11.8", 1), ("12.8", 0), ("13.0", 0)])
def test_a_driver_older_than_torchs_cuda_is_a_problem(
    driver: str, problems: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_gpus(monkeypatch, (8, 0))
    monkeypatch.setattr(machine, "torch_cuda", lambda: "12.6")
    monkeypatch.setattr(diagnostics, "ask", lambda *command: f"| Driver Version: 550   CUDA Version: {driver} |")
    assert sum(finding.level == "problem" for finding in check_devices()) == problems


def test_hidden_gpus_are_named_so(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpus(monkeypatch, (8, 0))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert find(check_devices(), "CUDA_VISIBLE_DEVICES hides the GPUs").level == "ok"


@pytest.mark.parametrize(
    ("capability", "words"), [((8, 0), "fp16 and bf16"), ((7, 5), "bf16 needs compute capability 8.0")]
)
def test_precision_of_gpus(capability: tuple[int, int], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpus(monkeypatch, capability)
    assert find(check_precision(), words).level == "ok"


@pytest.mark.parametrize(
    ("flags", "words"),
    [({"avx512_bf16"}, "native instructions (avx512_bf16); fp16 needs a GPU"), (set(), "emulated and slow")],
)
def test_precision_of_cpus(flags: set[str], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(machine.DEVICES_VARIABLE, "[]")
    monkeypatch.setattr(diagnostics, "_cpu_flags", lambda: flags)
    assert find(check_precision(), words).level == "ok"


@pytest.mark.parametrize(("link", "words"), [("NV12", "linked by NV12"), ("PHB", "no NVLink")])
def test_interconnect_is_read_from_the_topology(
    link: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_gpus(monkeypatch, (8, 0), count=2)
    program(tmp_path, "nvidia-smi", f"cat <<'END'\n{TOPOLOGY.format(link=link)}END")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert words in find(check_interconnect(), "linked by").text


def test_ops_built_and_locks_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiled op is named; a lock older than any build is to be removed, a young one is a build at work."""
    for name in ("cpu_adam", "old", "young"):
        (tmp_path / name).mkdir()
    (tmp_path / "cpu_adam" / "cpu_adam.so").touch()
    for name in ("old", "young"):
        (tmp_path / name / "lock").touch()
    os.utime(tmp_path / "old" / "lock", (time.time() - 7200,) * 2)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    findings = list(check_compilers())
    assert "already built: cpu_adam" in find(findings, "can be built").text
    assert find(findings, "killed").fix == f"rm {tmp_path}/old/lock"
    assert not any("cpu_adam cannot" in finding.text for finding in findings)


def test_compilers_that_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("g++", "ninja"):
        program(tmp_path, name, "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "none"))
    findings = list(check_compilers())
    assert find(findings, "found g++, ninja; not on PATH: nvcc").level == "ok"
    assert "cpu_adam" in find(findings, "can be built: ").text


def test_a_full_disk_is_a_problem_and_a_small_root_disk_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from collections import namedtuple

    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(diagnostics.shutil, "disk_usage", lambda path: usage(50 * 2**30, 0, 2**20))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    findings = list(check_disks())
    assert find(findings, "less than 1 GiB").level == "problem"
    cache = find(findings, "HF_HOME is")
    assert cache.level == "warning"
    assert cache.fix.startswith("export HF_HOME=")


def test_offline_mode_makes_no_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    from runner.preflight import assets

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(assets, "hub_reachable", lambda *_: pytest.fail("a connection was tried"))
    assert find(check_network(), "no connection is tried").level == "ok"


def test_a_name_lookup_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from runner.preflight import assets

    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(diagnostics, "HUB_TIMEOUT_SECONDS", 0.2)
    monkeypatch.setattr(assets, "hub_reachable", lambda *_: time.sleep(5))
    started = time.perf_counter()
    assert find(check_network(), "cannot be reached").fix.startswith("export HF_HUB_OFFLINE=1")
    assert time.perf_counter() - started < 2
