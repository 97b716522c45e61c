"""A rank that takes each optimizer step twice, by the runner's loop and by the bare loop, on the same batches.

Started by `accelerate launch -m benchmarks.loop_rank RUN_DIR ANSWER EPOCHS` on a rendered run folder. The two take
turns step by step, so that a machine that slows down slows both; milliseconds a step are the mean over an epoch,
collating and logging included.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from statistics import mean
from typing import Any

from torch.utils.data import DataLoader

from runner import rundir
from runner.recipe import load_recipe
from runner.rundir.heartbeat import Heartbeat
from runner.train import loop, optimization, worker
from runner.train.checkpointing import Checkpoints
from runner.train.faults import Faults
from runner.train.progress import MetricsLog
from runner.train.ranks import build_accelerator
from runner.train.timing import PhaseClock

WARM_UP_STEPS = 5


class TakingTurns(worker.RankRun):
    """A rank's run whose loop is followed, after every optimizer step, by the bare loop's step on the same batch."""

    def begin(self, batches: list[Any]) -> None:
        """Make ready for an epoch over these micro batches."""
        self.seconds: dict[str, list[float]] = {"loop": [], "bare": []}
        self._bare = iter(DataLoader(loop._Collated(self, batches), batch_size=None, shuffle=False))
        self._since = time.perf_counter()

    def after_step(self, state: loop.LoopState) -> None:
        """What the runner does after a step; then the other's turn."""
        super().after_step(state)
        done = time.perf_counter()
        self.seconds["loop"].append(done - self._since)
        self._bare_step()
        self._since = time.perf_counter()
        self.seconds["bare"].append(self._since - done)

    def _bare_step(self) -> None:
        """What a script does for each batch, and nothing else."""
        loss = self.prepared.model(**next(self._bare)).loss
        self.accelerator.backward(loss)
        self.prepared.optimizer.step()
        self.prepared.optimizer.zero_grad()


def main(folder: str, answer: str, epochs: str) -> None:
    """Measure, and let rank 0 write milliseconds a step, by loop and epoch."""
    run = _run(Path(folder))
    batches = [batch for window in loop.plan_epoch(run, 0) for batch in window.batches]
    log = MetricsLog(run.run_dir) if run.accelerator.is_main_process else None
    found: dict[str, list[float]] = {"loop": [], "bare": []}
    for _ in range(int(epochs)):
        run.begin(batches)
        loop.train_epoch(run, loop.LoopState(), len(batches), run.heartbeat, log)
        for name, seconds in run.seconds.items():
            found[name].append(1000 * mean(seconds[WARM_UP_STEPS:]))
    if run.accelerator.is_main_process:
        Path(answer).write_text(json.dumps(found))
    run.accelerator.end_training()


def _run(run_dir: Path) -> TakingTurns:
    config = rundir.read_config(run_dir)
    accelerator = build_accelerator(config)
    rank = accelerator.process_index
    run = TakingTurns(
        run_dir,
        config,
        time.monotonic(),
        PhaseClock(),
        load_recipe(config),
        accelerator,
        Heartbeat(run_dir, rank),
        Faults(rank),
    )
    run.clock.on_entry = run.faults
    worker._load_data(run)
    model = worker._load_model(run)
    run.prepared = optimization.prepare(config, accelerator, model, 10_000)
    run.checkpoints = Checkpoints(run)
    run.prepared.model.train()
    return run


if __name__ == "__main__":
    main(*sys.argv[1:])
