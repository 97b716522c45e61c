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

from torch.utils.data import DataLoader

from runner import rundir
from runner.engines.rank import rank_engine_of
from runner.rundir.heartbeat import Heartbeat
from runner.train import loop, worker
from runner.train.batching import MicroBatch
from runner.train.context import Output, RankContext, RankStart, Timing
from runner.train.faults import Faults
from runner.train.progress import MetricsLog
from runner.train.ranks import RankPlace
from runner.train.timing import EpochTimes, PhaseClock
from runner.train.training import Training

WARM_UP_STEPS = 5
MANY_STEPS = 10_000


class TakingTurns:
    """A rank's training whose loop is followed, after every optimizer step, by the bare loop's step
    on the same batch.
    """

    def __init__(self, training: Training, context: RankContext, batches: list[MicroBatch]) -> None:
        self._training, self._context = training, context
        self.seconds: dict[str, list[float]] = {"loop": [], "bare": []}
        self._bare = iter(DataLoader(loop.Collated(context.task, batches), batch_size=None, shuffle=False))
        self._since = time.perf_counter()

    def should_stop(self, step: int) -> bool:
        """As the runner asks."""
        return self._training.should_stop(step)

    def after_step(self, state: loop.LoopState, result: loop.StepResult) -> None:
        """What the runner does after a step; then the other's turn."""
        self._training.after_step(state, result)
        done = time.perf_counter()
        self.seconds["loop"].append(done - self._since)
        self._bare_step()
        self._since = time.perf_counter()
        self.seconds["bare"].append(self._since - done)

    def _bare_step(self) -> None:
        """What a script does for each batch, and nothing else."""
        prepared = self._context.prepared
        loss = prepared.model(**next(self._bare)).loss
        self._context.engine.accelerator.backward(loss)
        prepared.optimizer.step()
        prepared.optimizer.zero_grad()


def main(folder: str, answer: str, epochs: str) -> None:
    """Measure, and let rank 0 write milliseconds a step, by loop and epoch."""
    context = _context(Path(folder))
    batches = [batch for window in loop.plan_epoch(context, 0) for batch in window.batches]
    training = Training(context, MANY_STEPS)
    training.begin(MetricsLog(context.output.folder) if context.place.is_main else None)
    found: dict[str, list[float]] = {"loop": [], "bare": []}
    for _ in range(int(epochs)):
        turns = TakingTurns(training, context, batches)
        loop.train_epoch(context, loop.LoopState(), len(batches), turns)
        for name, seconds in turns.seconds.items():
            found[name].append(1000 * mean(seconds[WARM_UP_STEPS:]))
    if context.place.is_main:
        Path(answer).write_text(json.dumps(found))
    context.engine.accelerator.end_training()


def _context(run_dir: Path) -> RankContext:
    config = rundir.read_config(run_dir)
    engine = rank_engine_of(config)
    place = RankPlace.of(config, engine)
    clock = PhaseClock()
    clock.on_entry = faults = Faults(place.rank)
    output = Output(run_dir, Heartbeat(run_dir, place.rank))
    timing = Timing(time.monotonic(), clock, EpochTimes(0))
    return worker.load(RankStart(config, False, engine, place, timing, output, faults))[0]


if __name__ == "__main__":
    main(*sys.argv[1:])
