"""Mistakes in a request: exit status 2, one line each, no traceback, nothing started, nothing left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import CASES, ROOT, cli_environment, command

MISTAKES = {  # what is typed → what the answer must name
    ("mdoel=tiny",): ["mdoel=tiny", "did you mean model="],
    ("model=tinyy",): ["model=tinyy", "deberta_xl", "bert_base"],
    ("train.learning_rat=1e-4",): ["train.learning_rat", "optimizer.lr=1e-4"],
    ("+train.learning_rat=1e-4",): ["+train.learning_rat", "no part of the runner reads this key"],
    ("model.name=x",): ["model.name=x", "use model=x"],
    ("zero_stage=5",): ["zero_stage=5", "0, 1, 2, 3"],
    ("launcher=deepseed",): ["launcher=deepseed", "use launcher=deepspeed"],
    ("train=3",): ["train=3", "train.epochs"],
    ("launcher=ddp", "zero_stage=2"): ["zero_stage=2", "use launcher=deepspeed zero_stage=2"],
    ("launcher=ddp", "offload=cpu"): ["offload=cpu", "launcher=deepspeed"],
    ("launcher=ddp", "optimizer.owner=deepspeed"): ["optimizer.owner=deepspeed", "optimizer.owner=client"],
    ("zero_stage=2", "offload=cpu"): ["offload=cpu", "ZeRO 3", "zero_stage=3"],
    ("zero_stage=0", "offload=optimizer_cpu"): ["offload=optimizer_cpu", "zero_stage=2"],
    ("precision=bf16", "precision.loss_scale=128"): ["precision.loss_scale=128", "precision=fp16"],
    ("zero_stage=2", "zero.stage3_param_persistence_threshold=0"): [
        "zero.stage3_param_persistence_threshold=0",
        "zero_stage=3",
    ],
    ("offload.nvme_path=/x",): ["offload.nvme_path=/x", "offload=nvme"],
    ("scheduler=cosine", "scheduler.owner=deepspeed"): ["scheduler.owner=deepspeed", "scheduler.owner=client"],
    ("scheduler.owner=deepspeed", "scheduler.warmup_steps=1"): ["scheduler.owner", "scheduler.owner=client"],
    ("train.epochs=0",): ["train.epochs=0", "greater than or equal to 1"],
    ("train.seed=x",): ["train.seed=x", "integer"],
    ("optimizer.lr=fast",): ["optimizer.lr=fast", "number"],
    ("train.global_batch_size=10", "train.micro_batch_size=4"): [
        "train.global_batch_size=10",
        "4 × 2 ranks = 8",
        "train.global_batch_size=8",
    ],
    ("train.global_batch_size=64", "train.micro_batch_size=4", "train.gradient_accumulation_steps=2"): [
        "train.global_batch_size=64",
        "= 16",
    ],
    ("model=bert_base", "task.max_length=4096"): ["task.max_length=4096", "512 positions", "task.max_length=512"],
    ("task.max_lenght=64",): ["task.max_lenght", "max_length"],
    ("model=gpt2_tiny",): ["model=gpt2_tiny", "causal_lm", "recipe=gpt2_wikitext"],
    ("dataset=files",): ["dataset.train=FILE", "dataset.validation=FILE"],
    ("dataset=files", "dataset.train=nowhere.csv", "dataset.validation=nowhere.csv"): ["no such file", "nowhere.csv"],
    ("launcher.config_file=nowhere.json",): ["launcher.config_file=nowhere.json", "cannot be read"],
    ("note=a,b",): ["note=a,b", "add -m"],
    ("note=李明",): ["note=李明", "'note=\"李明\"'"],
    ("~train.max_steps",): ["~train.max_steps", "train.max_steps=null"],
    ("method=ddp",): ["method=ddp", "+method=ddp"],
    ("+method=ddp", "launcher=deepspeed"): ["launcher=deepspeed", "+method=ddp chooses it too"],
    ("mode=evaluate", "train.epochs=4", "optimizer.lr=1e-3", "scheduler=cosine"): [
        "train.epochs",
        "optimizer.lr",
        "error: scheduler:",
        "nothing is trained under mode=evaluate",
    ],
    ("mode=evaluate", "checkpoint.every_steps=4"): [
        "checkpoint.every_steps=4",
        "nothing is trained under mode=evaluate",
    ],
    ("optimizer.fused=true", "offload=optimizer_cpu"): [
        "optimizer.fused=True",
        "DeepSpeed's CPU Adam",
        "offload.force_cpu_adam=false",
    ],
    ("optimizer.fused=maybe",): ["optimizer.fused=maybe"],
    ("model.config.hidden_size=7", "model.tokenizer=bundled:nope"): [
        "bundled:nope",
        "model.tokenizer=bundled:deberta_tiny",
        "num_attention_heads=4",
        "hidden_size=7",
    ],
    ("model.tokenizer=bundled:deberta_tni",): ["did you mean model.tokenizer=bundled:deberta_tiny?"],
    ("model.config.hidden_size=abc", "model.config.vocab_size=-5", "model.config.num_hidden_layers=0"): [
        "a whole number",
        "vocab_size=-5",
        "num_hidden_layers=0",
        "at least 1",
    ],
    ("model.config.num_attention_heads=3",): [
        "num_attention_heads=3",
        "hidden_size=128",
        "use model.config.num_attention_heads=2",
    ],
    ("model.config.model_type=nope",): ["model_type=nope", "no such model type"],
    ("model.config.model_type=vit",): ["model_type=vit", "AutoModelForSequenceClassification"],
    ("model.config.hidden_sise=7", "model.config.foo=7"): [
        "did you mean model.config.hidden_size?",
        "foo=7",
        "remove it",
    ],
    ("model.config.hidden_act=gelo", "model.config.hidden_dropout_prob=2"): [
        "model.config.hidden_act=gelu?",
        "between 0 and 1",
    ],
    ("recipe=gpt2_wikitext", "model=gpt2_tiny", "model.config.n_head=3"): ["n_head=3", "n_embd=128"],
    ("recipe=blenderbot_mudoconv", "model=blenderbot_tiny", "model.config.decoder_attention_heads=3"): [
        "decoder_attention_heads=3",
        "d_model=128",
    ],
    ("optimizer.betas=[0.9]",): ["optimizer.betas", "optimizer.betas=[0.9,0.999]"],
    ("optimizer.lr=inf", "optimizer.weight_decay=1e400", "train.gradient_clipping=inf"): [
        "optimizer.lr=inf: input should be a finite number",
        "optimizer.weight_decay=inf: input should be a finite number",
        "train.gradient_clipping=inf: input should be a finite number",
    ],
    ("optimizer.betas=[nan,0.999]",): ["optimizer.betas=nan"],
    ("optimizer.betas=[0.9,1]",): ["optimizer.betas=1: input should be less than 1"],
    ("launcher.omp_num_threads=-3", "launcher.num_processes=1025"): [
        "launcher.omp_num_threads=-3: input should be greater than or equal to 1",
        "less than or equal to 1024",
    ],
    ("launcher.num_processes=1e100", "train.epochs=1e100"): [
        "launcher.num_processes=1e+100: input should fit in 64 bits",
        "train.epochs=1e+100: input should fit in 64 bits",
    ],
    ("train.epochs=true", "optimizer.lr=true"): [
        "train.epochs=True: input should be a number, not true or false",
        "optimizer.lr=True",
    ],
    ("task.max_length=true",): ["task.max_length=True: input should be a number, not true or false"],
    ("model.config.hidden_dropout_prob=inf",): [
        "model.config.hidden_dropout_prob=inf: input should be a finite number"
    ],
    ("note=1.5", "model.revision=true"): ["note=1.5", "'note=\"…\"'", "'model.revision=\"…\"'"],
    ("launcher=[ddp,deepspeed]", "model=[]", "zero_stage=[2]", "offload=null", "optimizer={lr:1}"): [
        "launcher=[ddp,deepspeed]: one option is chosen from a group; launcher has ddp, deepspeed, fsdp; use "
        "launcher=OPTION, or -m launcher=ddp,deepspeed",
        "model=[]: one option",
        "zero_stage=[2]: one option",
        "offload=null: one option",
        "optimizer={lr:1}: one option",
    ],
    ("hydra=3", "hydra.verbose=true", "hydra.run={dir:x}"): [
        "hydra=3: no part",
        "hydra.verbose=true: no part",
        "hydra.run={dir:x}: no part",
        "hydra.run.dir",
    ],
    ("hydra.sweeper.params={a:1}", "hydra.sweep.dir=x"): [
        "hydra.sweeper.params={a:1}: this has no effect: only a multirun reads it",
        "hydra.sweep.dir=x: this has no effect",
    ],
    ("+train={epochs:2}",): ["train={epochs:2}: this is a section", "train.epochs"],
    ("note=${nope",): ["note=${nope: this reference cannot be read", "'note=\"\\${nope\"'"],
    ('note="${nope"',): ["note=${nope: this reference cannot be read", "'note=\"\\${nope\"'"],
    ("train..epochs=2", "train.epochs:=2"): [
        "train..epochs=2: this is no name of a key",
        "train.epochs:=2: this is no name",
        "did you mean train.epochs=2?",
    ],
    ("model=BERT_base",): ["use model=bert_base"],
    ("dataset=files", "dataset.train=tests/unit", "dataset.validation=conf"): [
        ": this is a folder, not a file: ",
        "dataset.validation=",
    ],
    ("train.epochs=range(3,1)", "train.seed=range(1,3,0)", "train.log_every=range(1,1e9)"): [
        "train.epochs=range(3,1): this range is empty",
        "train.seed=range(1,3,0): the step of a range cannot be 0",
        "train.log_every=range(1,1e9): this range has more than 10000 values",
    ],
    ("recipe.file=/etc/passwd",): ["recipe.file=/etc/passwd", "its name ends in .py"],
}


@pytest.mark.parametrize("typed", list(MISTAKES), ids=" ".join)
def test_a_mistake_is_named_and_nothing_is_started(typed, tmp_path: Path, capsys, monkeypatch):
    from runner.__main__ import answer

    monkeypatch.chdir(ROOT)
    code = answer("render", [*typed, f'hydra.run.dir="{tmp_path}/run"'])
    said = capsys.readouterr()
    assert code == 2, said
    for part in MISTAKES[typed]:
        assert part in said.err
    assert all(line.startswith(("error:", "warning:", "notice:")) for line in said.err.splitlines())
    assert "Traceback" not in said.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("typed", "key", "value"),
    [
        ("note=42", "note", "42"),
        ("launcher.gpu_ids=0", "launcher.gpu_ids", "0"),
        ("fit.memory_budget=25769803776", "fit.memory_budget", "25769803776"),
        ("dataset.label_names=[0,1]", "dataset.label_names", ["0", "1"]),
        ("dataset.columns.label=3", "dataset.columns", {"label": "3"}),
        ("dataset.train=2024", "dataset.train", "2024"),
    ],
)
def test_an_integer_where_text_is_meant_is_that_text(typed, key, value):
    from runner.compose import compose_run

    node = compose_run([typed]).config.model_dump()
    for name in key.split("."):
        node = node[name]
    assert node == value


def test_all_mistakes_come_at_once(run_cli):
    done = run_cli("mdoel=tiny", "zero_stage=5", "train.sed=1")
    assert done.returncode == 2
    assert [line.split(":")[1].strip() for line in done.stderr.splitlines()] == [
        "mdoel=tiny",
        "zero_stage=5",
        "train.sed=1",
    ]


@pytest.mark.parametrize(
    ("typed", "reported"),
    [
        # Syntax, names and values; nothing of the model, which may be another one.
        ("note=a=b mdoel=x train.epochs=0", ["note=a=b", "mdoel=x", "train.epochs=0"]),
        ("zero_stage=9 train.epochs=0 optimizer.lr=-1", ["zero_stage=9", "train.epochs=0", "optimizer.lr=-1"]),
        # Values and contradictions between other keys.
        (
            "train.epochs=0 launcher=ddp zero_stage=2 dataset=files",
            ["train.epochs=0", "dataset.train", "dataset.validation", "zero_stage=2"],
        ),
        ("note=a=b launcher=ddp offload=cpu", ["note=a=b", "offload=cpu"]),
        ("optimizer.lr=0 model=gpt2_tiny", ["optimizer.lr=0", "model=gpt2_tiny"]),
        # What might follow from the mistake is not reported: the recipe fits the model that was meant.
        ("mdoel=gpt2_tiny recipe=gpt2_wikitext", ["mdoel=gpt2_tiny"]),
        ("model.name=gpt2_tiny recipe=gpt2_wikitext", ["model.name=gpt2_tiny"]),
        ("launcher.num_processes=0 train.global_batch_size=7", ["launcher.num_processes=0"]),
        ("offload=cpuu offload.nvme_path=/x", ["offload=cpuu"]),
    ],
)
def test_all_stages_tell_what_they_find(typed, reported, tmp_path: Path, capsys):
    from runner.__main__ import answer

    assert answer("render", [*typed.split(), f'hydra.run.dir="{tmp_path}/run"']) == 2
    assert [line.removeprefix("error: ").split(": ")[0] for line in capsys.readouterr().err.splitlines()] == reported


def test_a_mapping_sets_keys_of_an_open_section():
    from runner.compose import compose_run

    config = compose_run(["task={max_length:64}", "dataset.columns={sentence1:a}", 'note="\\${nope"']).config
    assert (config.task["max_length"], config.dataset.columns["sentence1"], config.note) == (64, "a", "${nope")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("defaults: [mine]\n", "its defaults list leads back to itself (mine.yaml → mine.yaml)"),
        ("defaults: [other]\n", "its defaults list leads back to itself (mine.yaml → other.yaml → mine.yaml)"),
        ("defaults: 3\n", "`defaults` must be a list"),
        ("name: &a [*a]\n", "a value holds itself through its anchor"),
        ("- 3\n", "an option's file holds keys and values"),
        ("name: [\n", "line 2"),
    ],
)
def test_a_file_of_the_user_that_cannot_be_composed_is_named(text, why, tmp_path: Path, capsys, monkeypatch):
    from runner.__main__ import answer

    folder = tmp_path / "conf" / "model"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text(text)
    (folder / "other.yaml").write_text("defaults:\n  - /model: mine\n")
    monkeypatch.chdir(tmp_path)
    assert answer("render", ["model=mine", f'hydra.run.dir="{tmp_path}/run"']) == 2
    said = capsys.readouterr().err
    assert f"{folder}/mine.yaml" in said
    assert why in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    "typed",
    [
        "dataset=files dataset.train={} dataset.validation=x.csv",
        "launcher.config_file={}",
        "recipe.file={}.py",
        "hydra.run.dir={}",
    ],
)
def test_a_path_that_is_too_long(typed, capsys):
    from runner.__main__ import answer

    assert answer("render", typed.format("x" * 300).split()) == 2
    said = capsys.readouterr().err
    assert "too long" in said
    assert len(said.splitlines()) == 1


def test_a_reference_of_the_run_folder_that_leads_nowhere(capsys):
    from runner.__main__ import answer

    assert answer("render", ["hydra.run.dir=${nope:1}"]) == 2
    assert capsys.readouterr().err.startswith("error: hydra.run.dir=${nope:1}: this reference leads nowhere")


@pytest.mark.parametrize(
    ("typed", "reported"),
    [
        ("sweep.rerun=al", "sweep.rerun=al: input should be 'missing', 'failed' or 'all'"),
        ("train.epochs=0", "train.epochs=0: input should be greater than or equal to 1"),
        ("hydra.sweep.dir=/dev/null", "hydra.sweep.dir=/dev/null: this folder cannot be made"),
        ("train.epochs=range(3,1)", "this range is empty"),
        ("hydra.sweep.dir=${nope:1}", "hydra.sweep.dir=${nope:1}: this reference leads nowhere"),
    ],
)
def test_what_is_wrong_in_every_cell_stops_a_sweep(typed, reported, tmp_path: Path):
    done = command("-m", typed, "launcher.num_nodes=2", run_dir=tmp_path / "run", cwd=tmp_path)
    assert done.returncode == 2, done.text
    assert reported in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_values_out_of_range_and_contradictions_come_at_once(run_cli):
    done = run_cli(
        "launcher=ddp",
        "zero_stage=2",
        "precision.loss_scale=128",
        "dataset=files",
        "dataset.train=a.csv",
        "dataset.validation=b.csv",
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 4


def test_a_typo_and_help_import_no_torch(tmp_path: Path):
    for arguments in (["mdoel=x"], ["--help"], ["render"]):
        script = (
            f"import sys; sys.argv = ['runner', *{arguments!r}, "
            f"*{[f'hydra.run.dir={tmp_path}/r'] if arguments == ['render'] else []!r}]; from runner.__main__ "
            "import main; main(); print('torch' in sys.modules, 'deepspeed' in sys.modules)"
        )
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, env=cli_environment(), cwd=ROOT, timeout=60
        )
        assert done.stdout.splitlines()[-1] == "False False", done


def test_offline_says_what_is_missing_and_three_ways_on(run_cli, tmp_path: Path):
    """Within 15 seconds, one message, no connection where offline is asked for."""
    began = time.monotonic()
    done = run_cli("model=deberta_xl", "zero_stage=2", env={"HF_HOME": str(tmp_path / "empty"), "HF_HUB_OFFLINE": "1"})
    assert time.monotonic() - began < 15
    assert done.returncode == 2
    assert "microsoft/deberta-v2-xlarge-mnli" in done.stderr
    for way in ("model.path=DIR", "hf download microsoft/deberta-v2-xlarge-mnli", "model.init=random"):
        assert way in done.stderr
    for asset in ("weights", "tokenizer", "data set"):
        assert f"{asset} " in done.stderr
    assert not (tmp_path / "run").exists()


def test_offline_makes_no_connection_attempt(monkeypatch):
    """With the offline switch on, no socket is opened."""
    from runner.preflight import assets

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(assets.socket, "create_connection", lambda *_, **__: pytest.fail("a connection was attempted"))
    assets.hub_reachable.cache_clear()
    assert assets.hub_reachable() is False
    assets.hub_reachable.cache_clear()


def test_a_folder_named_like_the_data_set_is_reported(run_cli, tmp_path: Path):
    """`mrpc/` in the current folder is named and not read."""
    (tmp_path / "mrpc").mkdir()
    (tmp_path / "mrpc" / "x.txt").write_text("shadow")
    (tmp_path / "nyu-mll" / "glue").mkdir(parents=True)
    done = run_cli("model=bert_base", cwd=tmp_path, env={"HF_HOME": str(tmp_path / "empty"), "HF_HUB_OFFLINE": "1"})
    assert done.returncode == 2
    assert "./nyu-mll/glue has the same name" in done.stderr


@pytest.mark.parametrize(
    ("train", "validation", "parts"),
    [
        (
            "cls_othercols.csv",
            "cls_eval7.csv",
            ["'text_a', 'text_b', 'gold'", "dataset.columns.sentence1", "dataset.columns.label"],
        ),
        ("cls_missing_label.csv", "cls_eval7.csv", ["no label in row 4"]),
        ("cls_strlabels.csv", "cls_eval_unseen.csv", ["'unsure'", "1 rows of validation", "different, same"]),
    ],
)
def test_wrong_data_is_named_before_any_rank_starts(train, validation, parts, run_cli):
    """Column names and labels that do not fit: the file, the row and what is allowed are named."""
    done = run_cli(
        "dataset=files", f"dataset.train={CASES}/data/{train}", f"dataset.validation={CASES}/data/{validation}"
    )
    assert done.returncode == 2
    assert not (done.run_dir).exists()
    for part in parts:
        assert part in done.stderr


def test_a_path_with_any_characters_gets_the_line_to_type(run_cli):
    """Unquoted it is refused with the exact quoted form; that form is accepted."""
    path = f"{CASES}/data/cls 100% (a=b),v2 ü.csv"
    done = run_cli("render", "dataset=files", f"dataset.train={path}", f"dataset.validation={CASES}/data/cls_eval7.csv")
    assert done.returncode == 2
    assert f"type 'dataset.train=\"{path}\"'" in done.stderr
    again = run_cli(
        "render", "dataset=files", f'dataset.train="{path}"', f"dataset.validation={CASES}/data/cls_eval7.csv"
    )
    assert again.returncode == 0, again.stderr
    assert path in (again.run_dir / "config.yaml").read_text()


def test_missing_and_broken_references_are_listed_together(run_cli, tmp_path: Path):
    """One `???`, an unknown root, a typo inside a reference; also where nothing uses the key."""
    (tmp_path / "conf" / "model").mkdir(parents=True)
    (tmp_path / "conf" / "model" / "broken.yaml").write_text(
        "# @package _global_\nmodel:\n  name: broken\n  path: ???\n  revision: ${paths.root}/run\nscheduler:\n  "
        "warmup_steps: ${optimizer.warmup_stepz}\n"
    )
    done = run_cli("model=broken", cwd=tmp_path)
    assert done.returncode == 2
    for part in (
        "model.path=???",
        "model.revision=${paths.root}/run",
        "scheduler.warmup_steps=${optimizer.warmup_stepz}",
    ):
        assert part in done.stderr


def test_a_broken_yaml_file_is_named(run_cli, tmp_path: Path):
    (tmp_path / "conf" / "model").mkdir(parents=True)
    (tmp_path / "conf" / "model" / "broken.yaml").write_text("# @package _global_\nmodel: {name: broken, path: ???}\n")
    done = run_cli("model=broken", cwd=tmp_path)
    assert done.returncode == 2
    assert "broken.yaml" in done.stderr
    assert "line 2" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_used_folder_is_not_overwritten(run_cli, tmp_path: Path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "record.json").write_text(json.dumps({"schema_version": 1}))
    done = run_cli("train.max_steps=1")
    assert done.returncode == 2
    assert "another run's record lies there" in done.stderr
    assert os.listdir(tmp_path / "run") == ["record.json"]


def test_rendering_does_not_overwrite_a_run(run_cli, tmp_path: Path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "record.json").write_text("{}")
    done = run_cli("render")
    assert done.returncode == 2
    assert "another run's record lies there" in done.stderr
    assert os.listdir(tmp_path / "run") == ["record.json"]


def test_other_encodings_are_named(run_cli, tmp_path: Path):
    (tmp_path / "latin.csv").write_bytes("sentence1,sentence2,label\ncafé,b,0\n".encode("latin-1"))
    done = run_cli(
        "render", "dataset=files", f"dataset.train={tmp_path}/latin.csv", f"dataset.validation={tmp_path}/latin.csv"
    )
    assert done.returncode == 2
    assert "is not UTF-8: line 2, column 4 (byte 0xe9)" in done.stderr
    assert "set dataset.encoding=cp1252" in done.stderr
    (tmp_path / "conf" / "model").mkdir(parents=True)
    (tmp_path / "conf" / "model" / "binary.yaml").write_bytes(b"\xff\xfe")
    done = run_cli("render", "model=binary", cwd=tmp_path)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)


def test_hydras_flags_lead_to_our_verbs():
    for flag, verb in (("--cfg", "render"), ("--info", "doctor"), ("--hydra-help", "--help")):
        done = subprocess.run(
            [sys.executable, "-m", "runner", flag],
            capture_output=True,
            text=True,
            env=cli_environment(),
            cwd=ROOT,
            timeout=60,
        )
        assert done.returncode == 2
        assert verb in done.stderr
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "said"), [(("clean", "clean"), "error: clean clean: "), (("clean", "all"), "error: all: ")]
)
def test_cache_knows_one_word(words, said, capsys):
    from runner.__main__ import answer

    assert answer("cache", [*words]) == 2
    assert capsys.readouterr().err.startswith(said)


def test_unknown_verb(run_cli):
    done = subprocess.run(
        [sys.executable, "-m", "runner", "rendr"],
        capture_output=True,
        text=True,
        env=cli_environment(),
        cwd=ROOT,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (
        2,
        "error: rendr: this is neither a verb nor key=value; did you mean render?\n",
    )
