"""The settings, typed and checked; besides main.py the only module that knows OmegaConf and Hydra's composition.

Defaults live in `conf/`, in one place; the classes here have none. A check of a single value is in `__post_init__`
and raises InputError, which names the setting, the value found and the remedy.
"""

import difflib
import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from partitioning.errors import InputError
from partitioning.settings import (
    MAX_PARTITIONS,
    DatasetSettings,
    PartitionSettings,
    SplitSettings,
    SyntheticSettings,
    check_at_least,
    check_at_most,
    check_choice,
    check_seed,
)
from retexo.config.launcher_env import LauncherEnv, detect

CONFIG_DIR = Path(__file__).resolve().parents[2] / "conf"
T = TypeVar("T")

DISTRIBUTED_APPS = ("train", "evaluate", "predict")
APPS = ("train", "partition_data", "plan", "evaluate", "predict", "report")
LOGGERS = (None, "tensorboard")
TABLE_FORMATS = ("parquet", "npy", "csv")
TASKS = ("retexo.metrics.NodeClassification",)


MAX_SECONDS = 1_000_000
"""Eleven days; poll, which gloo and its store wait with, counts milliseconds in 31 bits."""
MAX_THREADS = 1024
MAX_LAYERS = 1000
MAX_WIDTH = 1_000_000
MAX_RATE = 1e30
"""Learning rates and decays are multiplied in float32."""


def check_seconds(name: str, value: float, least: float) -> None:
    check_finite(name, value, least)
    check_at_most(name, value, MAX_SECONDS)


def check_finite(name: str, value: float, least: float) -> None:
    check_at_least(name, value, least)
    if not math.isfinite(value):
        raise InputError(f"{name}={value}: must be finite")


@dataclass(frozen=True)
class ModelSettings:
    """What a layer computes, and how wide it is."""

    name: str
    """gcn, sage, gat or gin."""
    num_layers: int
    hidden_dim: int
    heads: int
    dropout: float
    aggregator: str = "mean"
    """sage: mean or pool."""
    head_merge: str = "mean"
    """gat: mean or concat."""

    def __post_init__(self) -> None:
        check_choice("model", self.name, ("gcn", "sage", "gat", "gin"))
        check_choice("model.aggregator", self.aggregator, ("mean", "pool"))
        check_choice("model.head_merge", self.head_merge, ("mean", "concat"))
        for name in ("num_layers", "hidden_dim", "heads"):
            check_at_least(name, getattr(self, name), 1)
        check_at_most("num_layers", self.num_layers, MAX_LAYERS)
        check_at_most("hidden_dim", self.hidden_dim, MAX_WIDTH)
        if not 0 <= self.dropout < 1:
            raise InputError(f"dropout={self.dropout}: must be in [0, 1)")
        if self.name == "gat" and self.hidden_dim % self.heads:
            raise InputError(f"hidden_dim={self.hidden_dim}: must be a multiple of heads={self.heads} for gat")


@dataclass(frozen=True)
class OptimizerSettings:
    """A class of torch.optim with its arguments."""

    target: str
    arguments: dict[str, Any]
    weight_decay: float

    def __post_init__(self) -> None:
        check_finite("weight_decay", self.weight_decay, 0)
        check_at_most("weight_decay", self.weight_decay, MAX_RATE)


@dataclass  # OmegaConf cannot merge into a frozen one
class StoppingSettings:
    """When a layer has converged."""

    patience: int | None
    """Rounds without a better validation metric that end a layer; None: never."""
    min_delta: float
    """By how much a metric has to be better than the best before."""

    def __post_init__(self) -> None:
        check_at_least("stopping.patience", self.patience, 1)
        check_finite("stopping.min_delta", self.min_delta, 0)


