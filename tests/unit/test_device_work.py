"""Optimizer steps do not wait for a GPU. There is none here: events are made by hand, reads of tensors are counted."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from runner.config.schema import RunConfig
from runner.engines.rank import Prepared
from runner.rundir.heartbeat import Heartbeat
from runner.train import loop
from runner.train.ahead import Ahead
from runner.train.context import Output, Task, Timing
from runner.train.device_clock import DeviceClock
from runner.train.loss_watch import LossWatch
from runner.train.progress import MetricsLog
from runner.train.ranks import RankPlace, parameter_bits
from runner.train.step_log import StepLog, TrainingDiverged
from runner.train.timing import EpochTimes
from tests.conftest import ROOT


class HandDevice:
    """A device whose queue is passed only when it is waited for; its own time goes on by a second an event."""

    def __init__(self) -> None:
        self.queued, self.waits, self.passed = 0, 0, 0

    def wait(self) -> None:
        self.waits, self.passed = self.waits + 1, self.queued

    def event(self) -> HandEvent:
        return HandEvent(self)


class HandEvent:
    """In the place of torch.cuda.Event."""

    def __init__(self, device: HandDevice) -> None:
        self._device, self.at = device, -1

    def record(self) -> None:
        self._device.queued += 1
        self.at = self._device.queued

    def query(self) -> bool:
        return self.at <= self._device.passed

    def elapsed_time(self, end: HandEvent) -> float:
        return 1000.0 * (end.at - self.at)


def test_a_step_is_timed_without_a_wait():
    device = HandDevice()
    clock = DeviceClock(device.wait, device.event, now=lambda: 0.0)
    end = clock.start_step()
    with clock.step_phase("forward"):
        pass
    with clock.step_phase("backward"), clock.step_phase("optimizer"):
        pass
    took = end()
    clock.settle()  # nothing has been passed yet
    assert device.waits == 0
    assert clock.seconds == {}
    assert math.isnan(took.seconds)
    clock.read()  # events: step 1, forward 2–3, backward 4–7 around optimizer 5–6, step 8
    assert device.waits == 1
    assert clock.seconds == {"forward": 1.0, "backward": 3.0, "optimizer": 1.0}
    assert took.seconds == 7.0


def test_a_failure_in_a_step_is_charged_to_its_phase():
    device = HandDevice()
    clock = DeviceClock(device.wait, device.event, now=lambda: 0.0)
    with pytest.raises(ValueError), clock.step_phase("backward"):
        raise ValueError
    assert clock.failed_in == "backward"
    assert device.waits == 0


def test_bad_losses_are_counted_on_the_device():
    watch = LossWatch(torch.device("cpu"))
    for step, loss in enumerate([1.0, math.nan, math.inf, 2.0, math.nan], start=1):
        watch.see(torch.tensor(loss), step)
    read = watch.taken(watch.values.tolist())
    assert (read.in_a_row, read.longest, read.first_step) == (1, 2, 5)
    watch.see(torch.tensor(math.nan), 6)
    assert watch.taken(watch.values.tolist()).longest == 2  # the row that was under way goes on
    watch.see(torch.tensor(0.0), 7)
    read = watch.taken(watch.values.tolist())
    assert (read.in_a_row, read.longest) == (0, 2)
    assert watch.taken(watch.values.tolist()).longest == 0


class Busy(RankPlace):
    """A place whose device is not to be read for free."""

    @property
    def reads_are_free(self) -> bool:
        return False


class OneRank:
    """An engine of one rank with plain torch; what accelerate does inside a step is accelerate's own."""

    window_ends = True

    def accumulate(self, prepared):
        return nullcontext()

    def backward(self, loss):
        loss.backward()

    def step(self, prepared):
        norm = torch.nn.utils.clip_grad_norm_(prepared.bare.parameters(), 1.0)
        prepared.optimizer.step()
        prepared.optimizer.zero_grad()
        return norm


class Rows:
    """Twenty rows of length 4."""

    lengths = items = np.full(20, 4)

    def rows(self, numbers):
        return numbers

    def __len__(self) -> int:
        return 20


class Losses:
    """In the place of a recipe: the loss of row k; some are no numbers."""

    def __init__(self, bad: set[int]) -> None:
        self.bad, self.seen = bad, 0

    def collate(self, rows, tokenizer):
        return {"x": torch.ones(1, 2)}

    def loss(self, model, tensors):
        self.seen += 1
        return model(tensors["x"]).sum() * (math.nan if self.seen in self.bad else 1.0)


