"""Imported, by its name, in the process that forks the ranks: what DeepSpeed would import in each of them."""

from __future__ import annotations

from runner.compat.deepspeed_muon import import_muon

import_muon()
