"""Tokens and keys stay out of everything that is written: records, configurations, logs, pages, the terminal.

One function, `redacted`, at every border: by value (what the environment and the hub's token file hold) and by form
(credentials in URLs, tokens of known services, `NAME=value` of secret names).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote

MASK = "SECRET-HIDDEN"  # a plain word in YAML, JSON and the shell
_NAMES = re.compile(r"(TOKEN|_KEY|APIKEY|SECRET|PASSWORD|PASSWD|_PASS|_PAT|CREDENTIALS?)S?$", re.IGNORECASE)
_START = r"(?:(?<![A-Za-z0-9_])|(?<=\\[nrtbf]))"  # of a word, also after a line's end as JSON writes it
_WORDS = r"(?:token|secret|password|passwd|api[_-]?key|access[_-]?key|apikey|signature|credential|auth)"
_IN_URL = re.compile(r"(?<=://)[^/\s:@\"'<>]*:[^/\s@\"'<>]+(?=@)")
_IN_QUERY = re.compile(
    rf"([?&;](?:[\w.-]*{_WORDS}[\w.-]*|sig|key)=)[^&\s\"'<>\\]+?(?=[:;,.]?(?:[&\s\"'<>\\]|$))", re.IGNORECASE
)
_ASSIGNED = re.compile(
    rf"({_START}(?:[A-Z][A-Z0-9_]*(?:TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_?KEY)|[a-z_]*{_WORDS})=[\"']?)"
    r"(?=[^\s\"',;&]*\d)(?=[^\s\"',;&]*[A-Za-z])[^\s\"',;&\\]{8,}"
)
_HEADER = re.compile(rf"{_START}(Bearer|Basic) +[A-Za-z0-9._~+/=-]{{12,}}")
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
_SHAPES = re.compile(
    _START
    + "(?:"
    + "|".join(
        (
            r"hf_[A-Za-z0-9]{20,}\b",
            r"api_org_[A-Za-z0-9]{20,}\b",
            r"sk-[A-Za-z0-9_-]{20,}",
            r"gh[pousr]_[A-Za-z0-9]{30,}\b",
            r"github_pat_[A-Za-z0-9_]{20,}\b",
            r"glpat-[A-Za-z0-9_-]{20,}",
            r"xox[abprs]-[A-Za-z0-9-]{10,}",
            r"(?:AKIA|ASIA)[A-Z0-9]{16}\b",
            r"AIza[A-Za-z0-9_-]{35}",
            r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}",
            r"npm_[A-Za-z0-9]{30,}\b",
            r"pypi-[A-Za-z0-9_-]{20,}",
            r"dckr_pat_[A-Za-z0-9_-]{20,}",
            r"dop_v1_[a-f0-9]{40,}\b",
            r"wandb_v1_[A-Za-z0-9_]{20,}\b",
        )
    )
    + ")"
)


@lru_cache(maxsize=1)
def known_secrets() -> tuple[str, ...]:
    """Values of variables named like secrets, credentials in URLs of any variable, and the hub's token file; long ones
    first.
    """
    found = {
        value.strip()
        for name, value in os.environ.items()
        if _NAMES.search(name) and not value.startswith(("/", "~", "."))
    }
    for value in os.environ.values():
        for credentials in _IN_URL.findall(value):
            password = credentials.partition(":")[2]
            found |= {password, unquote(password)}
    for path in _token_files():
        with contextlib.suppress(OSError, ValueError):
            found |= set(re.findall(r"\S+", path.read_text(encoding="utf-8")))
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
    if "=" in text:
        text = _ASSIGNED.sub(rf"\1{MASK}", _IN_QUERY.sub(rf"\1{MASK}", text))
    if "://" in text:
        text = _IN_URL.sub(MASK, text)
    if "PRIVATE KEY" in text:
        text = _PRIVATE_KEY.sub(MASK, text)
    return _SHAPES.sub(MASK, _HEADER.sub(rf"\1 {MASK}", text))


def redact_file(path: Path) -> None:
    """Mask what child processes and native code have written into a log past Python's own streams; others stay untouched."""  # noqa: E501
    with contextlib.suppress(OSError):
        text = path.read_bytes().decode("utf-8", "surrogateescape")
        clean = redacted(text)
        if clean != text:
            partial = path.with_name(f".{path.name}.redacted")
            partial.write_bytes(clean.encode("utf-8", "surrogateescape"))
            os.replace(partial, path)
