"""Tokens and keys stay out of everything that is written: records, configurations, logs, pages."""

from __future__ import annotations

import json
import os
import re
from functools import lru_cache
from pathlib import Path

MASK = "SECRET-HIDDEN"  # a plain word in YAML, JSON and the shell
_NAMES = re.compile(r"(TOKEN|_KEY|APIKEY|SECRET|PASSWORD|PASSWD|CREDENTIALS?)S?$", re.IGNORECASE)
_SHAPES = re.compile(r"\bhf_[A-Za-z0-9]{20,}\b|\bsk-[A-Za-z0-9_-]{20,}\b|\bgh[pousr]_[A-Za-z0-9]{30,}\b")


@lru_cache(maxsize=1)
def known_secrets() -> tuple[str, ...]:
    """Values of variables named like secrets, and the hub's token file; long ones first."""
    found = {
        value.strip()
        for name, value in os.environ.items()
        if _NAMES.search(name) and not value.startswith(("/", "~", "."))
    }
    for path in _token_files():
        try:
            found |= set(re.findall(r"\S+", path.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            continue
    secrets = [value for value in found if _is_secret(value)]
    return tuple(
        sorted({form for value in secrets for form in (value, json.dumps(value)[1:-1])}, key=len, reverse=True)
    )


def _is_secret(value: str) -> bool:
    """Whether masking a value everywhere is safe: not a short word or a number that may stand anywhere for itself."""
    has_digit, has_letter = any(map(str.isdigit, value)), any(map(str.isalpha, value))
    return has_letter and (len(value) >= 16 or (len(value) >= 8 and has_digit))


def _token_files() -> list[Path]:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    home = Path(os.environ.get("HF_HOME") or cache / "huggingface").expanduser()
    return [Path(os.environ["HF_TOKEN_PATH"])] if os.environ.get("HF_TOKEN_PATH") else [home / "token"]


def redacted(text: str) -> str:
    """The text with every known secret, and everything shaped like one, masked."""
    for secret in known_secrets():
        text = text.replace(secret, MASK)
    return _SHAPES.sub(MASK, text)
