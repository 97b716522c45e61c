"""Name and version of the record: what writes it (`runner/rundir/`) and what reads it (`runner/report/`) share this.

A version changes when a key changes its meaning; a key that is added changes nothing.
"""

from __future__ import annotations

RECORD_FILE = "record.json"
SCHEMA_VERSION = 1
