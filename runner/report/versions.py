"""The version of the record's schema that this report reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.report.reading import integer


def schema_version(raw: Mapping[str, Any]) -> int | None:
    """The record's schema version; None when it names none or something that is no whole number."""
    return integer(raw.get("schema_version"))
