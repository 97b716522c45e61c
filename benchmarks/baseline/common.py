"""What both baseline scripts share: the Accelerator of a CPU machine, the optimizer, and the figures they write."""

import json
import time

import accelerate
import torch
from accelerate.utils import InitProcessGroupKwargs
from transformers import get_scheduler


def build_accelerator():
    """An Accelerator whose two ranks really exchange gradients.

    On CPU the backend has to be named, or accelerate sees one process a rank; and DeepSpeed would first compile a
    shared-memory all-reduce (25 s, then kept). It is left out here and in the runner alike: gloo does the same.
    """
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    accelerator = accelerate.Accelerator(kwargs_handlers=[InitProcessGroupKwargs(backend="gloo")])
    assert accelerator.num_processes == torch.distributed.get_world_size(), "the ranks would train models of their own"
    return accelerator


def build_optimizer(model, learning_rate, weight_decay):
    """AdamW without decay on biases and normalisation weights."""
    no_decay = ["bias", "LayerNorm.weight", "layer_norm.weight"]
    groups = [
        {
            "params": [p for n, p in model.named_parameters() if not any(nd in n for nd in no_decay)],
            "weight_decay": weight_decay,
        },
        {"params": [p for n, p in model.named_parameters() if any(nd in n for nd in no_decay)], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=learning_rate)


def build_schedule(accelerator, optimizer, steps, warmup_steps):
    """Linear; accelerate steps it once a process, so its lengths are given in steps of all processes."""
    scale = accelerator.num_processes
    return get_scheduler(
        "linear", optimizer=optimizer, num_warmup_steps=warmup_steps * scale, num_training_steps=steps * scale
    )


def peak_resident_bytes():
    """Largest resident set of this process so far."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))


class Figures:
    """Times of a run, on the clock that all processes of the machine share; rank 0 writes them."""

    def __init__(self, accelerator, path):
        self.accelerator, self.path = accelerator, path
        self.values = {"train_seconds": 0.0, "samples": 0, "first_step_at": None, "tenth_step_at": None}
        self.steps = 0

    def step_done(self):
        self.steps += 1
        if self.steps in (1, 10):
            self.values["first_step_at" if self.steps == 1 else "tenth_step_at"] = time.monotonic()

    def write(self, **more):
        peak = torch.tensor([peak_resident_bytes()], dtype=torch.int64)
        peaks = self.accelerator.gather(peak).tolist()
        if self.accelerator.is_main_process:
            with open(self.path, "w") as file:
                json.dump(
                    {
                        **self.values,
                        **more,
                        "peak_memory_bytes": peaks,
                        "world_size": self.accelerator.num_processes,
                        "launcher": str(self.accelerator.distributed_type.value),
                    },
                    file,
                )
