"""One run on this machine, new or resumed, from the request to its result on the terminal."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from rich.console import Console

from runner import rundir
from runner.adapters import adapter_of
from runner.compose import Composed
from runner.config import plan
from runner.config.resolve import resolve_machine
from runner.config.schema import RunConfig
from runner.engines import engine_of
from runner.engines.base import ConversionStopped
from runner.errors import Problem, RequestError
from runner.execution import Ended, Launch, Request, execute, run_attempt
from runner.launch.host_client import Host
from runner.launch.host_pool import needs_no_hub
from runner.launch.model_check import check_model_fits
from runner.launch.process_signals import Stopping, stopping
from runner.launch.watch import console as terminal
from runner.plain_text import escaped
from runner.preflight.check import Checked, check
from runner.preflight.devices import placement
from runner.preflight.unused_keys import unread_sections
from runner.resume import find, open_run, prepare, wait_for_orphans
from runner.rundir.trusted import TRUST

# What waits for other machines before ranks start: the checked run, or what its check found.
Join = Callable[[Checked | None, list[Problem], Stopping], Launch]
JoinAgain = Callable[[Checked, Stopping], Launch]  # the same for a run that is resumed


def run_here(composed: Composed, started: float, join: Join | None = None) -> int:
    """Check, launch, and print the result; returns the exit status.

    Args:
        started: when the command was typed, in seconds of the machine's monotonic clock.
        join: waits for the other machines of the run.

    Raises:
        RequestError: with everything that is wrong.
    """
    console = terminal()
    unread = unread_sections(composed.explicit, ("fit", "sweep"), "`python -m runner fit` and sweeps (-m) read it")
    if unread:
        raise RequestError(unread)
    host = start_host(composed)
    try:
        if join is not None:
            return _run_joined(composed, started, host, console, join)
        checked = check(composed)
        check_model_fits(checked.config, host)
        announce(checked, console)
        with stopping() as stop:
            ended = execute(Request(checked, composed.overrides, started), host, stop, console)
    finally:
        host.close()
    return conclude(ended, checked, console)


def _run_joined(composed: Composed, started: float, host: Host, console: Console, join: Join) -> int:
    """With other machines: their findings come together with this one's."""
    with stopping() as stop:
        try:
            checked = check(composed)
            check_model_fits(checked.config, host)
        except RequestError as error:
            join(None, [problem for problem in error.problems if problem.severity == "error"], stop)
            raise
        announce(checked, console)
        launch = join(checked, [], stop)
        request = Request(checked, composed.overrides, started, launch=launch)
        return conclude(execute(request, host, stop, console), checked, console)


def resume_here(run_dir: Path, overrides: list[str], started: float, join: JoinAgain | None = None) -> int:
    """Resume on this machine; `join` waits for the other machines of the run."""
    console = terminal()
    say = partial(console.print, highlight=False, markup=False)
    trusted = TRUST in overrides
    overrides = [item for item in overrides if item != TRUST]
    record = open_run(run_dir)
    with rundir.held(run_dir):
        wait_for_orphans(run_dir, say)
        found = find(run_dir, record, overrides, trusted)  # outside `stopping`: Ctrl-C ends a long checksum at once
        with stopping() as stop:
            try:
                request = prepare(found, overrides, started, say, lambda: stop.asked)
            except ConversionStopped:
                say(f"stopped before any rank was started; resume with python -m runner resume '{run_dir}'")
                return stop.exit_status
            host = Host(found.config, offline=needs_no_hub(found.config))
            try:
                announce(request.checked, console)
                if join is not None:
                    request.launch = join(request.checked, stop)
                ended = run_attempt(request, host, stop, console)
            finally:
                host.close()
    return conclude(ended, request.checked, console)


def start_host(composed: Composed) -> Host:
    """Start importing while the rest of the request is still being checked."""
    config, _ = resolve_machine(composed.config)
    return Host(config, offline=needs_no_hub(config))


def announce(checked: Checked, console: Console) -> None:
    """The plan, before anything starts: what runs, on what, with which arithmetic."""
    for line in plan_lines(checked):
        console.print(line, highlight=False, markup=False)
    for problem in checked.notices:
        console.print(problem.line(), highlight=False, markup=False)


