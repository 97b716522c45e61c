"""The page in a real browser: it draws, fits a phone, follows the colour scheme and asks nobody for anything."""

from __future__ import annotations

import base64
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

selenium = pytest.importorskip("selenium", reason="selenium is not installed (extra test)")
pytest.importorskip("plotly", reason="plotly is not installed (extra report)")
sys.path.append(str(Path(__file__).parents[1] / "unit"))  # the records that the unit tests use too

from report_records import METHODS, points, record, repeat, write_run  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402

from runner.cli.report import main  # noqa: E402

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
HOSTILE = (
    "</script><script>document.title='owned'</script><img src=https://example.invalid/x "
    "onerror=\"document.title='owned'\">"
)

# Bar charts whose bars are not drawn on one common scale.
_UNEVEN = """
    return [...document.querySelectorAll(".bars")].filter(chart =>
        new Set([...chart.querySelectorAll(".bar-track")].map(
            track => Math.round(track.getBoundingClientRect().width))).size !== 1
    ).map(chart => chart.ariaLabel)
"""

_TEXTS = (
    "h1", ".headline", ".small", "thead th", "tbody td", ".undone td", ".fairness li", ".differs", "summary", "a[href]",
    "footer li", ".pill.failed", ".pill.completed",
)  # fmt: skip

pytestmark = [
    pytest.mark.skipif(not (BROWSER and DRIVER), reason="no chromium and chromedriver on this machine"),
    pytest.mark.timeout(180),
]


def _records(folder: Path) -> None:
    """Three methods with repeats, each at its largest, a failure, a record that is cut off, hostile names."""
    for number, method in enumerate(METHODS):
        for index in range(2):
            write_run(
                folder / f"m{number}-{index}",
                repeat(method, index, 10 + 3 * number + 0.1 * index),
                points(40, floor=0.3 + number / 20),
            )
        largest = record(
            method,
            micro=16 * (number + 1),
            fit={"largest_micro_batch": 16 * (number + 1)},
            note=HOSTILE,
            run_id=HOSTILE,
        )
        write_run(folder / f"big{number}", largest, points(20))
    write_run(
        folder / "lr", {**record("DDP", config={"optimizer": {"lr": 1e-3}}), "method": f"DDP {HOSTILE}"}, points(40)
    )
    write_run(folder / "oom", record("DDP", micro=99, status="failed", reason=f"CUDA out of memory {'x' * 90}"))
    write_run(folder / "cut", {})


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("report")
    _records(folder)
    assert main([str(folder), "--output", str(folder / "page.html")]) == 0
    return (folder / "page.html").as_uri()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(BROWSER)
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    try:
        yield driver
    finally:
        driver.quit()


def _open(browser: Any, page: str, width: int, scheme: str) -> None:
    """Load the page afresh at this width (CSS pixels) and colour scheme, with empty logs."""
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500},
    )
    browser.get("about:blank")
    browser.get_log("browser")
    browser.get_log("performance")
    browser.get(page)


def _requests(browser: Any) -> list[str]:
    """Addresses the page asked for since it was opened, `data:` and `blob:` (which stay inside) left out."""
    messages = (json.loads(entry["message"])["message"] for entry in browser.get_log("performance"))
    asked = [
        message["params"]["request"]["url"] for message in messages if message["method"] == "Network.requestWillBeSent"
    ]
    return [address for address in asked if not address.startswith(("data:", "blob:"))]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_draws_everything_without_errors_or_requests(browser: Any, page: str, width: int, scheme: str) -> None:
    _open(browser, page, width, scheme)
    plots = browser.find_elements(By.CSS_SELECTOR, "[data-plot]")
    assert len(plots) == 4
    for plot in plots:
        lines = plot.find_elements(By.CSS_SELECTOR, ".scatterlayer path.js-line")
        assert len(lines) == 7
        assert all(line.size["width"] > 0 for line in lines)
    assert len(browser.find_elements(By.CSS_SELECTOR, ".bar-fill")) == 4 + 4 + 4 + 2 * 7
    assert browser.execute_script(_UNEVEN) == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.title == "Fine-tuning comparison"
    assert browser.get_log("browser") == []
    assert _requests(browser) == [page]
    _keep_picture(browser, f"{width}-{scheme}")


def _keep_picture(browser: Any, name: str) -> None:
    """Write a picture of the whole page to $REPORT_PICTURES, for people to look at."""
    folder = os.environ.get("REPORT_PICTURES")
    if folder:
        picture = browser.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})
        (Path(folder) / f"report-{name}.png").write_bytes(base64.b64decode(picture["data"]))


def test_nothing_sticks_out_of_a_phone(browser: Any, page: str) -> None:
    _open(browser, page, 390, "light")
    browser.execute_script("document.querySelectorAll('details').forEach(details => { details.open = true; })")
    script = """
        return [...document.querySelectorAll("main *")].filter(element => element.getBoundingClientRect().right > 390.5
            && getComputedStyle(element).position !== "absolute" && !element.closest("svg"))
            .map(element => element.outerHTML.slice(0, 120))
    """
    assert browser.execute_script(script) == []


