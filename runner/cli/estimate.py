"""`runner estimate`: what a run will need, the alternatives around it, and how earlier predictions fared."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from runner import errors, machine, paths
from runner.config import plan
from runner.config.resolve import DEFAULT_CPU_RANKS, resolve_machine
from runner.config.schema import RunConfig
from runner.machine import host_memory_bytes
from runner.memory.amounts import parse_bytes

if TYPE_CHECKING:
    from runner.memory.estimate import MemoryEstimate
    from runner.memory.past_predictions import PastPrediction
    from runner.memory.search import Alternative, Fit
    from runner.memory.workload import Workload


def main(arguments: Sequence[str]) -> int:
    """Entry of the verb. Returns 0, or 2 when the request is wrong (each problem on one line of standard error)."""
    options, overrides = _parser().parse_known_args(list(arguments))
    try:
        device_bytes = parse_bytes(options.device_memory) if options.device_memory else None
        workload = _workload(overrides, asked_for_gpu=device_bytes is not None)
        answer(workload, device_bytes or _device_bytes(workload), options.json, options.all)
    except errors.RequestError as error:
        print("\n".join(problem.line() for problem in error.problems), file=sys.stderr)
        return errors.EXIT_BAD_REQUEST
    except (ValueError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return errors.EXIT_BAD_REQUEST
    return errors.EXIT_COMPLETED


def answer(workload: Workload, device_bytes: int | None, as_json: bool, splits: bool = False) -> None:
    """Print the estimate of `workload` with its alternatives, on request also those that split the model by degrees.

    Raises ValueError as `runner.memory.estimate` does.
    """
    from runner.memory.estimate import estimate
    from runner.memory.past_predictions import past_predictions
    from runner.memory.search import alternatives, fit

    found = estimate(workload)
    largest = fit(found.workload, device_bytes) if device_bytes else None
    others = alternatives(found.workload, device_bytes, splits)
    past = past_predictions()
    if as_json:
        print(json.dumps(_as_json(found, largest, others, past, device_bytes), indent=2))
        return
    from rich.console import Console

    from runner.memory.estimate_table import show, show_alternatives, show_past

    console = Console(highlight=False)
    show(console, found, largest, device_bytes)
    show_alternatives(console, others, workload.micro_batch_size, device_bytes)
    show_past(console, past)


def _as_json(
    found: MemoryEstimate,
    largest: Fit | None,
    others: Sequence[Alternative],
    past: Sequence[PastPrediction],
    device_bytes: int | None,
) -> dict[str, Any]:
    return {
        **found.as_dict(),
        "device_memory_bytes": device_bytes,
        "largest_micro_batch": None if largest is None else {"rows": largest.rows, "reason": largest.reason},
        "alternatives": [
            {
                "name": each.name,
                "chosen": each.chosen,
                "device_bytes_per_rank": each.estimate.device_bytes_per_rank,
                "host_bytes": each.estimate.host_bytes,
                "categories": each.estimate.as_dict()["categories"],
                "largest_micro_batch": None if each.fit is None else each.fit.rows,
                "reason": None if each.fit is None else each.fit.reason,
            }
            for each in others
        ],
        "past_predictions": [vars(each) | {"error": each.error} for each in past],
    }


def _workload(overrides: list[str], asked_for_gpu: bool) -> Workload:
    """The composed run's workload. `--device-memory` asks about a GPU, whatever this machine has."""
    from runner.compose import compose_run
    from runner.memory import pass_cache
    from runner.memory.configured import workload_from_config

    config = compose_run(overrides).config
    contradictory = _never_runs(config)
    devices = machine.visible_devices(config.launcher.gpu_ids)
    if asked_for_gpu and config.launcher.device == "auto":
        config.launcher.device = "cuda"
    if config.launcher.num_processes == "auto":
        config.launcher.num_processes = len(devices) or DEFAULT_CPU_RANKS
    resolved, problems = resolve_machine(config)
    problems = contradictory + problems
    if any(problem.severity == "error" for problem in problems):
        raise errors.RequestError(problems)
    pass_cache.keep_under(paths.cache_dir(config.cache_dir))
    return workload_from_config(resolved, plan.world_size(resolved))


def _never_runs(config: RunConfig) -> list[errors.Problem]:
    """What no machine could run.

    What only this one lacks (devices, formats, ranks, a network, weights) may be asked about.
    """
    from runner.preflight.contradictions import never_together, wrong_family
    from runner.preflight.model_config import check_architecture, check_bundled_tokenizer
    from runner.preflight.model_folder import no_model_folder
    from runner.recipe import load_recipe

    model = config.model
    problems = check_bundled_tokenizer(config) + (no_model_folder(model.path) if model.path else [])
    family = wrong_family(config)
    if family:  # such a model brings options that the recipe cannot know
        raise errors.RequestError(problems + family)
    try:
        recipe = load_recipe(config)
    except errors.RequestError as error:
        raise errors.RequestError([*problems, *error.problems]) from None
    if not model.path and model.config.get("model_type"):
        problems += check_architecture(config, recipe)
    return problems + never_together(config, recipe)


def _device_bytes(workload: Workload) -> int | None:
    """Memory of the smallest visible GPU, or a rank's share of main memory; None for a GPU this machine lacks."""
    if workload.device == "cpu":
        return host_memory_bytes() // workload.num_processes
    return min((gpu.memory_bytes for gpu in machine.visible_devices()), default=None)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m runner estimate",
        description="Memory per rank and per host, before anything is started. Other arguments are overrides, as for "
        "a run.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--device-memory", metavar="SIZE", help="memory of one GPU, e.g. 24GiB; default: the devices found"
    )
    parser.add_argument(
        "--all", action="store_true", help="also show hybrid shards and tensor parallelism among the alternatives"
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    return parser
