"""What the pages say is what the schema says, and their links lead somewhere."""

from __future__ import annotations

import re

from runner.documentation import page
from tests.conftest import ROOT


def test_the_pages_are_true_to_the_schema():
    assert (ROOT / "docs" / "configuration.md").read_text() == page(), "run `make docs`"


def test_links_lead_somewhere():
    for document in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
            if not target.startswith("http"):
                assert (document.parent / target).exists(), f"{document.name}: {target}"
