"""Private names and patches of libraries: these fail when an installed library is no longer what was checked."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import pkgutil
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

import runner.compat
from tests.conftest import ROOT, cli_environment

ON_SPARK = ("spark_slots",)  # pyspark is installed by `make test-spark` only
MODULES = [
    pytest.param(found.name, marks=pytest.mark.spark) if found.name in ON_SPARK else found.name
    for found in sorted(pkgutil.iter_modules(runner.compat.__path__))
]


@pytest.mark.parametrize("name", MODULES)
def test_the_installed_libraries_are_the_ones_that_were_checked(name: str) -> None:
    module = importlib.import_module(f"runner.compat.{name}")
    assert module.__doc__
    assert module.CHECKED
    for package, versions in module.CHECKED.items():
        assert SpecifierSet(versions).contains(version(package)), f"check runner/compat/{name}.py with {package}"


def test_accelerate_gives_the_variables_of_its_own_launcher(tmp_path: Path) -> None:
    """The same file through `accelerate launch` itself: every variable that it sets has the same value here."""
    file = tmp_path / "accelerate.yaml"
    file.write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nnum_processes: 2\n"
        "num_machines: 1\nmachine_rank: 0\nmixed_precision: bf16\nmain_process_port: 0\n"
    )
    script = tmp_path / "show.py"
    # One rank answers: two would write into each other's lines.
    script.write_text("import json, os\nif os.environ['RANK'] == '0':\n    print(json.dumps(dict(os.environ)))")
    done = subprocess.run(
        [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(file), str(script)],
        env=cli_environment(),
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    from runner.compat.accelerate_launch import rank_variables

    launched = json.loads(done.stdout.splitlines()[0])
    ours = rank_variables(file, "show")
    names = {name for name in launched if name.startswith("ACCELERATE_")}
    assert "ACCELERATE_MIXED_PRECISION" in names
    assert {name: ours[name] for name in names} == {name: launched[name] for name in names}


def test_hydra_multiplies_values_in_its_own_order() -> None:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    from runner.compat.hydra_plugins import combinations

    parsed = OverridesParser.create().parse_overrides(["a=1,2", "b=x,y", "c=3"])
    assert combinations(parsed) == [
        [["a=1", "b=x", "c=3"], ["a=1", "b=y", "c=3"], ["a=2", "b=x", "c=3"], ["a=2", "b=y", "c=3"]]
    ]


def test_an_import_is_put_off_until_the_function_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from runner.compat.lazy_import import imported_when_called

    (tmp_path / "heavy_module.py").write_text("def double(x):\n    return 2 * x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with imported_when_called("heavy_module", "double"):
        from heavy_module import double  # type: ignore[import-not-found]
    assert "heavy_module" not in sys.modules
    assert double(4) == 8
    assert sys.modules["heavy_module"].double is not double


def test_libraries_still_import_what_is_put_off() -> None:
    """The stand-ins in runner/launch/preload.py are worth nothing where the libraries import otherwise."""
    transformers = Path(importlib.util.find_spec("transformers").origin).parent  # type: ignore[union-attr, arg-type]
    evaluate = Path(importlib.util.find_spec("evaluate").origin).parent  # type: ignore[union-attr, arg-type]
    assert any(
        "from scipy.optimize import linear_sum_assignment" in file.read_text()
        for file in (transformers / "loss").glob("*.py")
    )
    assert "from scipy.stats import bootstrap" in (evaluate / "evaluator" / "base.py").read_text()


def test_an_op_is_left_out_and_another_is_handed_over() -> None:
    """What DeepSpeed's own builders answer after it, in a process of its own."""
    code = """
import types
from runner.compat.deepspeed_ops import SHARED_MEMORY_OP, leave_out_shared_memory_op, use_loaded
import deepspeed.ops
leave_out_shared_memory_op()
assert deepspeed.ops.__compatible_ops__[SHARED_MEMORY_OP] is False
from deepspeed.ops.op_builder.builder import OpBuilder
from deepspeed.ops.op_builder.cpu import CPUAdamBuilder
built = types.ModuleType("cpu_adam")
use_loaded("cpu_adam", built)
assert CPUAdamBuilder().load(verbose=False) is built
"""
    _in_a_process(code)


def test_the_muon_optimizer_is_imported_without_the_compiler() -> None:
    code = """
import sys, torch
from runner.compat.deepspeed_muon import MUON, import_muon
compiler = torch.compile
import_muon()
assert MUON in sys.modules and torch.compile is compiler
assert "torch._inductor.compile_fx" not in sys.modules
"""
    _in_a_process(code)


