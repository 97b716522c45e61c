"""What the file states, taken into the run's configuration; contradictions with what was typed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runner.config import plan
from runner.config.resolve import resolve_machine
from runner.config.schema import RunConfig
from runner.engines.deepspeed.config import offload_section, zero_section
from runner.engines.deepspeed.user_json import blocks
from runner.engines.deepspeed.user_json.known import AUTO
from runner.engines.deepspeed.user_json.other_blocks import check_other_blocks
from runner.engines.deepspeed.user_json.reading import FIX, checked_values, get, read
from runner.errors import Problem

_ZERO = (
    "stage",
    "reduce_bucket_size",
    "allgather_bucket_size",
    "overlap_comm",
    "contiguous_gradients",
    "sub_group_size",
)
_STAGE3 = (
    "stage3_prefetch_bucket_size",
    "stage3_param_persistence_threshold",
    "stage3_max_live_parameters",
    "stage3_max_reuse_distance",
)
_READ_BY: dict[str, tuple[int, ...]] = {  # ZeRO stages at which DeepSpeed reads a key
    **dict.fromkeys(("reduce_bucket_size", "overlap_comm", "contiguous_gradients"), (1, 2, 3)),
    "allgather_bucket_size": (1, 2),
    "sub_group_size": (3,),
    **dict.fromkeys((*_STAGE3, "zero_hpz_partition_size"), (3,)),
}
_BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
_OFFLOAD = (("offload_optimizer", "optimizer"), ("offload_param", "params"))
ADOPTED = {  # where a value in the JSON belongs in the run's configuration
    "train_micro_batch_size_per_gpu": "train.micro_batch_size",
    "gradient_accumulation_steps": "train.gradient_accumulation_steps",
    "train_batch_size": "train.global_batch_size",
    "gradient_clipping": "train.gradient_clipping",
    **{f"zero_optimization.{block}.device": f"offload.{key}" for block, key in _OFFLOAD},
    **{f"zero_optimization.{block}.nvme_path": "offload.nvme_path" for block, _ in _OFFLOAD},
    **{f"optimizer.params.{key}": f"optimizer.{key}" for key in ("lr", "betas", "eps", "weight_decay", "fused")},
    "scheduler.params.warmup_max_lr": "optimizer.lr",
    "scheduler.params.warmup_num_steps": "scheduler.warmup_steps",
    **{f"zero_optimization.{key}": f"zero.{key}" for key in (*_ZERO, *_STAGE3)},
}
FP16 = {
    f"fp16.{key}": f"precision.{key}"
    for key in ("loss_scale", "initial_scale_power", "loss_scale_window", "hysteresis", "min_loss_scale")
}
CHOSEN_BY = {  # group that sets the key
    "zero.stage": "zero_stage",
    "offload.optimizer": "offload",
    "offload.params": "offload",
    "scheduler.name": "scheduler",
    "precision.name": "precision",
}


def adopt(config: RunConfig, explicit: frozenset[str]) -> tuple[dict[str, Any] | None, list[Problem]]:
    """Read `launcher.config_file` and take its values into the configuration, in place.

    Args:
        explicit: keys and groups that were typed; a different value in the file is an error.

    Raises:
        RequestError: when the file cannot be read.
    """
    if config.launcher.config_file is None:
        return None, []
    content, problems = checked_values(read(Path(config.launcher.config_file).expanduser()))
    taking = _Taking(config, content, explicit, problems)
    if blocks.unshifted(content):
        taking.take("scheduler.params.warmup_num_steps", "scheduler.warmup_steps", 0)
    taking.batch()
    taking.stated(ADOPTED)
    taking.hybrid_shard()
    taking.gathering()
    taking.owners()
    taking.precision()
    taking.blocks()
    taking.what_the_machine_decides()
    broken = any(problem.severity == "error" for problem in problems)
    problems += check_other_blocks(content, config.launcher.config_file, library=not broken)
    return content, problems


class _Taking:
    """The way of one file's values into a configuration.

    Attributes:
        taken: configuration key → (path in the file, value), to find two values of the file for one key.
    """

    def __init__(
        self, config: RunConfig, content: dict[str, Any], explicit: frozenset[str], problems: list[Problem]
    ) -> None:
        self.config, self.content, self.explicit, self.problems = config, content, explicit, problems
        self.taken: dict[str, tuple[str, Any]] = {}

    def stated(self, table: dict[str, str]) -> None:
        """Take every value of a table that the file states; what its own stage does not read is
        said, and left alone.
        """
        idle = []
        for path, key in table.items():
            value = get(self.content, path)
            if value is None or value == AUTO:
                continue
            if zero_section(self.config).stage in _READ_BY.get(path.rpartition(".")[2], (0, 1, 2, 3)):
                self.take(path, key, value)
            else:
                idle.append(path)
        if idle:
            why = (
                f"at ZeRO stage {zero_section(self.config).stage} these have no effect (in "
                f"{self.config.launcher.config_file})"
            )
            self.problems.append(Problem(", ".join(idle), None, why, "", "notice"))

    def batch(self) -> None:
        """Micro batch and accumulation by DeepSpeed's rule, where the file has the whole batch: two numbers give the
        third, and a whole batch alone means no accumulation. What was typed counts as stated; defaults do not.
        """
        whole, micro, steps = (self._stated_count(name) for name in _BATCH)
        if whole is None or not isinstance(self.content.get(_BATCH[0]), int):
            return
        train, ranks = self.config.train, plan.data_parallel_size(resolve_machine(self.config)[0])
        left_open = micro is None and steps is None and self.content.get(_BATCH[1]) == AUTO
        if left_open and whole % (train.micro_batch_size * ranks) == 0:
            return  # the run's own micro batch fills `auto`, and accumulation follows
        shared = ranks * (micro or 1) * (steps or 1)
        if whole % shared or (micro and steps and whole != shared):
            parts = [
                f"{ranks} ranks",
                *(f"{name}={n}" for name, n in zip(_BATCH[1:], (micro, steps), strict=True) if n),
            ]
            near = shared if micro and steps else max(1, whole // shared) * shared
            why = (
                f"it is no multiple of {' × '.join(parts)} = {shared}"
                if whole % shared
                else f"{' × '.join(parts)} = {shared}"
            )
            self.problems.append(
                Problem(_BATCH[0], whole, why, f'write "train_batch_size": {near} into launcher.config_file')
            )
            del self.content[_BATCH[0]]
        elif micro is None:
            train.micro_batch_size = whole // shared
            train.gradient_accumulation_steps = steps or 1

    def _stated_count(self, name: str) -> int | None:
        """One of the three batch numbers, from the file or as typed."""
        key = ADOPTED[name]
        value = self.content.get(name)
        if key in self.explicit:
            value = getattr(self.config.train, key.partition(".")[2])
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None

    def take(self, path: str, key: str, value: object, said: str = "") -> None:
        """Set one key of the configuration, unless another value was typed or stands in the file already; `said` are
        the file's words for it.
        """
        section, _, name = key.partition(".")
        own, chosen_by = getattr(getattr(self.config, section), name), CHOSEN_BY.get(key, key)
        first, other = self.taken.setdefault(key, (path, value))
        if not _same(other, value):
            self.problems.append(
                Problem(
                    path,
                    value,
                    f"launcher.config_file says {first}={other} as well, and a run has one {key}",
                    "write the same value, or auto, for both",
                )
            )
        elif {key, chosen_by, f"++{key}"} & self.explicit and own != AUTO and not _same(own, value):
            self.problems.append(
                Problem(
                    chosen_by,
                    own,
                    f"launcher.config_file says {said or f'{path}={value}'}",
                    f"leave {chosen_by} out or change the file",
                )
            )
        elif not _same(own, value):
            self._set(path, section, name, value)

    def _set(self, path: str, section: str, name: str, value: object) -> None:
        try:
            setattr(getattr(self.config, section), name, tuple(value) if isinstance(value, list) else value)
        except ValueError as error:
            why = (
                str(error).splitlines()[2] if str(error).count("\n") > 1 else str(error)
            )  # pydantic: title, key, then the reason
            self.problems.append(Problem(path, value, why.partition(" [type=")[0].strip(), FIX))
            return
        if section == "offload" and name in ("optimizer", "params"):
            offload_section(self.config).name = "launcher.config_file"

    def precision(self) -> None:
        """The number format that `bf16.enabled` and `fp16.enabled` mean together."""
        stated = {
            name: value for name in ("bf16", "fp16") if isinstance(value := get(self.content, f"{name}.enabled"), bool)
        }
        enabled = [name for name, value in stated.items() if value]
        if len(enabled) == 2:
            self.problems.append(
                Problem(
                    "fp16.enabled",
                    True,
                    "bf16.enabled is true as well",
                    "switch one of them off in launcher.config_file",
                )
            )
            return
        own, open_ended = (
            self.config.precision.name,
            any(get(self.content, f"{name}.enabled") == AUTO for name in ("bf16", "fp16")),
        )
        if not stated or (open_ended and not enabled and resolve_machine(self.config)[0].precision.name not in stated):
            return  # nothing is said, or one format is excluded and it is not the run's
        word = enabled[0] if enabled else "fp32"
        if "precision" in self.explicit and own not in (word, AUTO):
            self.problems.append(
                Problem(
                    "precision", own, f"launcher.config_file means {word}", "leave precision out or change the file"
                )
            )
        else:
            self.config.precision.name = word  # type: ignore[assignment]

    def hybrid_shard(self) -> None:
        """hpZ's group; 0 and 1 mean none."""
        path = "zero_optimization.zero_hpz_partition_size"
        size = get(self.content, path)
        if isinstance(size, int) and size > 1:
            self.stated({path: "parallel.hybrid_shard"})

    def gathering(self) -> None:
        """At stage 3 the final model is saved from gathered weights: a file that forbids it is overruled, and that is
        said.
        """
        path = "zero_optimization.stage3_gather_16bit_weights_on_model_save"
        if zero_section(self.config).stage == 3 and get(self.content, path) is False:
            why = "the run sets it to true: without it DeepSpeed saves placeholders instead of weights"
            self.problems.append(Problem(path, "false", why, "", "notice"))

    def owners(self) -> None:
        """A block in the file makes DeepSpeed the owner, its absence the client."""
        for name in ("optimizer", "scheduler"):
            section, owner = getattr(self.config, name), "deepspeed" if name in self.content else "client"
            if f"{name}.owner" in self.explicit and section.owner not in (owner, AUTO):
                has = "has a" if name in self.content else "has no"
                self.problems.append(
                    Problem(
                        f"{name}.owner",
                        section.owner,
                        f"launcher.config_file {has} {name} block",
                        f"use {name}.owner={owner} or change the file",
                    )
                )
            section.owner = owner

    def blocks(self) -> None:
        """The schedule's name follows from its type; types that the run cannot state are refused."""
        self.problems += blocks.check_types(self.content)
        kind = str(get(self.content, "scheduler.type"))
        if kind in blocks.SCHEDULES:
            name = blocks.SCHEDULES[kind]
            self.take("scheduler.type", "scheduler.name", name, f"scheduler.type={kind}, which is {name}")
            self.problems += blocks.check_schedule(self.content, self.config.scheduler.warmup_steps)

    def what_the_machine_decides(self) -> None:
        """Values that mean something on some devices, number formats or places only; elsewhere they would be unused
        keys.
        """
        resolved, _ = resolve_machine(self.config)
        if resolved.precision.name == "fp16":
            self.stated(FP16)
        for block, key in _OFFLOAD:
            place = getattr(offload_section(resolved), key)
            if place == "nvme":
                self._of_both(f"zero_optimization.{block}.buffer_count", "offload.buffer_count")
            if place != "none" and resolved.launcher.device == "cuda":
                self._of_both(f"zero_optimization.{block}.pin_memory", "offload.pin_memory")
        if offload_section(resolved).optimizer != "none":
            self._cpu_adam()
            resolved, _ = resolve_machine(self.config)
        if str(get(self.content, "optimizer.type")).lower() in {name.lower() for name in blocks.ADAM}:
            # Only a typed `fused` makes torch's class of a block for which DeepSpeed would take its own.
            resolved.optimizer.fused = self.config.optimizer.fused is True
            self.problems += blocks.check_optimizer(self.content, resolved)
            params = self.content["optimizer"].setdefault("params", {})
            if not isinstance(params.get("torch_adam"), bool):
                params["torch_adam"] = blocks.adam_class(self.content, resolved) == "torch AdamW"

    def _of_both(self, path: str, key: str) -> None:
        """One key of the configuration for two blocks; where the file has two values, each block keeps its own."""
        value = get(self.content, path)
        if value is None or value == AUTO:
            return
        first, other = self.taken.get(key, (path, value))
        if other != value:
            self.problems.append(
                Problem(path, value, f"the record has one {key}, and there stands {first}={other}", "", "notice")
            )
        else:
            self.take(path, key, value)

    def _cpu_adam(self) -> None:
        """Whose optimizer an offloaded one is: with a block `torch_adam` decides, without one
        `zero_force_ds_cpu_optimizer`.
        """
        if "optimizer" not in self.content:
            self.stated({"zero_force_ds_cpu_optimizer": "offload.force_cpu_adam"})
            return
        torch_adam = get(self.content, "optimizer.params.torch_adam")
        if isinstance(torch_adam, bool):
            self.take(
                "optimizer.params.torch_adam",
                "offload.force_cpu_adam",
                not torch_adam,
                f"optimizer.params.torch_adam={torch_adam}",
            )


def _same(own: object, value: object) -> bool:
    return (
        list(own) == list(value)
        if isinstance(own, list | tuple) and isinstance(value, list | tuple)
        else bool(own == value)
    )


def fixed_batch(config: RunConfig, with_accumulation: bool) -> list[Problem]:
    """Batch sizes that `launcher.config_file` fixes, where they are what is searched for.

    Args:
        config: as composed.
        with_accumulation: whether gradient accumulation is set by the search, too.
    """
    if config.launcher.config_file is None:
        return []
    content = read(Path(config.launcher.config_file).expanduser())
    keys = [
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        *(["gradient_accumulation_steps"] if with_accumulation else []),
    ]
    why = "the search for the largest micro batch sets it, and launcher.config_file fixes it"
    return [
        Problem(key, content[key], why, f'write "{key}": "auto" in launcher.config_file')
        for key in keys
        if content.get(key, AUTO) != AUTO
    ]