@dataclass(frozen=True)
class GradientSettings:
    """How workers agree on a step."""

    mode: str
    """sync: every round one exact full-batch step. local: local_epochs steps, then the average of the changes."""
    local_epochs: int
    precision: str
    """What travels: fp32, or rounded to bf16."""
    compression: str
    """none, or powersgd: low-rank factors of each matrix, with error feedback."""
    rank: int
    """powersgd: columns of each factor."""

    def __post_init__(self) -> None:
        check_choice("gradient", self.mode, ("sync", "local"))
        check_choice("gradient.precision", self.precision, ("fp32", "bf16"))
        check_choice("gradient.compression", self.compression, ("none", "powersgd"))
        check_at_least("gradient.rank", self.rank, 1)
        check_at_least("local_epochs", self.local_epochs, 1)
        if self.mode == "sync" and self.local_epochs != 1:
            raise InputError(
                f"local_epochs={self.local_epochs}: gradient=sync agrees on every step; "
                "set gradient=local, or local_epochs=1"
            )


@dataclass  # OmegaConf cannot merge into a frozen one
class ComputeSettings:
    """How a worker computes."""

    precision: str
    """Of the dense products of a layer: fp32, or bf16 for their factors and what is computed from them on the way."""

    def __post_init__(self) -> None:
        check_choice("compute.precision", self.precision, ("fp32", "bf16"))


@dataclass  # OmegaConf cannot merge into a frozen one
class ExchangeSettings:
    """How boundary rows are sent."""

    mode: str
    """exact: as few bytes as serve every edge. plain: the row of every halo node, dense."""
    precision: str
    """fp32 is exact; bf16, or int8 with a scale a row, is not."""

    def __post_init__(self) -> None:
        check_choice("exchange", self.mode, ("exact", "plain"))
        check_choice("exchange.precision", self.precision, ("fp32", "bf16", "int8"))
        if self.mode == "plain" and self.precision != "fp32":
            raise InputError(f"exchange.precision={self.precision}: exchange=plain sends fp32; set exchange=exact")


@dataclass  # OmegaConf cannot merge into a frozen one
class CheckpointSettings:
    """What is kept of a run that is not done."""

    every: int | None
    """Rounds between two states of a layer; None: only finished layers are kept."""

    def __post_init__(self) -> None:
        check_at_least("checkpoint.every", self.every, 1)


@dataclass(frozen=True)
class TrainerSettings:
    """Which algorithm trains."""

    name: str
    """A module of retexo.trainers; see retexo.trainers.registry."""
    options: dict[str, Any]
    """The settings NAME.*, as they were given; the trainer checks them (`typed_options`)."""


