"""Amounts of memory: of this machine, and as a user writes them. No torch."""

from __future__ import annotations

import os
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


def host_memory_bytes() -> int:
    """Physical memory of this machine, or the control group's limit where that is smaller."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(path) as file:
                text = file.read().strip()
        except OSError:
            continue
        if text.isdigit():
            total = min(total, int(text))
    return total


def parse_bytes(text: str) -> int:
    """`24GiB`, `80GB`, `512M` or plain bytes → bytes. Raises ValueError with the accepted forms."""
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([A-Za-z]*)\s*", text)
    unit = _UNITS.get(match.group(2).lower()) if match else None
    if match is None or unit is None or float(match.group(1)) == 0:
        raise ValueError(f"{text!r} is no amount of memory; write for example 24GiB, 80GB or 25769803776")
    return int(float(match.group(1)) * unit)
