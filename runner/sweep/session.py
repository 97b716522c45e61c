"""A sweep from its first cell to its table."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rich.console import Console

from runner import rundir
from runner.compose.multirun import ComposedCell, run_multirun
from runner.errors import EXIT_COMPLETED, EXIT_SWEEP_CELL_FAILED, Problem, RequestError
from runner.execution import Ended, Request, execute, typed_command
from runner.fit.memory_budget import budget_of
from runner.fit.trial import FitStopped
from runner.launch.device_lock import turn
from runner.launch.host_pool import SharedHosts
from runner.launch.model_check import check_model_fits
from runner.launch.process_signals import Stopping, stopping
from runner.launch.watch import console as terminal
from runner.sweep import summary_table
from runner.sweep.history import Earlier, earlier_cells, folder_of_sweep, free_folder, search_roots, write_sweep
from runner.sweep.identity import sweep_id
from runner.sweep.jobs import LARGEST, Job, jobs_of
from runner.sweep.largest import NothingFits, refusal, set_largest
from runner.sweep.refused_cells import reason_of, write_failed_record
from runner.sweep.summary_table import Row


class SweepStopped(Exception):
    """The sweep ends before its last cell: a signal came, or `sweep.on_error=stop`."""


def run_sweep(arguments: list[str]) -> int:
    """Run all cells of a multirun; returns the exit status.

    Args:
        arguments: overrides as typed, without `-m`.

    Raises:
        RequestError: for mistakes that concern every cell; nothing was started.
    """
    console = terminal()
    with stopping() as stop:
        session = Session(list(arguments), stop, console)
        try:
            run_multirun(list(arguments), session.run_batch)
        except SweepStopped:
            pass
        finally:
            session.close()
    return session.conclude()


class Session:
    """Runs batches of cells (Optuna asks for several) with shared hosts, and keeps their rows."""

    def __init__(self, arguments: list[str], stop: Stopping, console: Console) -> None:
        self._stop, self._console = stop, console
        self._explicit_folder = any(text.lstrip("+").startswith("hydra.sweep.dir") for text in arguments)
        self._typed, self._id = arguments, sweep_id(arguments)
        self._hosts = SharedHosts()
        self._sweep_dir: Path | None = None
        self.rows: list[Row] = []
        self._seconds: list[float] = []
        self._left = 0
        self._found: dict[int, dict[str, Any]] = {}  # largest micro batches by cell
        self._list: dict[str, dict[str, Any]] = {}  # the sweep's list by job, over all batches

    def close(self) -> None:
        """End the hosts."""
        self._hosts.close()

    def conclude(self) -> int:
        """Print the table; returns the exit status."""
        summary_table.print_table(self.rows, self._console)
        counts = {
            status: sum(row.status == status for row in self.rows)
            for status in (
                summary_table.COMPLETED,
                summary_table.SKIPPED,
                summary_table.FAILED,
                summary_table.PREEMPTED,
                summary_table.NOT_RUN,
            )
        }
        self._console.print(
            "sweep      " + ", ".join(f"{count} {status}" for status, count in counts.items() if count), highlight=False
        )
        if self._sweep_dir is not None and self._sweep_dir.is_dir():
            self._console.print(f"compare    python -m runner report '{self._sweep_dir}'", highlight=False)
        if self._stop.asked and counts[summary_table.PREEMPTED] + counts[summary_table.NOT_RUN]:
            self._console.print(
                "continue by typing the same command again: completed cells are skipped", highlight=False
            )
            return self._stop.exit_status
        return EXIT_SWEEP_CELL_FAILED if counts[summary_table.FAILED] else EXIT_COMPLETED

    def run_batch(self, cells: list[ComposedCell]) -> list[float | None]:
        """Run cells; returns the mean of the recipe's metric over each one's repeats, None where it has none."""
        jobs = self._plan(cells)
        rows = {}
        for job in jobs:
            try:
                rows[job.name] = self._settle(job)
            except SweepStopped:
                self._leave_out([left for left in jobs if left.name not in rows])
                raise
        return [
            _mean([rows[job.name].value for job in jobs if job.cell.job == cell.job and not job.purpose])
            for cell in cells
        ]

    def _plan(self, cells: list[ComposedCell]) -> list[Job]:
        """Fix and store what every job will run, before the first one starts."""
        roots = search_roots(cells[0].sweep_dir)
        jobs = jobs_of(cells, self._folder(cells, roots), self._typed)
        assert self._sweep_dir is not None
        self._refuse_budget(jobs)
        earlier = earlier_cells(roots)
        self._rerun = next((job.checked.config.sweep.rerun for job in jobs if job.checked), "missing")
        self._on_error = next((job.checked.config.sweep.on_error for job in jobs if job.checked), "continue")
        to_run = [job for job in jobs if not self._is_done(job, earlier)]
        self._left = len(to_run)
        for job in jobs:
            before = earlier.get(job.hash or "")
            self._list[job.name] = job.list_entry(
                job.run_dir if before is None or job in to_run else before.folder, self._sweep_dir
            )
        write_sweep(self._sweep_dir, self._id, typed_command(), list(self._list.values()))
        for job in to_run:
            if job.checked is not None:
                job.run_dir.mkdir(parents=True, exist_ok=True)
                rundir.write_config(job.run_dir, job.checked.config)
        self._console.print(
            f"sweep      {len(jobs)} jobs, {len(jobs) - len(to_run)} already completed, in {self._sweep_dir}",
            highlight=False,
        )
        return jobs

    def _refuse_budget(self, jobs: list[Job]) -> None:
        """A memory budget that no cell's device has is one mistake of the request, not one failure a cell.

        Raises:
            RequestError: where every cell that would search its largest batch has the same problem.
        """
        problems: list[list[Problem]] = []
        for job in jobs:
            if job.purpose == LARGEST and job.checked is not None:
                try:
                    budget_of(job.checked.config)
                except RequestError as error:
                    problems.append(error.problems)
                else:
                    problems.append([])
        if problems and problems[0] and all(found == problems[0] for found in problems):
            raise RequestError(problems[0])

    def _lies_in(self, job: Job, folder: Path) -> None:
        """Correct the sweep's list where a run's record is not where it was planned to be."""
        assert self._sweep_dir is not None
        entry = job.list_entry(folder, self._sweep_dir)
        if entry != self._list.get(job.name):
            self._list[job.name] = entry
            write_sweep(self._sweep_dir, self._id, typed_command(), list(self._list.values()))

    def _folder(self, cells: list[ComposedCell], roots: list[Path]) -> Path:
        """The new sweep's folder, or that of the same sweep when it is gone on with."""
        if self._sweep_dir is None:
            rerun = next((cell.composed.config.sweep.rerun for cell in cells if cell.composed), "missing")
            chosen = (
                self._explicit_folder or cells[0].sweep_dir.is_dir()
            )  # it is there when a sweeper writes its results to it
            known = None if chosen or rerun == "all" else folder_of_sweep(roots, self._id)
            self._sweep_dir = known or cells[0].sweep_dir
        return self._sweep_dir

    def _is_done(self, job: Job, earlier: dict[str, Earlier]) -> bool:
        before = earlier.get(job.hash or "")
        if self._rerun == "all" or job.hash is None:
            return False
        if self._rerun == "failed":
            return before is None or before.completed
        return before is not None and before.completed

    def _settle(self, job: Job) -> Row:
        """One job to its row: found completed, refused, or run."""
        earlier = earlier_cells(search_roots(self._sweep_dir or job.cell.sweep_dir)) if job.hash else {}
        if self._is_done(job, earlier):
            return self._keep_skipped(job, earlier)
        if self._stop.asked:
            raise SweepStopped
        if job.checked is None:
            reason = reason_of(job.problems)
            folder = write_failed_record(job, self._id, reason)
            return self._keep(Row(job.name, job.label, summary_table.FAILED, reason, folder))
        with turn(job.checked.config, self._stop, self._console) as held:
            if not held:
                raise SweepStopped
            earlier = earlier_cells(search_roots(self._sweep_dir or job.cell.sweep_dir))
            if self._is_done(job, earlier):  # another sweep ran it while this one waited
                return self._keep_skipped(job, earlier)
            return self._keep(self._run(job))

    def _keep_skipped(self, job: Job, earlier: dict[str, Earlier]) -> Row:
        before = earlier.get(job.hash or "")
        if before is not None:
            self._lies_in(job, before.folder)
        return self._keep(_skipped(job, before))

    def _run(self, job: Job) -> Row:
        assert job.checked is not None
        self._announce(job)
        began = time.monotonic()
        job.run_dir = job.checked.run_dir = free_folder(job.run_dir)
        self._lies_in(job, job.run_dir)
        extra = {"cell": job.record_entry(self._id)}
        if job.purpose == LARGEST:
            try:
                extra["fit"] = set_largest(job, self._found, self._hosts, self._stop, self._console)
            except FitStopped:
                raise SweepStopped from None
            except (NothingFits, RequestError) as error:
                reason = refusal(error) if isinstance(error, RequestError) else str(error)
                return Row(
                    job.name, job.label, summary_table.FAILED, reason, write_failed_record(job, self._id, reason)
                )
        host = self._hosts.of(job.checked.config)
        try:
            check_model_fits(job.checked.config, host)
        except RequestError as error:
            reason = refusal(error)
            folder = write_failed_record(job, self._id, reason)
            return Row(job.name, job.label, summary_table.FAILED, reason, folder)
        request = Request(job.checked, job.cell.overrides, time.monotonic(), extra)
        ended = execute(request, host, self._stop, self._console)
        self._seconds.append(time.monotonic() - began)
        for line in (ended.record.data.get("failure") or {}).get("advice", []):
            self._console.print(f"  {line}", highlight=False, markup=False)
        return _ended_row(job, ended)

    def _announce(self, job: Job) -> None:
        left = ""
        if self._seconds:
            left = f", about {_duration(self._left * sum(self._seconds) / len(self._seconds))} left"
        done = len([row for row in self.rows if row.status != summary_table.SKIPPED])
        self._console.print(f"cell {done + 1} of {done + self._left}: {job.label}{left}", highlight=False, markup=False)

    def _keep(self, row: Row) -> Row:
        """Remember a row; a failure is printed now, not at the end."""
        self.rows.append(row)
        if row.status != summary_table.SKIPPED:
            self._left -= 1
            where = f" ({row.folder})" if row.status == summary_table.FAILED else ""
            self._console.print(f"  {row.status}: {row.text}{where}", highlight=False, markup=False)
        if (row.status == summary_table.FAILED and self._on_error == "stop") or row.status == summary_table.PREEMPTED:
            raise SweepStopped
        return row

    def _leave_out(self, jobs: list[Job]) -> None:
        """Rows for what was not reached, those that need no run among them."""
        known = {row.job for row in self.rows}
        earlier = earlier_cells(search_roots(self._sweep_dir or jobs[0].cell.sweep_dir)) if jobs else {}
        for job in (left for left in jobs if left.name not in known):
            done = self._is_done(job, earlier)
            self.rows.append(
                _skipped(job, earlier.get(job.hash or ""))
                if done
                else Row(job.name, job.label, summary_table.NOT_RUN, "", None)
            )


def _skipped(job: Job, before: Earlier | None) -> Row:
    if before is None:
        return Row(
            job.name, job.label, summary_table.SKIPPED, "never run; sweep.rerun=failed runs failed cells only", None
        )
    text, value = summary_table.metric_of(before.record)
    return Row(job.name, job.label, summary_table.SKIPPED, f"completed before: {text}", before.folder, value)


def _ended_row(job: Job, ended: Ended) -> Row:
    record = ended.record.data
    text, value = summary_table.metric_of(record)
    if ended.status == "completed":
        return Row(
            job.name,
            job.label,
            summary_table.COMPLETED,
            f"{text} in {_duration(record.get('wall_seconds') or 0.0)}".strip(),
            job.run_dir,
            value,
        )
    status = summary_table.PREEMPTED if ended.status in ("preempted", "interrupted") else summary_table.FAILED
    return Row(job.name, job.label, status, str(record.get("reason") or ""), job.run_dir)


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
