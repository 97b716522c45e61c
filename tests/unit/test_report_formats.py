"""The verb and its formats: csv and json content, escaping, exit status."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from report_records import points, record, repeat, write_run
from rich.console import Console

from runner.cli.report import main
from runner.report.html import headline
from runner.report.records import read_runs
from runner.report.tables import compare
from runner.report.terminal import print_result

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>|[bold]x[/bold]"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for index, seconds in enumerate((10.0, 12.0, 14.0)):
        write_run(tmp_path / f"ddp{index}", repeat("DDP", index, seconds), points())
    write_run(tmp_path / "zero", record("ZeRO-2", train_seconds=6.0, note=HOSTILE, run_id=HOSTILE), points())
    write_run(tmp_path / "failed", record("ZeRO-3 + CPU offload", status="failed", reason=f"=cmd {HOSTILE}"), points())
    return tmp_path


def _output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0
    return capsys.readouterr().out


def test_csv_has_a_line_per_row_with_units_in_its_names(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = list(csv.DictReader(io.StringIO(_output(capsys, str(tree), "--format", "csv"))))
    assert [line["method"] for line in lines] == ["DDP", "ZeRO-2", "ZeRO-3 + CPU offload"]
    ddp, zero, failed = lines
    assert (ddp["train_seconds"], ddp["n"], ddp["f1"], ddp["speed_up"]) == ("12.0", "3", "0.8", "")
    assert float(ddp["train_seconds_half_width"]) == pytest.approx(4.9683, abs=1e-4)
    assert (zero["train_seconds"], zero["train_seconds_half_width"], zero["peak_memory_bytes"]) == (
        "6.0",
        "",
        str(3 * 2**30),
    )
    assert float(zero["speed_up"]) == pytest.approx((10 * 12 * 14) ** (1 / 3) / 6)
    assert (failed["status"], failed["train_seconds"]) == ("failed", "")
    assert failed["reason"].startswith("'=cmd")
    assert ddp["run_folders"] == " ".join(str(tree / f"ddp{index}") for index in range(3))


def test_json_has_tables_fairness_and_every_run(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = json.loads(_output(capsys, str(tree), "--format", "json"))
    (table,) = report["tables"]
    assert (table["kind"], table["rows"][0]["train_seconds"]["mean"], len(report["runs"])) == ("matched", 12.0, 5)
    verdicts = {check["name"]: check["verdict"] for check in table["fairness"]["checks"]}
    assert (verdicts["model"], verdicts["seed"]) == ("same", "differs")
    assert table["workload"] == {"recipe": "deberta_mrpc", "model": "deberta_tiny", "dataset": "paraphrase_sample"}


def test_markdown_escapes_cells(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = _output(capsys, str(tree), "--format", "markdown")
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) == 5
    assert "<script>" not in text.replace("\\<", "")
    assert {line.replace("\\|", "").count("|") for line in rows} == {rows[0].count("|")}


def test_the_terminal_shows_markup_as_text_and_reasons_below(
    tree: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text = _output(capsys, str(tree))
    assert "[bold]x[/bold]" in text
    assert "12.00 ±4.97" in text
    assert "DIFFERS: seed" in text


@pytest.mark.parametrize("width", [80, 120])
def test_a_narrow_terminal_never_breaks_a_number(
    tree: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for index in range(3):
        write_run(tree / f"z{index}", repeat("ZeRO-3 + CPU offload", index, 11.0 + index), points())
    text = _output(capsys, str(tree)).split("DIFFERS")[0]
    assert max(len(line) for line in text.splitlines()) <= width
    for number in ("12.00", "±4.97", "±0.0000", "interval)", "guishable", "3.00", "GiB", "8×1×2", "completed"):
        assert number in text, number


class _Page(HTMLParser):
    """Counts elements and collects attributes that could act or load."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts = 0
        self.images = 0
        self.suspicious: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        self.images += tag == "img"
        self.suspicious += [(name, value) for name, value in attrs if name.startswith("on") or (name == "src")]


def test_the_page_holds_nothing_that_a_record_injected(tree: Path) -> None:
    output = tree / "page.html"
    assert main([str(tree), "--output", str(output)]) == 0
    text = output.read_text()
    page = _Page()
    page.feed(text)
    assert (page.scripts, page.images, page.suspicious) == (3, 0, [])
    assert "&lt;img src=x onerror=alert(2)&gt;" in text
    assert 'href="zero/"' in text


def test_the_page_without_logs_needs_no_script(tmp_path: Path) -> None:
    write_run(tmp_path / "a", record())
    assert main([str(tmp_path), "--output", str(tmp_path / "page.html")]) == 0
    text = (tmp_path / "page.html").read_text()
    assert "<script" not in text
    assert len(text) < 40_000


@pytest.mark.parametrize("ending", ["md", "csv", "json"])
def test_the_ending_of_the_output_chooses_the_format(
    tree: Path, capsys: pytest.CaptureFixture[str], ending: str
) -> None:
    output = tree / f"out.{ending}"
    assert main([str(tree), "--output", str(output)]) == 0
    assert output.read_text()[0] == {"md": "#", "csv": "t", "json": "{"}[ending]
    assert capsys.readouterr().out == ""