def _replicas(config: RunConfig) -> str:
    """What sees rows of its own: ranks, or groups of them."""
    replicas = plan.data_parallel_size(config)
    each = plan.world_size(config) // replicas
    return f"{replicas} ranks" if each == 1 else f"{replicas} groups of {each} ranks"


def plan_lines(checked: Checked) -> list[str]:
    """The plan as lines of text."""
    config = checked.config
    train, ranks = config.train, plan.world_size(config)
    steps = (
        f"{checked.total_steps} optimizer steps"
        if checked.total_steps
        else "optimizer steps: known when the data is prepared"
    )
    sample = " (GENERATED sample, not a benchmark)" if config.dataset.generated else ""
    lines = [
        f"run        {checked.run_dir}",
        f"model      {config.model.name} ({_weights(config)})",
        f"data       {config.dataset.name}{sample}"
        + "".join(f", {split} {rows} rows" for split, rows in config.dataset.rows.items()),
        f"method     {plan.method(config)}, {ranks} {config.launcher.device} rank{'s' if ranks > 1 else ''}, "
        f"{config.precision.name}, {config.launcher.omp_num_threads} threads each",
        f"devices    {placement(config)}",
    ]
    adapted = adapter_of(config).words(config)
    lines += [f"adapter    {adapted}"] if adapted else []
    definitions = checked.recipe.metric_definitions() if config.dataset.label_names else {}
    lines += [f"scores     {name} {words}" for name, words in definitions.items()]
    if config.mode == "train":
        words = engine_of(config).schedule_words(config, checked.own_file, checked.total_steps)
        lines += [
            f"batch      {train.micro_batch_size} × {train.gradient_accumulation_steps} accumulated × "
            f"{_replicas(config)} = {plan.global_batch_size(config)}; {steps}",
            f"optimizer  {_optimizer_line(checked)}",
            f"schedule   {config.scheduler.name}, {_warmup(checked)}{words}, owned by "
            f"{engine_of(config).owner_words(config, config.scheduler.owner)}",
        ]
    return lines


def _warmup(checked: Checked) -> str:
    scheduler, total = checked.config.scheduler, checked.total_steps
    if scheduler.warmup_ratio is not None and total is None:
        return f"{scheduler.warmup_ratio:g} of the steps as warm-up"
    return f"{plan.warmup_steps(scheduler, total or 0)} warm-up steps"


def _optimizer_line(checked: Checked) -> str:
    config, engine = checked.config, engine_of(checked.config)
    words, owner = (
        engine.optimizer_words(config, checked.own_file),
        engine.owner_words(config, config.optimizer.owner),
    )
    return f"{words}, lr {config.optimizer.lr:g}, weight decay {config.optimizer.weight_decay:g}, owned by {owner}"


def _weights(config: RunConfig) -> str:
    if config.model.init == "random":
        return "random weights"
    return f"pretrained: {config.model.path or config.model.hub_id}"


def conclude(ended: Ended, checked: Checked, console: Console) -> int:
    """The result table, or the one block that says what went wrong."""
    from runner.report.machine import machine_line
    from runner.report.terminal import print_result

    if ended.status == "completed":
        print_result(ended.record.data, console)
        for warning in ended.record.data.get("warnings", []):
            console.print(f"warning: {escaped(str(warning))}", highlight=False, markup=False)
        machine = machine_line(checked.run_dir)
        if machine:
            console.print(f"machine    {machine}", highlight=False)
        console.print(f"record     {ended.record.path}", highlight=False)
        return ended.exit_code
    reason = ended.record.data.get("reason")
    console.print(escaped(f"{ended.status}: {reason}"), highlight=False, markup=False)
    if ended.failure is not None:
        for line in ended.record.data["failure"].get("advice", []):
            console.print(line, highlight=False, markup=False)
        console.print(f"log        {ended.failure.log}", highlight=False)
    if ended.status == "preempted":
        console.print(f"resume with python -m runner resume '{checked.run_dir}'", highlight=False)
    return ended.exit_code
