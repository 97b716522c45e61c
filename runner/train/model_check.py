"""Whether weights and tokenizer of a folder fit the run, before any rank starts: the names and shapes of all tensors,
none of their values.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runner import rundir
from runner.recipe import load_recipe
from runner.train import assets


def check_model(run_dir: Path) -> dict[str, Any]:
    """Build the tokenizer, and the model without memory (torch's meta device), as the ranks would.

    Returns:
        `status` completed; or refused, with the `why` of what a rank would die of.
    """
    config = rundir.read_config(run_dir)
    try:
        assets.check_fit(load_recipe(config), assets.build_tokenizer(config))
    except assets.AssetError as error:
        return {"status": "refused", "why": str(error)}
    except Exception as error:  # noqa: BLE001 - whatever it dies of, a rank would die of it
        first = next((line for line in str(error).splitlines() if line.strip()), "")
        return {"status": "refused", "why": f"it cannot be loaded ({type(error).__name__}: {first[:300]})"}
    return {"status": "completed"}
