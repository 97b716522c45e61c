"""The load of others, from counters worked out by hand, and read on this machine while another process works."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from runner.train.machine_load import Reading, load_between, reading


def test_shares_follow_from_the_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten seconds on four cores: 25 core-seconds busy, 10 of them ours; 2 s of steal; one second of waiting."""
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    before = Reading(at=100.0, busy=1000.0, stolen=5.0, own=50.0, waited=3.0)
    after = Reading(at=110.0, busy=1025.0, stolen=7.0, own=60.0, waited=4.0)
    assert load_between(before, after) == {"others_busy_cores": 1.5, "waited_share": 0.1, "steal_share": 0.05}
    assert load_between(None, after) == {}


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="no /proc/self/schedstat here")
def test_a_process_elsewhere_is_seen_as_others() -> None:
    """A detached process (no child of this one's parent) that computes is others' work."""
    burn = "import time; end = time.time() + 1.5\nwhile time.time() < end: pass"
    subprocess.run(["setsid", "--fork", sys.executable, "-c", burn], check=True)
    before = reading()
    time.sleep(1.2)
    found = load_between(before, reading())
    assert found["others_busy_cores"] > 0.3