def test_transformers_forgets_and_remembers_zero_3() -> None:
    code = """
from transformers.integrations import deepspeed as integration
from runner.compat.transformers_zero3 import not_partitioned_at_construction
known = integration.HfDeepSpeedConfig({"zero_optimization": {"stage": 3}})
assert integration.is_deepspeed_zero3_enabled()
with not_partitioned_at_construction():
    assert not integration.is_deepspeed_zero3_enabled()
assert integration.is_deepspeed_zero3_enabled()
"""
    _in_a_process(code)


def test_unfused_attention_is_attention() -> None:
    """One query over two keys with equal scores: the mean of the values."""
    code = """
import torch
from runner.compat.torch_attention import unfused_attention
query, key = torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 2, 2)
value = torch.tensor([[[[1.0, 3.0], [3.0, 5.0]]]])
assert unfused_attention(query, key, value, None, 0.0).tolist() == [[[[2.0, 4.0]]]]
"""
    _in_a_process(code)


def test_a_checkpoint_is_saved_without_a_script_and_loaded_in_either_form() -> None:
    """The two private names are still what the engine's own methods use."""
    code = """
import inspect, torch
from deepspeed.runtime.config import DeepSpeedConfig
from deepspeed.runtime.engine import DeepSpeedEngine
from runner.compat.deepspeed_checkpoint import reading_universal, without_recovery_script
assert "self._config.load_universal_checkpoint" in inspect.getsource(DeepSpeedEngine.load_universal_checkpoint)
saving = [found for name, found in vars(DeepSpeedEngine).items() if "save" in name and callable(found)]
assert any("self._copy_recovery_script(" in inspect.getsource(found) for found in saving)
engine = DeepSpeedEngine.__new__(DeepSpeedEngine)
torch.nn.Module.__init__(engine)
vars(engine)["_config"] = DeepSpeedConfig({"train_batch_size": 1})
before = engine._copy_recovery_script
with without_recovery_script(engine):
    assert engine._copy_recovery_script("nowhere") is None
assert engine._copy_recovery_script == before
assert engine.load_universal_checkpoint() is False
with reading_universal(engine, True):
    assert engine.load_universal_checkpoint() is True
assert engine.load_universal_checkpoint() is False
"""
    _in_a_process(code)


def test_a_storage_is_known_again_without_memory() -> None:
    """Views share it, another tensor does not; on the meta device both have the address 0."""
    code = """
import torch
from runner.compat.torch_storage import storage_identity
whole, other = torch.empty(4, 2, device="meta"), torch.empty(4, 2, device="meta")
assert whole.data_ptr() == other.data_ptr() == 0
assert storage_identity(whole) == storage_identity(whole[1:].t())
assert storage_identity(whole) != storage_identity(other)
"""
    _in_a_process(code)


def test_a_data_sets_fingerprint_follows_its_content() -> None:
    code = """
from datasets import Dataset
from runner.compat.datasets_fingerprint import fingerprint
rows = Dataset.from_dict({"text": ["a", "b"]})
assert isinstance(fingerprint(rows), str) and len(fingerprint(rows)) >= 16
assert fingerprint(rows) == fingerprint(Dataset.from_dict({"text": ["a", "b"]}))
assert fingerprint(rows) != fingerprint(Dataset.from_dict({"text": ["a", "c"]}))
"""
    _in_a_process(code)


def _in_a_process(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=cli_environment(DS_ACCELERATOR="cpu"),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def private_uses(path: Path) -> list[str]:
    """`thing._name` of anything but `self` and `cls`, and imports of private modules or names of libraries, in one
    file.
    """
    where, found = path.relative_to(ROOT), []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and not node.module.startswith("runner"):
            parts = [*node.module.split("."), *(alias.name for alias in node.names)]
            if node.module != "__future__" and any(part.startswith("_") for part in parts):
                found.append(f"{where}:{node.lineno}: {'.'.join(parts)}")
        if isinstance(node, ast.Attribute) and re.fullmatch(
            "_[^_].*[^_]", node.attr
        ):  # `_target_` is Hydra's documented key
            written = ast.unparse(node)
            if written not in (f"self.{node.attr}", f"cls.{node.attr}", "os._exit"):
                found.append(f"{where}:{node.lineno}: {written}")
    return found


def test_groups_that_a_library_made_take_the_long_timeout() -> None:
    """A process of one rank: a group made as DeepSpeed makes it has torch's 30 minutes (gloo) until it is changed."""
    code = (
        "import torch, torch.distributed as dist\n"
        "from datetime import timedelta\n"
        "from runner.compat.torch_group_timeouts import set_timeouts\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1, timeout=timedelta(hours=2))\n"
        "options = dist.new_group([0])._get_backend(torch.device('cpu')).options\n"
        "before = options._timeout\n"
        "print(before, set_timeouts(timedelta(hours=3)), options._timeout)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.stdout.split() == ["0:30:00", "2", "3:00:00"], done.stderr
