"""`python -m benchmarks.readme_table`: the table of results.json into README.md, between its two markers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.result import markdown_table

BEGIN, END = "<!-- benchmark table -->", "<!-- end -->"
ROOT = Path(__file__).resolve().parents[1]


def with_table(text: str, results: dict) -> str:
    """The page with the table of `results` between its markers.

    Raises:
        ValueError: when the page has no such markers.
    """
    before, found, rest = text.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise ValueError(f"README.md has no {BEGIN} … {END}")
    return f"{before}{BEGIN}\n{markdown_table(results['figures'])}\n{END}{after}"


def main() -> int:
    """Rewrite README.md."""
    page = ROOT / "README.md"
    page.write_text(with_table(page.read_text(), json.loads((ROOT / "benchmarks" / "results.json").read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
