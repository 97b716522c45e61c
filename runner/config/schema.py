"""The typed run configuration: every key once, with its unit, its range and its meaning.

`RunConfig` is what every later step takes. It is built by `runner.compose` from Hydra's output and
read back in each rank from the run folder's `config.yaml`. Sections that only one engine reads are described in the
engine's own room and become part of it here. This module imports neither Hydra nor torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, Field, create_model
from pydantic_core import PydanticCustomError

from runner import adapters, engines
from runner.config.fields import Float, Int, Open, Ranks, Section, Settings, Text, Threads
from runner.config.inputs import DatasetConfig, ModelConfig, RecipeConfig
from runner.config.optimization import OptimizerConfig, SchedulerConfig
from runner.parallel.config import ParallelConfig

Device = Literal["auto", "cpu", "cuda"]
SectionType = TypeVar("SectionType", bound=Section)


def _known_engine(name: str) -> str:
    if name not in engines.names():
        raise PydanticCustomError("engine", "there is no such launcher", {"known": list(engines.names())})
    return name


class TrainConfig(Section):
    """The loop. Steps are optimizer steps everywhere; batch sizes are rows."""

    epochs: Int = Field(3, ge=1, description="Passes over the training split.")
    max_steps: Int | None = Field(
        None, ge=1, description="Optimizer steps after which training ends, whatever `epochs` says; null: no limit."
    )
    micro_batch_size: Int = Field(8, ge=1, description="Rows per device and forward pass in training.")
    eval_micro_batch_size: Int = Field(32, ge=1, description="Rows per device and forward pass in evaluation.")
    gradient_accumulation_steps: Int = Field(1, ge=1, description="Micro batches per optimizer step.")
    global_batch_size: Int | None = Field(
        None, ge=1, description="Rows per optimizer step over all devices; when set, accumulation is derived from it."
    )
    gradient_clipping: Float = Field(
        1.0, ge=0.0, description="Largest gradient norm (L2, over all parameters); 0 turns clipping off."
    )
    seed: Int = Field(42, ge=0, le=2**32 - 1, description="Seed of initialisation, dropout and data order.")
    gradient_checkpointing: bool = Field(
        False, description="Recompute activations in the backward pass: less memory, more time."
    )
    log_every: Int = Field(10, ge=1, description="Optimizer steps between two lines of metrics.jsonl.")
    batching: Literal["random", "similar_length"] = Field(
        "similar_length",
        description="random: shuffled rows; similar_length: shuffled batches of rows of similar length.",
    )
    evaluate_every_epoch: bool = Field(True, description="Evaluate after every epoch; false: only after the last.")
    evaluate_every_steps: Int | None = Field(
        None, ge=1, description="Also evaluate the validation split after every so many optimizer steps."
    )
    early_stopping_patience: Int | None = Field(
        None,
        ge=1,
        description="End training when `recipe.metric_for_best` has not become better in this many evaluations in a "
        "row; null: never.",
    )
    early_stopping_min_delta: Float = Field(
        0.0, ge=0.0, description="What the metric must gain, in its own units, to count as better for early stopping."
    )
    load_best_at_end: bool = Field(
        False,
        description="After training, take up the weights of the best evaluation, in a checkpoint of their own: they "
        "are tested and saved.",
    )
    warmup_steps_not_timed: Int = Field(
        3, ge=0, description="First optimizer steps left out of step_seconds_p50 and p95."
    )
    dataloader_workers: Int = Field(
        0, ge=0, le=1024, description="Worker processes that collate batches, per rank; 0 collates in the rank."
    )
    batches_ahead: Annotated[Int, Field(ge=0, le=64)] | Literal["auto"] = Field(
        "auto",
        description="Batches that a thread of the rank collates ahead of the device, in evaluation, too; auto: 2 on a "
        "GPU, 0 on CPU.",
    )
    max_nonfinite_steps: Int = Field(
        5, ge=1, description="Losses in a row that are NaN or infinite before the run is stopped."
    )
    save_model: bool = Field(True, description="Save final weights and tokenizer under model/ in the run folder.")

    @property
    def number_of_batches_ahead(self) -> int:
        """Once resolved."""
        assert self.batches_ahead != "auto", "resolved before the run"
        return self.batches_ahead


class PrecisionConfig(Section):
    """Number format of the forward and backward pass."""

    name: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        "auto",
        description="auto: bf16 where the GPU has it, fp16 on older GPUs (fp32 for models that overflow in it), fp32 "
        "on CPU.",
    )
    loss_scale: Float | None = Field(None, ge=0.0, description="fp16 only: fixed loss scale; 0 is dynamic.")
    initial_scale_power: Int | None = Field(
        None, ge=0, le=32, description="fp16 only: the first dynamic loss scale is 2 to this power."
    )
    loss_scale_window: Int | None = Field(
        None, ge=1, description="fp16 only: steps without overflow before the scale doubles."
    )
    hysteresis: Int | None = Field(None, ge=1, description="fp16 only: overflows before the scale is halved.")
    min_loss_scale: Float | None = Field(None, ge=0.0, description="fp16 only: smallest dynamic loss scale.")


class LauncherConfig(Section):
    """How many ranks run, where, and who starts them."""

    name: Annotated[Text, AfterValidator(_known_engine)] = Field(
        "deepspeed", description="Name of the launcher, as chosen by `launcher=`."
    )
    device: Device = Field("auto", description="auto: cuda where a GPU is visible, else cpu.")
    num_processes: Ranks | Literal["auto"] = Field(
        "auto", description="Ranks on this machine, at most 1024; auto: one per visible GPU, or 2 on CPU."
    )
    num_nodes: Int = Field(1, ge=1, le=65536, description="Machines; more than 1 needs another `cluster` than local.")
    gpu_ids: Text = Field("all", description="Visible GPU ids to use, comma separated, or all.")
    main_process_port: Int | None = Field(
        None, ge=1, le=65535, description="Port of the rendezvous on this machine; null: a free one."
    )
    omp_num_threads: Threads | Literal["auto"] = Field(
        "auto", description="CPU threads per rank, at least 1; auto: physical cores divided by ranks on this machine."
    )
    config_file: Text | None = Field(
        None,
        description="A DeepSpeed JSON of yours; what it leaves open is filled from the configuration, contradictions "
        "are errors.",
    )
    start_method: Literal["auto", "fork", "spawn"] = Field(
        "auto",
        description="fork: ranks start from a parent that has imported the libraries (CPU only); spawn: fresh "
        "interpreters.",
    )
    max_restarts: Int = Field(
        0, ge=0, description="Times all ranks are started again from the last checkpoint after one failed."
    )
    start_timeout_seconds: Float = Field(
        600.0, gt=0, description="Longest time from launch to the first sign of life of the loop."
    )
    hang_timeout_seconds: Float = Field(
        1800.0,
        gt=0,
        description="Longest time without progress before the run is ended with each rank's stack in its log.",
    )


class ClusterConfig(Section):
    """Where ranks run: this machine, machines that reach each other, Slurm or Spark. A key of another cluster is an
    error.
    """

    name: Literal["local", "nodes", "slurm", "spark"] = Field(
        "local", description="Name of the cluster, as chosen by `cluster=`."
    )
    interface: Text | None = Field(
        None,
        description="nodes, slurm, spark: network interface between the machines; null: the one that reaches the head "
        "(or the driver).",
    )
    join_timeout_seconds: Float = Field(
        600.0,
        gt=0,
        description="nodes, slurm, spark: longest wait for a node, or for Spark's slots, before ranks start.",
    )
    node_timeout_seconds: Float = Field(
        60.0,
        ge=5,
        description="nodes, slurm, spark: a machine (or the head, the driver) silent for so long ends the run.",
    )
    hosts: list[Text] | None = Field(
        None, description="nodes: machines to start on over ssh; the first is the one where the command is typed."
    )
    hostfile: Text | None = Field(None, description="nodes: a DeepSpeed hostfile (`HOST slots=N`) instead of `hosts`.")
    node_rank: Int | None = Field(
        None,
        ge=0,
        description="nodes, by hand: this machine's number, 0 on the head; null: from NODE_RANK and the like.",
    )
    head: Text | None = Field(
        None, description="nodes, by hand: HOST:PORT where the head listens, the same on every machine."
    )
    partition: Text | None = Field(None, description="slurm: partition; null: the cluster's default.")
    account: Text | None = Field(None, description="slurm: account that is charged.")
    qos: Text | None = Field(None, description="slurm: quality of service.")
    constraint: Text | None = Field(None, description="slurm: features a node must have.")
    time_minutes: Int | None = Field(None, ge=1, description="slurm: time limit of one job; null: the partition's.")
    cpus_per_node: Int | None = Field(None, ge=1, description="slurm: CPU cores of each node; null: 1 per rank.")
    gpus_per_node: Int | None = Field(None, ge=1, description="slurm: GPUs of each node; null: none, ranks run on CPU.")
    memory_per_node: Text | None = Field(None, description="slurm: memory of each node, e.g. 64G; null: the default.")
    exclusive: bool = Field(True, description="slurm: nodes are not shared: other jobs would falsify the times.")
    signal_seconds: Int = Field(
        120,
        ge=1,
        le=65535,
        description="slurm: seconds before the time limit at which the run checkpoints and is requeued.",
    )
    max_requeues: Int = Field(
        2, ge=1, description="slurm: attempts in a row without a new optimizer step after which a run is not requeued."
    )
    wait: bool = Field(False, description="slurm: stay until the run has ended and return its exit status.")
    setup: list[Text] = Field([], description="slurm: shell lines before the run (module load, source).")
    options: dict[str, Text] = Field({}, description="slurm: further options of sbatch, without the leading --.")
    master: Text | None = Field(
        None,
        description="spark: the master's URL, spark://HOST:7077; null: the session that is there (a notebook's), else "
        "MASTER, else local[ranks].",
    )
    local_mode: bool = Field(
        False, description="spark: all ranks on the driver's machine, by the distributor's local mode."
    )
    conf: Settings = Field({}, description="spark: settings of a new session: cluster.conf.spark.executor.memory=8g.")


class CheckpointConfig(Section):
    """When complete training state is written, and how much is kept."""

    every_steps: Int | None = Field(None, ge=1, description="Optimizer steps between checkpoints.")
    every_epoch: bool = Field(False, description="Checkpoint after every epoch.")
    every_minutes: Float | None = Field(None, gt=0, description="Minutes between checkpoints.")
    keep_last: Int = Field(2, ge=1, description="Newest checkpoints kept.")
    keep_best: bool = Field(False, description="Also keep the checkpoint with the best metric.")
    check_space: bool = Field(
        True,
        description="Refuse to start where checkpoints, final model and download are predicted not to fit on their "
        "disks; false: only warn.",
    )
    required: bool = Field(
        False,
        description="A checkpoint that cannot be written ends the run as failed; false: a warning, and the run "
        "continues.",
    )
    on_preemption: bool = Field(
        True, description="Checkpoint when SIGTERM, SIGUSR1, SIGHUP or Ctrl-C asks the run to end."
    )


class FitConfig(Section):
    """The search for what fits (`python -m runner fit`)."""

    memory_budget: Text | None = Field(None, description="Bytes a rank may use, e.g. 24GiB; null: the device's memory.")
    target_global_batch: Int | None = Field(
        None, ge=1, description="Search all candidates at this global batch; null: find the largest micro batch."
    )
    steps: Int = Field(3, ge=2, description="Optimizer steps of one trial; the first one has no optimizer states yet.")
    max_micro_batch_size: Int = Field(4096, ge=1, description="Largest micro batch tried.")
    trial_timeout_seconds: Float = Field(900.0, gt=0, description="Longest time of one trial.")
    name: Text | None = Field(None, description="Name under which the result is saved for `+fitted=NAME`.")


class SweepConfig(Section):
    """How cells of a multirun are run."""

    rerun: Literal["missing", "failed", "all"] = Field(
        "missing",
        description="missing: cells without a completed record; failed: of those, only cells that have run before; "
        "all: every cell again.",
    )
    repeats: Int = Field(1, ge=1, description="Runs of every cell, with seeds seed, seed + 1, …")
    on_error: Literal["continue", "stop"] = Field("continue", description="What happens after a failed cell.")
    largest_batch: bool = Field(
        False,
        description="After the cells as configured, run each once more at the largest micro batch that `fit` finds "
        "for it.",
    )


class TrackerConfig(Section):
    """Where a run's numbers are sent beside the run folder (docs/trackers.md). Credentials come from the tracker's own
    environment variables only.
    """

    use: dict[str, bool] = Field(
        {}, description="Tracker → whether it is used; set by `tracker=NAME` or `tracker=[A,B]`."
    )
    project: Text = Field("finetune-runner", description="Experiment (MLflow) or project (wandb, trackio).")
    tags: dict[str, Text] = Field({}, description="Tags of your own.")
    wait_seconds: Float = Field(
        0.8,
        ge=0.0,
        description="Longest time in seconds that a finished run waits for its trackers; the rest is sent in the "
        "background.",
    )


class _Common(Section):
    """One run, as far as it is the same for every engine."""

    recipe: RecipeConfig = RecipeConfig()
    model: ModelConfig = ModelConfig()
    dataset: DatasetConfig = DatasetConfig()
    task: Open = Field({}, description="Keys of the recipe's own Options class.")
    train: TrainConfig = TrainConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    precision: PrecisionConfig = PrecisionConfig()
    launcher: LauncherConfig = LauncherConfig()
    parallel: ParallelConfig = ParallelConfig()
    cluster: ClusterConfig = ClusterConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    fit: FitConfig = FitConfig()
    sweep: SweepConfig = SweepConfig()
    tracker: TrackerConfig = TrackerConfig()
    mode: Literal["train", "evaluate"] = Field(
        "train", description="evaluate: no training, only the validation (and test) split."
    )
    cache_dir: Text | None = Field(
        None,
        description="Folder for everything that is cached: hub files, tokenised data, compiled ops; null: each "
        "library's default.",
    )
    note: Text = Field("", description="Free text kept in the record.")

    def section(self, name: str, kind: type[SectionType]) -> SectionType:
        """A section that an engine brought along, as what it is."""
        found: Any = getattr(self, name)
        assert isinstance(found, kind), name
        return found


if TYPE_CHECKING:

    class RunConfig(_Common):
        """One run, complete."""

else:
    RunConfig = create_model(
        "RunConfig",
        __base__=_Common,
        __module__=__name__,
        __doc__="One run, complete.",
        **{name: (kind, kind()) for name, kind in {**engines.sections(), **adapters.sections()}.items()},
    )