def test_wrong_requests_are_one_line_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "other" / "a", record())
    for arguments, reported in [
        ([], "no run found under outputs, multirun; make one with: python -m runner run"),
        (["nowhere"], "no such folder: nowhere"),
        (["other", "--output", "missing/x.csv"], "cannot write missing/x.csv: No such file or directory"),
    ]:
        assert main(arguments) == 2
        assert capsys.readouterr().err == f"report: {reported}\n"


def test_a_missing_extra_is_one_line(
    tree: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert main([str(tree), "--format", "html"]) == 2
    assert "pip install 'finetune-runner[report]'" in capsys.readouterr().err


def test_the_table_needs_neither_torch_nor_the_extra(tree: Path) -> None:
    code = (
        "import sys; from runner.cli.report import main; status = main(sys.argv[1:]);"
        "bad = {'torch', 'hydra', 'jinja2', 'plotly', 'pydantic'} & set(sys.modules); sys.exit(status or "
        "str(bad) if bad else status)"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code, str(tree)], capture_output=True, text=True, cwd=root, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_result_of_one_run_says_what_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(width=100)
    print_result(record("ZeRO-2", data={"train": {"generated": True}}), console)
    text = capsys.readouterr().out
    for part in ("ZeRO-2", "16 = 8×1×2", "10.00", "1.50", "0.8000", "3.00 GiB", "completed", "generated sample"):
        assert part in text
    print_result(record("ZeRO-2", test={"metrics": {"accuracy": 0.75}}), console)
    text = capsys.readouterr().out
    assert "test accuracy" in text
    assert "0.7500" in text
    print_result({}, console)
    assert "unknown" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("seconds", "sentence"),
    [
        ((5.0, 5.1), "ZeRO-2 trains 2.01× "),
        ((10.0, 10.1), "No method is distinguishably faster than DDP at global batch 16."),
        (
            (5.0,),
            "ZeRO-2 trains 2.03× as fast as DDP at global batch 16, without the repeats that would say how sure that "
            "is.",
        ),
        ((10.0,), "No method is distinguishably faster than DDP at global batch 16."),
    ],
)
def test_the_headline_claims_no_more_than_the_interval(
    tmp_path: Path, seconds: tuple[float, ...], sentence: str
) -> None:
    runs = [repeat("DDP", index, value) for index, value in enumerate((10.1, 10.2))]
    runs += [repeat("ZeRO-2", index, value) for index, value in enumerate(seconds)]
    folders = [write_run(tmp_path / str(index), content) for index, content in enumerate(runs)]
    (table,) = compare(read_runs(folders)).tables
    (reported,) = headline(table)
    assert reported.startswith(sentence)
    assert reported.endswith(" The rows differ in data order, seed.") == (len(seconds) == 1)


def test_a_page_of_many_rows_draws_the_first_and_says_so(tmp_path: Path) -> None:
    folders = [
        write_run(tmp_path / f"{index:03}", record(("DDP", "ZeRO-2")[index % 2], seed=index), points())
        for index in range(60)
    ]
    assert main([*map(str, folders), "--output", str(tmp_path / "page.html")]) == 0
    text = (tmp_path / "page.html").read_text()
    assert "Left out: 36 further rows." in text
    assert "The first 16 rows are drawn; 44 further rows are not." in text
    assert text.count('data-label="train s/epoch"') == 60


@pytest.mark.parametrize("name", ["report.pdf", "report.docx", "report"])
def test_an_unknown_ending_is_refused_and_nothing_written(
    tree: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert main([str(tree), "--output", str(tree / name)]) == 2
    assert "use one of .txt, .md, .tex, .csv, .json, .html, .htm or add --format=" in capsys.readouterr().err
    assert not (tree / name).exists()


def test_latex_escapes_and_says_what_markdown_says(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tree), "--output", str(tree / "table.tex")]) == 0
    text = (tree / "table.tex").read_text()
    assert r"DDP & 16 = 8$\times$1$\times$2 & 3 & 12.00 $\pm$ 4.97 &" in text
    assert r"\begin{tabular}{lrrrrrrrrl}" in text
    assert "<script>" not in text


def test_columns_order_and_deviation_can_be_chosen(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (str(tree), "--format", "markdown", "--columns", "train,n,f1", "--sort=-train", "--std")
    lines = [line for line in _output(capsys, *arguments).splitlines() if line.startswith("| ")]
    assert lines[0] == "| Method | train s/epoch | n | f1 |"
    # 10, 12 and 14: mean 12, s = 2, half of the 95 % interval 4.3027·2/√3 = 4.97
    assert lines[2].startswith("| DDP | 12.00 ± 4.97 (std 2.00) | 3 | ")
    assert lines[3].startswith("| ZeRO-2 | 6.00 | 1 | ")
    (header, *_) = _output(capsys, str(tree), "--format", "csv", "--columns", "train,n").splitlines()
    assert header == "table,label,method,train_seconds,train_seconds_half_width,train_seconds_std,n,n_planned"
    assert main([str(tree), "--columns", "trian"]) == 2
    assert "trian: there is no such column; columns are method, batch" in capsys.readouterr().err
