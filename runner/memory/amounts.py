"""Amounts of memory: of this machine, and as a user writes them. No torch."""

from __future__ import annotations

import re
import subprocess

_UNITS = {
    "": 1,
    "b": 1,
    "k": 10**3,
    "kb": 10**3,
    "m": 10**6,
    "mb": 10**6,
    "g": 10**9,
    "gb": 10**9,
    "t": 10**12,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}


def ask(*command: str, timeout_seconds: float = 5.0) -> str | None:
    """Standard output of a command; None when it is missing, fails or takes too long."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_seconds, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def parse_bytes(text: str) -> int:
    """`24GiB`, `80GB`, `512M` or plain bytes → bytes. Raises ValueError with the accepted forms."""
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([A-Za-z]*)\s*", text)
    unit = _UNITS.get(match.group(2).lower()) if match else None
    if match is None or unit is None or float(match.group(1)) == 0:
        raise ValueError(f"{text!r} is no amount of memory; write for example 24GiB, 80GB or 25769803776")
    return int(float(match.group(1)) * unit)


def in_words(number: float) -> str:
    """Bytes with the unit that keeps the number short: `512 B`, `1.5 KiB`, `19.8 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"


def gib(number: float, digits: int = 2) -> str:
    """Bytes where GiB are compared: `19.83 GiB`."""
    return f"{number / 2**30:.{digits}f} GiB"


def mib(number: float, digits: int = 0) -> str:
    """Bytes where MiB are compared: `512 MiB`."""
    return f"{number / 2**20:.{digits}f} MiB"
