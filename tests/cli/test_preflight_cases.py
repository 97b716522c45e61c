"""The cases of the checks before a run, as a user types them: nothing is started for a wrong request; what starts does
what was asked.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runner.engines.deepspeed import ops
from runner.paths import cache_dir
from tests.conftest import CASES, ROOT, SMALL, Result, cli_environment, command

SHORT = (*SMALL, "train.epochs=1", "train.max_steps=3", "scheduler.warmup_steps=0")
WITHOUT_DEEPSPEED = '''
import sys
import time
from importlib.machinery import PathFinder

class Without(PathFinder):
    """Finds everything but DeepSpeed, as on a machine where it is not installed."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] == "deepspeed" else super().find_spec(name, path, target)

    @classmethod
    def find_distributions(cls, *arguments, **options):
        all_of_them = super().find_distributions(*arguments, **options)
        return (found for found in all_of_them if (found.name or "").lower() != "deepspeed")

sys.meta_path[sys.meta_path.index(PathFinder)] = Without
'''


def without_deepspeed(folder: Path) -> dict[str, str | None]:
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(WITHOUT_DEEPSPEED)
    return {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}


@pytest.fixture(scope="module")
def ddp_in_bf16(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path, Path]:
    """One real run, for several cases: DDP in bf16 without DeepSpeed installed, an empty home, all caches in one
    folder.
    """
    folder = tmp_path_factory.mktemp("preflight")
    (folder / "home").mkdir()
    changes = {
        **without_deepspeed(folder / "site"),
        "HOME": str(folder / "home"),
        "XDG_CACHE_HOME": None,
        "HF_HOME": None,
        "HF_HUB_CACHE": "/nowhere/hub",
    }
    done = command(
        "launcher=ddp",
        "precision=bf16",
        f"cache_dir={folder}/cache",
        *SHORT,
        run_dir=folder / "run",
        env=changes,
        timeout=180,
    )
    return done, folder / "home", folder / "cache"


def test_ddp_runs_without_deepspeed(ddp_in_bf16):
    done, _, _ = ddp_in_bf16
    assert done.returncode == 0, done.text
    assert "deepspeed" not in done.record["versions"]
    assert done.record["optimizer_steps"] == 3


def test_the_record_holds_the_format_measured_in_the_step(ddp_in_bf16):
    observed = ddp_in_bf16[0].record["observed"]
    assert (observed["activation_dtype"], observed["parameter_dtype"]) == ("bfloat16", "float32")


def test_one_setting_moves_every_cache_and_home_stays_empty(ddp_in_bf16):
    done, home, cache = ddp_in_bf16
    assert done.returncode == 0, done.text
    assert not list(home.iterdir())
    assert {"features", "scans", "tmp"} <= {path.name for path in cache.iterdir()}


def test_the_record_says_where_assets_and_metrics_come_from(ddp_in_bf16):
    record = ddp_in_bf16[0].record
    assert record["assets"]["tokenizer"] == {"source": "bundled", "name": "deberta_tiny"}
    assert all(Path(name).is_absolute() for files in record["assets"]["data_set"]["files"].values() for name in files)
    assert set(record["metric_versions"]) == {"accuracy", "f1"}
    assert record["metric_versions"]["f1"].startswith("runner ")


def test_the_cache_is_listed_and_cleaned(ddp_in_bf16, run_cli, tmp_path: Path):
    """`cache clean` removes what the runner made, and nothing else."""
    cache = tmp_path / "cache"
    shutil.copytree(ddp_in_bf16[2], cache)
    (cache / "huggingface").mkdir(exist_ok=True)
    (cache / "huggingface" / "mine").write_text("x")
    listed = subprocess.run(
        [sys.executable, "-m", "runner", "cache", f"cache_dir={cache}"],
        capture_output=True,
        text=True,
        env=cli_environment(),
        cwd=ROOT,
        timeout=60,
    )
    assert "features: tokenised data: " in listed.stdout
    assert f"{cache}/huggingface/hub" in listed.stdout
    subprocess.run(
        [sys.executable, "-m", "runner", "cache", "clean", f"cache_dir={cache}"],
        check=True,
        capture_output=True,
        env=cli_environment(),
        cwd=ROOT,
        timeout=60,
    )
    assert not {"features", "scans", "torch_extensions", "tmp"} & {path.name for path in cache.iterdir()}
    assert (cache / "huggingface" / "mine").exists()
    wrong = subprocess.run(
        [sys.executable, "-m", "runner", "cache", "cleen"],
        capture_output=True,
        text=True,
        env=cli_environment(),
        cwd=ROOT,
        timeout=60,
    )
    assert wrong.returncode == 2


def test_deepspeed_is_refused_before_launch_and_rendered_all_the_same(run_cli, tmp_path: Path):
    environment = without_deepspeed(tmp_path / "site")
    done = run_cli(env=environment)
    assert done.returncode == 2
    assert (
        done.stderr
        == "error: launcher=deepspeed: DeepSpeed is not installed; pip install 'finetune-runner[deepspeed]', or use "
        "launcher=ddp\n"
    )
    assert not done.run_dir.exists()
    rendered = run_cli("render", env=environment)
    assert rendered.returncode == 0, rendered.text
    assert json.loads((rendered.run_dir / "ds_config.json").read_text())["zero_optimization"]["stage"] == 2


def test_without_compilers_and_cuda_the_default_run_works_and_offload_is_refused(run_cli, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    bare = {"PATH": str(tmp_path / "empty"), "CUDA_HOME": "/nonexistent"}
    refused = run_cli("offload=optimizer_cpu", env=bare)
    assert refused.returncode == 2
    assert "build cpu_adam, which needs g++ and ninja" in refused.stderr
    assert not refused.run_dir.exists()
    done = run_cli(*SHORT, env=bare, timeout=180)
    assert done.returncode == 0, done.text


def test_cuda_on_a_machine_without(run_cli):
    done = run_cli("launcher=ddp", "launcher.device=cuda", "launcher.num_processes=2", env={"RUNNER_DEVICES": "[]"})
    assert done.returncode == 2
    assert "no CUDA device visible" in done.stderr
    assert not done.run_dir.exists()


def test_fp16_on_a_cpu(run_cli):
    done = run_cli("launcher.device=cpu", "precision=fp16")
    assert done.returncode == 2
    assert "use precision=fp32 or precision=bf16" in done.stderr


def test_a_loss_that_is_not_finite_ends_the_run_in_words(run_cli):
    """Step, learning rate and rows; the record is JSON that any reader takes, with null for what is no number."""
    done = run_cli(
        "launcher=ddp",
        "precision=fp32",
        "optimizer.lr=1e30",
        "scheduler.warmup_steps=0",
        "scheduler=constant",
        *SMALL,
        "train.log_every=1",
        timeout=180,
    )
    assert done.returncode == 1
    assert done.record["status"] == "failed"
    for words in (
        "not finite for 5 steps in a row",
        "learning rate 1e+30",
        "precision fp32",
        "this rank had rows",
        "try optimizer.lr=1e+29",
    ):
        assert words in done.record["reason"], done.record["reason"]
    assert "Traceback" not in done.text

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    for name in ("record.json", "metrics.jsonl"):
        for line in (
            [(done.run_dir / name).read_text()]
            if name == "record.json"
            else (done.run_dir / name).read_text().splitlines()
        ):
            json.loads(line, parse_constant=refuse)
    assert done.steps[-1]["loss"] is None


@pytest.mark.soak  # compiles CPU Adam
def test_the_plan_names_the_cpu_optimizer_and_a_left_lock_is_removed(run_cli, tmp_path: Path):
    """Built once into the runner's cache (40 s on a fresh machine); a copy of it with a planted lock must not
    hang.
    """
    done = run_cli("offload=optimizer_cpu", *SHORT, timeout=280)
    assert done.returncode == 0, done.text
    assert "optimizer  DeepSpeedCPUAdam (offloaded states)" in done.stdout
    assert done.record["observed"]["optimizer_class"] == "deepspeed.DeepSpeedCPUAdam"
    environment = ops.extensions_dir(None, "cpu").name
    mine = tmp_path / "cache" / "torch_extensions" / environment
    shutil.copytree(cache_dir(None) / "torch_extensions" / environment / "cpu_adam", mine / "cpu_adam")
    (mine / "cpu_adam" / "lock").touch()
    again = run_cli(
        "offload=optimizer_cpu", f"cache_dir={tmp_path}/cache", *SHORT, run_dir=tmp_path / "again", timeout=120
    )
    assert again.returncode == 0, again.text
    assert f"removed    {mine}/cpu_adam/lock: left " in again.stdout
    assert "building" not in again.stdout


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ds_nvme_no_path.json", "offload.nvme_path: NVMe offload needs a folder"),
        ("ds_nvme_bad_path.json", "offload.nvme_path=/no/such/mount: there is no such folder"),
    ],
)
def test_nvme_in_a_users_json(name, words, run_cli):
    done = run_cli(f"launcher.config_file={CASES}/conf/{name}")
    assert done.returncode == 2
    assert words in done.stderr
    assert not done.run_dir.exists()


def test_nvme_as_typed(run_cli):
    stage = run_cli("offload=nvme", "zero_stage=2", f"offload.nvme_path={ROOT}")
    assert "ZeRO 3 only, this is ZeRO 2" in stage.stderr
    proc = run_cli("offload=nvme", "zero_stage=3", "offload.nvme_path=/proc")
    assert "offload.nvme_path=/proc: cannot be written to" in proc.stderr
    assert (stage.returncode, proc.returncode) == (2, 2)


def on_small_disk(mebibytes: int, folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The command with a small file system of its own at `folder`."""
    script = f'mount -t tmpfs -o size={mebibytes}m tmpfs "{folder}" && exec "$@"'
    typed = ["unshare", "-rm", "sh", "-c", script, "sh", sys.executable, "-m", "runner", *arguments]
    return subprocess.run(
        typed,
        capture_output=True,
        text=True,
        env=cli_environment(XDG_CACHE_HOME=None, HF_HOME=None, **variables),
        cwd=ROOT,
        timeout=60,
    )


def can_mount() -> bool:
    return (
        shutil.which("unshare") is not None
        and subprocess.run(["unshare", "-rm", "true"], capture_output=True, timeout=10).returncode == 0
    )


@pytest.mark.skipif(not can_mount(), reason="no private mounts here")
def test_small_disks_are_named_before_the_start(tmp_path: Path):
    """A home of 30 MiB: the warning names the volume. A run folder of 8 MiB: its checkpoints are refused, with the way
    on.
    """
    (tmp_path / "small").mkdir()
    home = on_small_disk(
        30, tmp_path / "small", "precision=fp16", f"hydra.run.dir={tmp_path}/run", HOME=str(tmp_path / "small")
    )
    assert f"MiB free on the volume {tmp_path}/small" in home.stderr
    assert "tokenised data and compiled ops" in home.stderr
    disk = on_small_disk(8, tmp_path / "small", "checkpoint.every_steps=10", f"hydra.run.dir={tmp_path}/small/run")
    assert disk.returncode == 2
    assert "3 checkpoints of about 4.2 MiB" in disk.stderr
    assert f"on the volume {tmp_path}/small" in disk.stderr


def test_errors_that_need_no_torch_import_none(tmp_path: Path):
    """Only the import state is asserted: seconds depend on the machine."""
    typed = [
        "precision=fp16",
        "offload=cpu",
        "zero_stage=2",
        "checkpoint.every_steps=5",
        f"hydra.run.dir={tmp_path}/run",
    ]
    heavy = ("torch", "transformers", "datasets", "deepspeed", "sklearn")
    script = (
        f"import sys; sys.argv = ['runner', *{typed!r}]; from runner.__main__ import main; code = main(); "
        f"print(code, [name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=cli_environment(), cwd=ROOT, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "2 []", done


def test_parameters_are_counted_once():
    """The estimate's parameters are the tensors of the file: tied weights stand there once.

    (`final_logits_bias` is a buffer.)
    """
    models = {"tiny-deberta-3labels": "encoder", "tiny-blenderbot-128": "seq2seq", "tiny-gpt2-nopad": "causal_lm"}
    script = """
import json, sys
from pathlib import Path
from safetensors import safe_open
from runner.memory.architecture import model_facts
from runner.memory.facts import Architecture
for name, family in json.loads(sys.argv[2]).items():
    folder = Path(sys.argv[1]) / name
    with safe_open(folder / "model.safetensors", "pt") as file:
        stored = sum(file.get_tensor(key).numel() for key in file.keys() if key != "final_logits_bias")
    architecture = Architecture.of(family, json.loads((folder / "config.json").read_text()), 3)
    print(name, model_facts(architecture).numel == stored > 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(CASES / "models"), json.dumps(models)],
        capture_output=True,
        text=True,
        env=cli_environment(),
        cwd=ROOT,
        timeout=120,
    )
    assert done.stdout.splitlines() == [f"{name} True" for name in models], done


@pytest.mark.soak
@pytest.mark.variant  # the build of async_io alone takes 9 CPU minutes
@pytest.mark.timeout(900)
@pytest.mark.skipif(bool(ops.lacking("async_io")), reason="libaio or a compiler is missing")
def test_nvme_for_real_leaves_nothing_behind(tmp_path: Path):
    """Two minutes for the first build of async_io; swap files above 1 MiB a rank are seen while it runs, and are gone
    after.
    """
    (tmp_path / "nvme").mkdir()
    model = (
        "model.config.hidden_size=1024",
        "model.config.intermediate_size=2048",
        "zero.stage3_param_persistence_threshold=0",
    )
    typed = ["zero_stage=3", "offload=nvme", f"offload.nvme_path={tmp_path}/nvme", "precision=bf16", *model, *SHORT]
    run = subprocess.Popen(
        [sys.executable, "-m", "runner", *typed, f"hydra.run.dir={tmp_path}/run"],
        env=cli_environment(),
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
    )
    swapped = 0
    try:
        while run.poll() is None:
            swapped = max(swapped, sum(1 for path in (tmp_path / "nvme").rglob("*") if path.suffix == ".swp"))
            time.sleep(0.2)
    finally:
        run.kill()
    assert run.returncode == 0
    assert swapped > 0
    assert not list((tmp_path / "nvme").iterdir())
    failed = command(
        *typed,
        "checkpoint.every_steps=2",
        run_dir=tmp_path / "failed",
        env={"RUNNER_FAULT": "error:forward:3"},
        timeout=180,
    )
    assert failed.returncode == 1, failed.text
    assert (tmp_path / "failed/checkpoints/step_00000002").is_dir()
    assert not list((tmp_path / "nvme").iterdir())
    refused = command("resume", str(tmp_path / "failed"), run_dir=tmp_path / "failed")
    assert refused.returncode == 2
    assert "restores an optimizer on NVMe wrongly" in refused.text