@dataclass(frozen=True)
class ClusterSettings:
    """On which machines and devices the workers run."""

    num_partitions: int
    parts_per_node: int
    node_rank: int
    device: str
    threads: int | None
    backend: str
    master_addr: str
    master_port: int
    interface: str | None
    init_timeout: float
    """seconds"""
    timeout: float
    """seconds"""
    heartbeat_timeout: float
    """seconds of silence after which a worker or a node counts as dead"""
    launcher_env: LauncherEnv | None = None
    """Set where torchrun or Slurm started this process."""
    run_key: str = ""
    """What a launcher calls this run, to tell it from others that might use the same port; else empty."""

    def __post_init__(self) -> None:
        check_choice("device", self.device, ("auto", "cpu", "cuda"))
        check_choice("distributed.backend", self.backend, ("gloo",))
        check_at_least("parts_per_node", self.parts_per_node, 1)
        check_at_least("node_rank", self.node_rank, 0)
        check_at_least("cluster.threads", self.threads, 1)
        check_at_most("cluster.threads", self.threads, MAX_THREADS)
        check_seconds("distributed.init_timeout", self.init_timeout, 1)
        check_seconds("distributed.timeout", self.timeout, 1)
        check_seconds("distributed.heartbeat_timeout", self.heartbeat_timeout, 1)
        if not 1 <= self.master_port <= 65535:
            raise InputError(f"distributed.master_port={self.master_port}: must be in [1, 65535]")
        if self.node_rank >= self.num_nodes:
            raise InputError(
                f"node_rank={self.node_rank}: {self.num_partitions} partitions with parts_per_node="
                f"{self.parts_per_node} take {self.num_nodes} node(s), so it must be in [0, {self.num_nodes})"
            )

    @property
    def num_nodes(self) -> int:
        return -(-self.num_partitions // self.parts_per_node)

    @property
    def local_ranks(self) -> range:
        """The ranks of this node, which are also its partitions."""
        return self.ranks_of(self.node_rank)

    def ranks_of(self, node: int) -> range:
        first = node * self.parts_per_node
        return range(first, min(first + self.parts_per_node, self.num_partitions))

    @property
    def one_machine(self) -> bool:
        """Whether all workers are known to be on this machine, so that loopback is enough."""
        return self.num_nodes == 1 or (self.launcher_env is not None and self.launcher_env.one_machine)

    def threads_of(self, cores: int) -> int:
        """Torch threads of a worker, where its process may use so many cores: these are shared with its neighbours."""
        if self.threads is not None or self.launcher_env is None:
            return self.threads or max(1, cores // len(self.local_ranks))
        return self.launcher_env.cores or max(1, cores // max(1, self.launcher_env.local_size))

    def local_index(self, rank: int) -> int:
        """The place of a local rank among the workers of this machine: they share its GPUs in turn."""
        return rank - self.local_ranks.start if self.launcher_env is None else self.launcher_env.local_rank


@dataclass(frozen=True)
class TrainSettings:
    """All that the training of a model depends on, besides the partition."""

    model: ModelSettings
    optimizer: OptimizerSettings
    compute: ComputeSettings
    batch_size: int | None
    """Training nodes of a worker that an optimiser step is made from; None for all."""
    exchange: ExchangeSettings
    gradient: GradientSettings
    stopping: StoppingSettings
    checkpoint: CheckpointSettings
    resume: str | None
    """auto: go on with what the run directory holds. A path: with what that run directory holds. None: begin anew."""
    cluster: ClusterSettings
    trainer: TrainerSettings
    num_rounds: tuple[int, ...]
    """One a layer: num_layers entries."""
    learning_rate: tuple[float, ...]
    """One a layer: num_layers entries."""
    best_val_model: bool
    seed: int
    log_every: int
    measure_dv: bool
    sleep_time: float
    """seconds"""
    logger: str | None
    """tensorboard: its files, besides metrics.jsonl."""

    def __post_init__(self) -> None:
        for rounds in self.num_rounds:
            check_at_least("num_rounds", rounds, 0)
        for rate in self.learning_rate:
            check_finite("learning_rate", rate, 0)
            check_at_most("learning_rate", rate, MAX_RATE)
        check_at_least("log_every", self.log_every, 1)
        check_at_least("batch_size", self.batch_size, 1)
        check_seed("seed", self.seed)
        check_seconds("sleep_time", self.sleep_time, 0)
        if self.logger not in LOGGERS:
            raise InputError(f"logger={self.logger}: choose tensorboard, or leave it out")


@dataclass  # OmegaConf cannot merge into a frozen one
class PredictSettings:
    """What app=predict writes."""

    format: str
    """parquet, npy or csv."""
    embeddings: bool
    """Whether to write the embeddings of the last hidden layer, too."""

    def __post_init__(self) -> None:
        check_choice("predict.format", self.format, TABLE_FORMATS)


@dataclass  # OmegaConf cannot merge into a frozen one
class ReportSettings:
    """What app=report reads, and how a run is called in it."""

    runs: str | None
    """report: the folder below which runs are read."""
    label: str | None
    """train: what the method is called in a report, besides its model and trainer."""


@dataclass  # OmegaConf cannot merge into a frozen one
class SweepSettings:
    """Many runs by one command."""

    dir: str | None
    """Where the runs go; those that are done there are not run again."""
    axes: dict[str, dict[str, str]] | None
    """Arguments of the command line by value, by axis: every combination is a run. None: a single run."""


@dataclass(frozen=True)
class Settings:
    """Everything that was configured."""

    app: str
    partition: PartitionSettings
    train: TrainSettings
    plan_rounds: tuple[int, ...] | None
    """plan: rounds a layer to predict besides num_rounds."""
    checkpoint_dir: str | None
    """evaluate, predict: the run directory of the trained model."""
    predict: PredictSettings
    report: ReportSettings
    sweep: SweepSettings
    arguments: tuple[str, ...]
    """The command line that makes these settings: --config-name=NAME, then the overrides."""
    given: frozenset[str]
    """Names of the settings that were given on the command line; the others have their defaults."""
    resolved: dict[str, Any]
    """All settings by name, as plain JSON values."""


# --- from a Hydra configuration --------------------------------------------------------------------------------------


@dataclass
class _Task:
    _target_: str


@dataclass
class _Model:
    name: str
    aggregator: str | None = None
    head_merge: str | None = None


@dataclass
class _Gradient:
    mode: str
    precision: str
    compression: str
    rank: int


@dataclass
class _Trainer:
    name: str


@dataclass
class _Partition:
    seed: int
    balance_train: bool | None


@dataclass
class _Cluster:
    threads: int | None


@dataclass
class _Distributed:
    backend: str
    master_addr: str
    master_port: int
    interface: str | None
    init_timeout: float
    timeout: float
    heartbeat_timeout: float


@dataclass
class _Plan:
    rounds: list[int] | None


@dataclass
class _Schema:
    """Name and type of every setting, as on the command line; OmegaConf checks a configuration against it."""

    app: str
    task: _Task
    seed: int
    dataset_name: str
    dataset_dir: str
    dataset_file: str | None
    symmetrize: bool | None
    synthetic: SyntheticSettings
    split: SplitSettings
    partition_dir: str
    partition_method: str
    part_obj: str
    partition_file: str | None
    num_partitions: int
    partition: _Partition
    overwrite: bool
    trainer: _Trainer
    model: _Model
    num_layers: int
    hidden_dim: int
    heads: int
    dropout: float
    num_rounds: list[int]
    learning_rate: list[float]
    weight_decay: float
    optimizer: dict[str, Any]
    compute: ComputeSettings
    batch_size: int | None
    exchange: ExchangeSettings
    gradient: _Gradient
    local_epochs: int
    stopping: StoppingSettings
    best_val_model: bool
    log_every: int
    device: str
    parts_per_node: int | None
    node_rank: int
    cluster: _Cluster
    distributed: _Distributed
    measure_dv: bool
    sleep_time: float
    plan: _Plan
    checkpoint: CheckpointSettings
    resume: str | None
    checkpoint_dir: str | None
    predict: PredictSettings
    logger: str | None
    report: ReportSettings
    sweep: SweepSettings


def compose(overrides: Sequence[str] = (), config_name: str = "node_classification") -> Settings:
    """Settings for Python callers: as `python main.py --config-name CONFIG_NAME OVERRIDES` would have them."""
    import hydra
    from hydra.core.global_hydra import GlobalHydra

    outer = GlobalHydra.instance().hydra  # of main.py, where an app composes; Hydra allows one at a time
    GlobalHydra.instance().clear()
    try:
        with hydra.initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
            return load(hydra.compose(config_name, list(overrides)), overrides, config_name)
    finally:
        GlobalHydra.instance().hydra = outer


def load(
    config: DictConfig,
    overrides: Sequence[str] = (),
    config_name: str = "node_classification",
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Turn a composed configuration into Settings; InputError names the first thing that is wrong with it.

    `environ` is where torchrun or Slurm may have said which rank this process has; Python callers have none.
    """
    try:
        # Resolved first: what ${...} stands for is not checked otherwise.
        resolved: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
        seed_first = {name: resolved[name] for name in ("seed",) if name in resolved}  # other seeds default to it
        trainer, common = _split_trainer(resolved)
        checked = OmegaConf.merge(OmegaConf.structured(_Schema), seed_first | common)
        check_seed("seed", checked.seed)
        schema: _Schema = OmegaConf.to_object(checked)  # type: ignore[assignment]
    except (ConfigKeyError, ConfigAttributeError) as error:
        raise unknown_setting(str(error.full_key or error.key)) from error
    except OmegaConfBaseException as error:
        reason = str(error.msg or error).splitlines()[0]
        raise InputError(f"{error.full_key or _unfit(config)}: {reason}") from error
    check_choice("app", schema.app, APPS)
    check_choice("task._target_", schema.task._target_, TASKS)
    if schema.app in ("evaluate", "predict") and schema.checkpoint_dir is None:
        raise InputError(
            f"checkpoint_dir=null: app={schema.app} needs checkpoint_dir=DIR, the run directory of app=train"
        )
    if schema.app in ("plan", "evaluate", "predict") and trainer.name != "lazy":
        raise InputError(f"trainer={trainer.name}: app={schema.app} has no other trainer than lazy; leave it out")
    environ = environ or {}
    launcher_env = detect(environ) if schema.app in DISTRIBUTED_APPS else None
    given = frozenset(override.split("=")[0].lstrip("+~") for override in overrides)
    return Settings(
        app=schema.app,
        partition=_partition_settings(schema),
        train=_train_settings(
            schema, trainer, _cluster(schema, launcher_env, given, environ.get("RETEXO_RUN_KEY", ""))
        ),
        plan_rounds=_plan_rounds(schema),
        checkpoint_dir=schema.checkpoint_dir,
        predict=schema.predict,
        report=schema.report,
        sweep=schema.sweep,
        arguments=(f"--config-name={config_name}", *overrides),
        given=given,
        resolved=resolved,
    )


def _split_trainer(resolved: dict[str, Any]) -> tuple[TrainerSettings, dict[str, Any]]:
    """The trainer with its own settings, which only it knows, and all other settings."""
    group = resolved.get("trainer")
    name = str(group.get("name")) if isinstance(group, dict) else ""
    own = None if name in _Schema.__annotations__ else resolved.get(name)
    if not isinstance(own, dict):
        return TrainerSettings(name, {}), resolved
    return TrainerSettings(name, own), {key: value for key, value in resolved.items() if key != name}


def typed_options(settings: TrainerSettings, schema: type[T]) -> T:
    """A trainer's own settings as a dataclass of its; InputError names what is unknown, or of another type."""
    try:
        merged = OmegaConf.merge(OmegaConf.structured(schema), settings.options)
        return OmegaConf.to_object(merged)  # type: ignore[return-value]
    except (ConfigKeyError, ConfigAttributeError) as error:
        known = ", ".join(f"{settings.name}.{field.name}" for field in fields(schema))  # type: ignore[arg-type]
        raise InputError(f"{settings.name}.{error.key}: no such setting; there is {known or 'none'}") from error
    except OmegaConfBaseException as error:
        raise InputError(f"{settings.name}.{error.full_key}: {str(error.msg or error).splitlines()[0]}") from error


def _unfit(config: DictConfig) -> str:
    """The first setting that does not fit the schema, for OmegaConf's errors that do not say which."""
    for name in (name for name in config if name in _Schema.__annotations__):
        try:
            OmegaConf.merge(OmegaConf.structured(_Schema), OmegaConf.masked_copy(config, str(name)))
        except OmegaConfBaseException:
            return str(name)
    return "configuration"


def unknown_setting(name: str) -> InputError:
    """The error for a setting that does not exist, with the nearest name that does."""
    trainer = name.split(".")[0]
    file = CONFIG_DIR / "trainer" / f"{trainer}.yaml"
    if "." in name and file.is_file():
        own = OmegaConf.select(OmegaConf.load(file), trainer, default={})
        known = ", ".join(f"{trainer}.{option}" for option in own)
        return InputError(f"{name}: trainer={trainer} has to be set for it, and has {known or 'no settings'}")
    nearest = difflib.get_close_matches(name, _names(_Schema), n=1, cutoff=0.5)
    hint = f"did you mean {nearest[0]}?" if nearest else "see conf/node_classification.yaml for all"
    return InputError(f"{name}: no such setting; {hint}")


def _names(schema: type, prefix: str = "") -> list[str]:
    """All dotted names of a (nested) dataclass."""
    names = []
    hints = get_type_hints(schema)
    for field in fields(schema):
        names.append(prefix + field.name)
        if is_dataclass(hints[field.name]):
            names += _names(hints[field.name], f"{prefix}{field.name}.")
    return names


def _partition_settings(schema: _Schema) -> PartitionSettings:
    dataset = DatasetSettings(
        name=schema.dataset_name,
        dir=schema.dataset_dir,
        file=schema.dataset_file,
        symmetrize=schema.symmetrize,
        synthetic=schema.synthetic,
        split=schema.split,
    )
    return PartitionSettings(
        dataset=dataset,
        dir=schema.partition_dir,
        method=schema.partition_method,
        objective=schema.part_obj,
        file=schema.partition_file,
        num_partitions=schema.num_partitions,
        balance_train=schema.partition.balance_train,
        seed=schema.partition.seed,
        overwrite=schema.overwrite,
    )


def _cluster(schema: _Schema, launcher_env: LauncherEnv | None, given: frozenset[str], run_key: str) -> ClusterSettings:
    cluster = _cluster_settings(schema) if launcher_env is None else _launcher_cluster(schema, launcher_env, given)
    return replace(cluster, run_key=run_key) if run_key else cluster


def _train_settings(schema: _Schema, trainer: TrainerSettings, cluster: ClusterSettings) -> TrainSettings:
    model = _model_settings(schema)  # before num_layers is made use of
    return TrainSettings(
        model=model,
        optimizer=_optimizer_settings(schema),
        compute=schema.compute,
        batch_size=schema.batch_size,
        exchange=schema.exchange,
        gradient=GradientSettings(local_epochs=schema.local_epochs, **asdict(schema.gradient)),
        stopping=schema.stopping,
        checkpoint=schema.checkpoint,
        resume=schema.resume,
        cluster=cluster,
        trainer=trainer,
        num_rounds=_one_a_layer("num_rounds", schema.num_rounds, schema.num_layers),
        learning_rate=_one_a_layer("learning_rate", schema.learning_rate, schema.num_layers),
        best_val_model=schema.best_val_model,
        seed=schema.seed,
        log_every=schema.log_every,
        measure_dv=schema.measure_dv,
        sleep_time=schema.sleep_time,
        logger=schema.logger,
    )


def _model_settings(schema: _Schema) -> ModelSettings:
    model = schema.model
    for option, owner in (("aggregator", "sage"), ("head_merge", "gat")):
        if getattr(model, option) is not None and model.name != owner:
            raise InputError(f"model.{option}={getattr(model, option)}: only model={owner} has it, not {model.name}")
    return ModelSettings(
        name=model.name,
        num_layers=schema.num_layers,
        hidden_dim=schema.hidden_dim,
        heads=schema.heads,
        dropout=schema.dropout,
        aggregator=model.aggregator or "mean",
        head_merge=model.head_merge or "mean",
    )


def _cluster_settings(schema: _Schema) -> ClusterSettings:
    distributed = schema.distributed
    check_at_least("num_partitions", schema.num_partitions, 1)
    check_at_most("num_partitions", schema.num_partitions, MAX_PARTITIONS)
    return ClusterSettings(
        num_partitions=schema.num_partitions,
        parts_per_node=schema.num_partitions if schema.parts_per_node is None else schema.parts_per_node,
        node_rank=schema.node_rank,
        device=schema.device,
        threads=schema.cluster.threads,
        **{field.name: getattr(distributed, field.name) for field in fields(distributed)},
    )


def _launcher_cluster(schema: _Schema, launcher_env: LauncherEnv, given: frozenset[str]) -> ClusterSettings:
    """The cluster as torchrun or Slurm says: each process is a node with one rank."""
    for name in ("parts_per_node", "node_rank"):
        if name in given:
            raise InputError(
                f"{name}={getattr(schema, name)}: {launcher_env.launcher} says who has which rank; leave it out"
            )
    if launcher_env.world_size != schema.num_partitions:
        raise InputError(
            f"num_partitions={schema.num_partitions}: {launcher_env.launcher} started {launcher_env.world_size} "
            "process(es), and each has one partition; start as many as there are partitions"
        )
    schema.parts_per_node, schema.node_rank = 1, launcher_env.rank
    for name in ("master_addr", "master_port"):
        value = getattr(launcher_env, name)
        if value is not None and f"distributed.{name}" not in given:
            setattr(schema.distributed, name, value)
    return replace(_cluster_settings(schema), launcher_env=launcher_env, run_key=launcher_env.run_key)


def _one_a_layer(name: str, values: list[T], num_layers: int) -> tuple[T, ...]:
    """Extra entries are ignored; a short list goes on with its first entry."""
    if not values:
        raise InputError(f"{name}=[]: needs at least one entry")
    return tuple(values[layer] if layer < len(values) else values[0] for layer in range(num_layers))


def _plan_rounds(schema: _Schema) -> tuple[int, ...] | None:
    if schema.plan.rounds is None:
        return None
    for rounds in schema.plan.rounds:
        check_at_least("plan.rounds", rounds, 0)
    return _one_a_layer("plan.rounds", schema.plan.rounds, schema.num_layers)


def _optimizer_settings(schema: _Schema) -> OptimizerSettings:
    arguments: dict[str, Any] = {str(key): value for key, value in schema.optimizer.items()}
    target = str(arguments.pop("_target_", ""))
    settings = OptimizerSettings(target, arguments, schema.weight_decay)
    check_optimizer(settings)
    return settings


def check_optimizer(settings: OptimizerSettings) -> None:
    """Refuse what is no optimiser of torch.optim, or arguments that it does not take."""
    cls = optimizer_class(settings.target)
    known = set(inspect.signature(cls).parameters) - {"params"}
    for own, instead in (("lr", "learning_rate"), ("weight_decay", "weight_decay")):
        if own in settings.arguments:
            raise InputError(f"optimizer.{own}: set {instead} instead")
    for name in settings.arguments:
        if name not in known:
            raise InputError(f"optimizer.{name}: {settings.target} has only {', '.join(sorted(known))}")
    if settings.weight_decay and "weight_decay" not in known:
        raise InputError(f"weight_decay={settings.weight_decay}: {settings.target} has none; set weight_decay=0")
    _try_optimizer(cls, settings)


def _try_optimizer(cls: type, settings: OptimizerSettings) -> None:
    """Take one step with it, without what torch wraps its methods in: that imports its compiler, for seconds."""
    import torch

    parameter = torch.nn.Parameter(torch.zeros(2, 2))
    bare = {name: inspect.unwrap(getattr(cls, name)) for name in ("add_param_group", "step")}
    try:
        optimizer = type(cls.__name__, (cls,), bare)([parameter], lr=0.1, **optimizer_arguments(settings))
        parameter.grad = torch.ones_like(parameter)
        with torch.set_grad_enabled(bool(optimizer.defaults.get("differentiable"))):
            bare["step"](optimizer)
    except Exception as error:  # whatever the class makes of the user's values
        raise InputError(f"optimizer={settings.target} with {optimizer_arguments(settings)}: {error}") from error


def optimizer_class(target: str) -> Any:
    """The class of torch.optim that `target` names; nothing else is ever called."""
    import torch

    module, _, name = target.rpartition(".")
    cls = getattr(torch.optim, name, None) if module == "torch.optim" else None
    if not (inspect.isclass(cls) and issubclass(cls, torch.optim.Optimizer)) or cls is torch.optim.Optimizer:
        raise InputError(f"optimizer._target_={target}: must be a class of torch.optim, such as torch.optim.Adam")
    return cls


def optimizer_arguments(settings: OptimizerSettings) -> Mapping[str, Any]:
    """Keyword arguments of the optimiser, besides lr."""
    has_decay = "weight_decay" in inspect.signature(optimizer_class(settings.target)).parameters
    decay = {"weight_decay": settings.weight_decay} if has_decay else {}
    return {**settings.arguments, **decay}