READS = ("item", "tolist", "cpu", "numpy", "__float__", "__int__", "__bool__")


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Twenty optimizer steps of the real loop and log; what is returned counts reads of tensors by step."""
    # What the runner calls in a GPU run, on the CPU: this machine has no CUDA to count synchronisations of.

    def train(log_every: int, bad: frozenset[int] = frozenset()) -> tuple[Counter[int], HandDevice, list[dict]]:
        config = RunConfig()
        config.launcher.num_processes, config.launcher.device = 1, "cpu"
        config.train.micro_batch_size, config.train.log_every, config.train.batches_ahead = 1, log_every, 2
        config.train.max_nonfinite_steps = 3
        torch.manual_seed(0)
        model, device = torch.nn.Linear(2, 1), HandDevice()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        prepared = Prepared(model, model, optimizer, optimizer, None, None, lambda: None)
        clock = DeviceClock(device.wait, device.event)
        context = SimpleNamespace(
            config=config, engine=OneRank(), place=Busy(0, 1, 0, 1, torch.device("cpu")), prepared=prepared,
            timing=Timing(0.0, clock, EpochTimes(0)), batching="random",
            task=Task(Losses(set(bad)), None, Rows(), {}), output=Output(tmp_path, Heartbeat(tmp_path, 0)),
        )  # fmt: skip
        log = StepLog(context, 20, MetricsLog(tmp_path))
        reads: Counter[int] = Counter()
        state = loop.LoopState()
        for name in READS:
            original = getattr(torch.Tensor, name)

            def counted(tensor, *arguments, _original=original):
                reads[state.step] += 1
                device.passed = device.queued  # a read waits for what is queued
                return _original(tensor, *arguments)

            monkeypatch.setattr(torch.Tensor, name, counted)
        observer = SimpleNamespace(is_over=lambda: False, should_stop=lambda step: False, after_step=log.step)
        try:
            loop.train_epoch(context, state, 20, observer)
        finally:
            monkeypatch.undo()
        lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
        return reads, device, lines

    return train


def test_one_read_at_a_logged_step_and_none_at_the_others(run):
    reads, device, lines = run(log_every=10)
    # Reads are counted under the number of steps done: the log of step k reads at k.
    reads.pop(0)  # the seed of the data loader, which lives on the CPU on every machine
    assert reads == {1: 1, 10: 1, 20: 1}
    assert device.waits == 0
    assert [line["step"] for line in lines] == [1, 10, 20]
    assert all(line["seconds"] > 0 and line["grad_norm"] > 0 for line in lines)


def test_a_bad_loss_between_logged_steps_is_named_with_its_own_step(run):
    """The loss of step 5 makes the weights worthless: bad from 5 to 10, where it is logged."""
    with pytest.raises(TrainingDiverged, match=r"6 steps in a row, up to step 10.*it began at step 5"):
        run(log_every=10, bad=frozenset({5}))


def test_batches_are_collated_ahead_and_in_order():
    made: list[int] = []

    def make(index: int) -> dict[str, torch.Tensor]:
        made.append(index)
        return {"x": torch.tensor([index])}

    ahead = Ahead(make, 5, 2, pin=False)
    assert int(ahead[0]["x"]) == 0
    assert [int(ahead[index]["x"]) for index in range(1, 5)] == [1, 2, 3, 4]
    assert made == [0, 1, 2, 3, 4]
    plain = Ahead(make, 5, 0, pin=False)
    made.clear()
    plain[0]
    assert made == [0]


def test_a_failing_collator_fails_where_its_batch_is_asked_for():
    def make(index: int) -> dict[str, torch.Tensor]:
        if index == 1:
            raise ValueError("row 1")
        return {}

    ahead = Ahead(make, 3, 2, pin=False)
    ahead[0]
    with pytest.raises(ValueError, match="row 1"):
        ahead[1]


DRIFTING = """
import random, sys, time
from datetime import timedelta
from pathlib import Path
import torch.distributed as dist
from runner import rundir
from runner.train.agreement import AgreementByMessages

rank, folder = int(sys.argv[1]), Path(sys.argv[2])
dist.init_process_group("gloo", rank=rank, world_size=2, init_method=f"file://{folder}/rendezvous")
agreement = AgreementByMessages(folder, rank == 0, timedelta(seconds=60))
drift, stopped, wrote = random.Random(rank), None, []
for step in range(60):
    time.sleep(drift.random() * 0.01 * (1 + 3 * ((step // 10 + rank) % 2)))  # each is the slower one in turns
    if rank == 0 and step == 30:
        rundir.request_stop(folder)
    if agreement.stop_before(step, checkpoint_due=rank == 0 and step == 7):
        stopped = step
        break
    if agreement.checkpoint_after(step + 1):
        wrote.append(step + 1)
agreement.close()
dist.barrier()
print(stopped, wrote)
"""


def test_ranks_that_drift_apart_agree_on_a_step(tmp_path):
    """Two real ranks over gloo; rank 0 wants a checkpoint at step 7 and a stop at step 30: two steps later each."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", DRIFTING, str(rank), str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        for rank in range(2)
    ]
    assert [rank.communicate(timeout=120)[0].split("\n")[0] for rank in ranks] == ["32 [10]"] * 2


class Whole:
    """An engine whose parameters are whole."""

    def whole(self, parameter):
        return nullcontext(parameter)


def bits_of(*tensors: torch.Tensor) -> int:
    model = torch.nn.ParameterList(torch.nn.Parameter(tensor) for tensor in tensors)
    return parameter_bits(Whole(), model)


def test_the_checksum_of_bits_by_hand():
    """1.0 is 0x3F800000 (1065353216), -2.0 is 0xC0000000 (-1073741824); the next tensor comes to 31 times that."""
    first, second = torch.tensor([1.0, -2.0]), torch.tensor([1.0])
    assert bits_of(first) == -8388608
    assert bits_of(first, second) == -8388608 * 31 + 1065353216
    assert bits_of(second, first) != bits_of(first, second)
    assert bits_of(torch.tensor([1.0, 1.0000001])) == bits_of(torch.tensor([1.0, 1.0])) + 1


def test_the_checksum_of_bits_knows_no_order_of_adding():
    """Other pieces stand for another GPU's order of adding; sums of floats differ in their last digits there."""
    values = torch.randn(10_001, generator=torch.Generator().manual_seed(0)) * 10.0 ** torch.arange(10_001).fmod(7)
    whole = bits_of(values)
    assert bits_of(values.flip(0)) == whole
    assert float(values.sum()) != float(values.flip(0).sum()) or float(values.cumsum(0)[-1]) != float(values.sum())
    assert bits_of(values.bfloat16()) == bits_of(values.bfloat16().flip(0)) != whole