def _contrast(browser: Any, selector: str) -> float:
    """WCAG contrast of an element's text with the nearest painted ground behind it."""
    script = """
        const parse = text => text.match(/[\\d.]+/g).map(Number);
        const light = rgb => { const [r, g, b] = rgb.slice(0, 3).map(v => { v /= 255;
            return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; });
            return .2126 * r + .7152 * g + .0722 * b; };
        const element = document.querySelector(arguments[0]);
        let ground = element;
        while (ground && (parse(getComputedStyle(ground).backgroundColor)[3] ?? 1) === 0) ground = ground.parentElement;
        const pair = [light(parse(getComputedStyle(element).color)),
            light(parse(getComputedStyle(ground).backgroundColor))].sort((a, b) => b - a);
        return (pair[0] + .05) / (pair[1] + .05);
    """
    return float(browser.execute_script(script, selector))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(browser: Any, page: str, scheme: str) -> None:
    _open(browser, page, 1280, scheme)
    for selector in _TEXTS:
        assert _contrast(browser, selector) >= 4.5, selector


def test_plots_follow_the_colour_scheme_while_the_page_is_open(browser: Any, page: str) -> None:
    _open(browser, page, 1280, "light")
    read = (
        "return getComputedStyle(document.querySelector('.xtick text')).fill + "
        "getComputedStyle(document.querySelector('path.js-line')).stroke"
    )
    light = browser.execute_script(read)
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    )
    dark = browser.execute_async_script(
        f"const done = arguments[0]; requestAnimationFrame(() => setTimeout(() => done((() => {{ {read} }})()), 300))"
    )
    assert light != dark
    assert browser.get_log("browser") == []


def test_curves_are_switched_with_the_keyboard(browser: Any, page: str) -> None:
    _open(browser, page, 1280, "light")
    body = browser.find_element(By.TAG_NAME, "body")
    body.send_keys(Keys.TAB)
    assert browser.switch_to.active_element.text == "Skip to the tables"
    for _ in range(40):
        if browser.switch_to.active_element.get_attribute("data-curve") is not None:
            break
        browser.switch_to.active_element.send_keys(Keys.TAB)
    browser.switch_to.active_element.send_keys(Keys.SPACE)
    shown = (
        "return [...document.querySelectorAll('[data-plot]')].map(plot => plot.querySelectorAll('path.js-line').length)"
    )
    assert browser.execute_script(shown) == [6, 6, 6, 6]
    browser.find_element(By.CSS_SELECTOR, "[data-log]").send_keys(Keys.SPACE)
    kinds = browser.execute_script(
        "return [...document.querySelectorAll('[data-plot]')].map(plot => plot.layout.yaxis.type)"
    )
    assert kinds == ["log", "log", "linear", "linear"]


_METRICS = ("f1", "accuracy", "precision", "recall", "matthews", "auc", "loss", "brier", "kappa", "balanced_accuracy")
# Cells whose text is wider than they are, lies beyond the window, or is hidden; and words that stand on two lines.
_CLIPPED = r"""
    const cells = [...document.querySelectorAll(".fitted th, .fitted td, .confusion th, .confusion td")];
    const bad = [];
    for (const cell of cells) {
        const box = cell.getBoundingClientRect(), style = getComputedStyle(cell);
        if (cell.closest("thead") && getComputedStyle(cell.closest("thead")).position === "absolute") continue;
        if (!box.width || style.display === "none") bad.push(["hidden", cell.textContent]);
        if (cell.scrollWidth > cell.clientWidth + 1) bad.push(["clipped", cell.textContent]);
        if (box.right > window.innerWidth + 0.5 || box.left < -0.5) bad.push(["outside", cell.textContent]);
        for (const node of cell.childNodes) {
            if (node.nodeType !== Node.TEXT_NODE) continue;
            for (const word of node.textContent.matchAll(/[\w.]+/g)) {
                const range = document.createRange();
                range.setStart(node, word.index); range.setEnd(node, word.index + word[0].length);
                if (new Set([...range.getClientRects()].map(rect => Math.round(rect.top))).size > 1) bad.push(["broken", word[0]]);
            }
        }
    }
    return bad;
"""  # noqa: E501


def _wide_records(folder: Path, count: int) -> None:
    """`count` rows with three repeats, ten metrics, a confusion matrix and long names that differ in the learning rate."""  # noqa: E501
    methods = tuple(METHODS)
    for row in range(count):
        lr = [1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2][row // 3]
        for index in range(3):
            scores = {name: 0.5 + 0.01 * row + 0.013 * index + place / 50 for place, name in enumerate(_METRICS)}
            config = {"optimizer": {"lr": lr, "eps": 1e-8 if row % 2 else 1e-6}}
            content = repeat(methods[row % 3], index, 10 + row + 0.1 * index, config=config, metrics=scores)
            content["confusion"] = {"names": ["equivalent", "different"], "counts": [[40 + row, 9], [7, 44]]}
            for epoch in content["epochs"]:
                epoch["metrics"] = scores
            write_run(folder / f"{row:02}-{index}", content, points(30, floor=0.3 + row / 50))


@pytest.mark.parametrize("count", [4, 12, 24, 40])
def test_no_cell_is_clipped_at_any_width(browser: Any, tmp_path: Path, count: int) -> None:
    _wide_records(tmp_path, count)
    assert main([str(tmp_path), "--output", str(tmp_path / "page.html")]) == 0
    for width in (390, 1280, 1600, 1920):
        _open(browser, (tmp_path / "page.html").as_uri(), width, "light")
        assert browser.execute_script(_CLIPPED) == [], width
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        table = browser.find_element(By.CSS_SELECTOR, ".matched table").size["width"]
        assert table >= 0.85 * width, "the width is used"
        for name in ("speed-up", "status", "n", *_METRICS):
            cells = browser.find_elements(By.CSS_SELECTOR, f'.matched td[data-label="{name}"]')
            assert len(cells) == count
            assert all(cell.is_displayed() for cell in cells[:3])
        _keep_picture(browser, f"{count}-rows-{width}")
