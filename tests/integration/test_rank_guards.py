"""Ranks that do not work together are noticed: the guard itself, on real gloo processes."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT, cli_environment

DIFFERENT_PARAMETERS = """
import sys, torch, torch.multiprocessing as mp

import os

def rank(index, port):
    rendezvous = {"RANK": str(index), "LOCAL_RANK": str(index), "WORLD_SIZE": "2"}
    rendezvous |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    os.environ |= rendezvous | {"ACCELERATE_USE_CPU": "true"}
    from runner.config.schema import RunConfig
    from runner.engines.rank import RankError, rank_engine_of
    from runner.train.ranks import RankPlace, check_equal_parameters
    config = RunConfig.model_validate({"launcher": {"name": "ddp", "device": "cpu", "num_processes": 2}})
    engine = rank_engine_of(config)
    place, accelerator = RankPlace.of(config, engine), engine.accelerator
    model = torch.nn.Linear(2, 2, bias=False)
    torch.nn.init.constant_(model.weight, 1.0)
    equal = check_equal_parameters(place, engine, model, "before")
    assert equal == [[4.0, 4.0], [4.0, 4.0]], equal
    torch.nn.init.constant_(model.weight, 1.0 + index)
    try:
        check_equal_parameters(place, engine, model, "after")
    except RankError as error:
        os.write(1, f"CAUGHT {index} {error}\\n".encode())  # one write: both processes share the pipe
    accelerator.wait_for_everyone()
    accelerator.end_training()
    os._exit(0)  # a thread of gloo now and then aborts an interpreter that winds down

if __name__ == "__main__":
    mp.spawn(rank, (int(sys.argv[1]),), nprocs=2)
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])


def test_different_parameters_are_noticed_on_both_ranks(tmp_path: Path):
    script = tmp_path / "two_ranks.py"
    script.write_text(DIFFERENT_PARAMETERS)
    done = subprocess.run(
        [sys.executable, str(script), str(free_port())],
        capture_output=True,
        text=True,
        timeout=120,
        env=cli_environment(OMP_NUM_THREADS="1"),
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(line.split()[1] for line in done.stdout.splitlines() if line.startswith("CAUGHT")) == ["0", "1"]


def test_a_rank_alone_is_refused(tmp_path: Path, run_cli):
    """Two ranks asked for, one started: the naive mistake behind silently separate models."""
    rendered = run_cli("render", "launcher=ddp", run_dir=tmp_path / "run")
    assert rendered.returncode == 0, rendered.text
    done = subprocess.run(
        [sys.executable, "-m", "runner.train.worker", str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=120,
        env=cli_environment(),
        cwd=ROOT,
    )
    assert done.returncode == 1
    assert "asked for 2 ranks, accelerate sees 1, torch sees 1" in done.stderr


def test_foreign_environment_and_default_config_change_nothing(tmp_path: Path, run_cli):
    """Another project's accelerate file and variables are left out, and the file is named."""
    home = tmp_path / "hf"
    (home / "accelerate").mkdir(parents=True)
    (home / "accelerate" / "default_config.yaml").write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nmixed_precision: fp16\nnum_processes: "
        "5\nfsdp_config: {fsdp_sharding_strategy: FULL_SHARD}\n"
    )
    foreign = {
        "HF_HOME": str(home),
        "ACCELERATE_MIXED_PRECISION": "fp16",
        "ACCELERATE_USE_FSDP": "true",
        "RANK": "7",
        "MASTER_PORT": "1",
    }
    done = run_cli(
        "launcher=ddp",
        "launcher.num_processes=1",
        "precision=fp32",
        "train.max_steps=2",
        "dataset.max_train_rows=64",
        "dataset.max_validation_rows=8",
        "train.save_model=false",
        env=foreign,
    )
    assert done.returncode == 0, done.text
    assert f"ignored: {home}/accelerate/default_config.yaml" in done.text
    observed = done.record["observed"]
    assert (observed["world_size"], observed["parameter_dtype"], observed["activation_dtype"]) == (
        1,
        "float32",
        "float32",
    )
    assert json.dumps(done.record).count("FSDP") == 0
