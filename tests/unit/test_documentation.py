"""What the pages say is what the schema says, and their links lead somewhere."""

from __future__ import annotations

import re

from runner import combinations
from runner.documentation import page
from tests.conftest import ROOT


def test_the_pages_are_true_to_the_schema():
    assert (ROOT / "docs" / "configuration.md").read_text() == page(), "run `make docs`"


def test_the_page_of_combinations_is_what_the_checks_answer():
    text = combinations.page()
    assert (ROOT / "docs" / "combinations.md").read_text() == text, "run `make docs`"
    rows = {line.split(" | ")[1].strip("`"): line.split(" | ")[2:] for line in text.splitlines() if " | `" in line}
    assert rows["launcher=ddp"] == ["yes"] * 7 + ["yes |"]
    deberta, _, gpt2, llama, *_ = rows["zero_stage=2 parallel.tensor=2"]
    assert (deberta[:2], gpt2[:2], llama) == ("no", "no", "yes")


def test_links_lead_somewhere():
    for document in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
            if not target.startswith("http"):
                assert (document.parent / target).exists(), f"{document.name}: {target}"
