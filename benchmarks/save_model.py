"""`python -m benchmarks.save_model MODEL RECIPE FOLDER`: a model of conf/model with its seeded random weights, and its
tokenizer.
"""

from __future__ import annotations

import sys
from pathlib import Path

from runner.compose import compose_run
from runner.preflight.check import check
from runner.train import assets


def main(model: str, recipe: str, folder: str) -> None:
    """Write weights, configuration and tokenizer."""
    checked = check(
        compose_run([f"recipe={recipe}", f"model={model}", f"hydra.run.dir={Path(folder).parent}"]), starting=False
    )
    tokenizer = assets.build_tokenizer(checked.config)
    built, _ = assets.build_model(checked.recipe, tokenizer)
    built.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
