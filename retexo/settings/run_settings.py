"""The settings of everything but partitioning. Type, default, checks, help text and role of each are said here only.

How a definition reads is in partitioning/setting_fields.py; adding one is shown in CONTRIBUTING.md.
"""

import math
from typing import Any

from partitioning.errors import InputError
from partitioning.partition_settings import LINKS, PartitionSettings
from partitioning.setting_fields import (
    FINITE,
    SEED,
    Check,
    Checked,
    at_least,
    at_most,
    number_or,
    one_of,
    setting,
    settings_dataclass,
)
from retexo.settings.app_settings import PredictSettings, ReportSettings
from retexo.settings.cluster_settings import ClusterSettings, seconds

DISTRIBUTED_APPS = ("train", "evaluate", "predict")
MAX_LAYERS = 254
"""The exchange plan counts up to one more in a byte."""
MAX_WIDTH = 1_000_000
REACHES = ("computed", "hops")
MAX_ROUNDS = 1_000_000_000
MAX_RATE = 1e30
"""Learning rates and decays are multiplied in float32."""

RATE = (at_least(0), FINITE, at_most(MAX_RATE))
DROPOUT = Check(lambda value: 0 <= value < 1, "must be in [0, 1)")


@settings_dataclass
class ModelSettings(Checked):
    """What a layer computes, and how wide it is."""

    name: str = setting(
        "model.name",
        "gcn",
        "the convolution; --config-name=node_classification_NAME sets it, too",
        is_group=True,
    )
    num_layers: int = setting("num_layers", 2, "layers", at_least(1), at_most(MAX_LAYERS))
    hidden_dim: int = setting(
        "hidden_dim",
        256,
        "width of an embedding; of gat, of all heads together",
        at_least(1),
        at_most(MAX_WIDTH),
    )
    heads: int = setting("heads", 8, "attention heads of gat", at_least(1))
    dropout: float = setting(
        "dropout",
        0.4,
        "on the aggregate, of gat on the rows; by validation, benchmarks/methods.py",
        DROPOUT,
    )
    input_dropout: float | None = setting(
        "model.input_dropout",
        None,
        "of features and their aggregates, in every layer that reads them; null: dropout",
        DROPOUT,
    )
    norm: str = setting(
        "model.norm",
        "layer",
        "of hidden vectors: LayerNorm",
        one_of("layer", "none"),
        earlier="layer",
    )
    self_weight: bool = setting(
        "model.self_weight",
        True,
        "skip connection from a node's own row, with weights of its own; gat adds it to the "
        "attention's output, other models give it half of hidden_dim",
        earlier=False,
    )
    input_skip: bool = setting(
        "model.input_skip",
        True,
        "skip connection from the graph's features and their aggregate to every layer after the "
        "first",
        earlier=False,
    )
    output: str = setting(
        "model.output",
        "aggregate",
        "input of the next layer: the activation, or the weighted aggregate before norm and "
        "activation; gat and sage with pooling always use the activation",
        one_of("activation", "aggregate"),
        earlier="activation",
    )
    options: dict[str, Any] = setting("model.*", {}, "what only this model has, see below")

    @property
    def features_dropout(self) -> float:
        """Rate, of features and their aggregates."""
        return self.dropout if self.input_dropout is None else self.input_dropout


@settings_dataclass
class TaskSettings(Checked):
    """How links are learned."""

    learns: str
    """The setting task._target_."""
    dim: int = setting(
        "task.dim", 64, "links: width of what is scored", at_least(1), at_most(MAX_WIDTH)
    )
    scorer: str = setting(
        "task.scorer", "dot", "of two embeddings", one_of("dot", "distmult", "mlp")
    )
    negatives: int = setting(
        "task.negatives",
        256,
        "nodes that a pair is told from in a step: half uniform ones, half ends of others",
        at_least(2),
        at_most(MAX_WIDTH),
    )
    pool: int = setting(
        "task.pool",
        4096,
        "random nodes that every worker has, which negatives are drawn from; 0: those it has anyway",
        at_least(0),
        at_most(4096),
    )
    cut_edges: str = setting(
        "task.cut_edges",
        "train",
        "pairs between two parts: the other end is sent once a layer; or they do not train",
        one_of("train", "skip"),
    )
    neighbour_dropout: float = setting(
        "task.neighbour_dropout",
        0.0,
        "links: rate at which a node trains as if without neighbours; of sage and rgcn",
        DROPOUT,
    )
    ranked: int = setting(
        "task.ranked",
        20_000,
        "pairs of a set that are ranked, about; of more a sample",
        at_least(1),
    )

    @property
    def links(self) -> bool:
        return self.learns == LINKS


@settings_dataclass
class OptimizerSettings(Checked):
    """A class of torch.optim with its arguments."""

    target: str = setting("optimizer._target_", "torch.optim.Adam", "a class of torch.optim")
    arguments: dict[str, Any] = setting(
        "optimizer.*", {}, "its other arguments: +optimizer.NAME=VALUE"
    )
    weight_decay: float = setting("weight_decay", 0.0005, "of the optimiser", *RATE)


@settings_dataclass
class StoppingSettings(Checked):
    """When a layer has converged."""

    patience: int | None = setting(
        "stopping.patience",
        20,
        "rounds without a better validation metric that end a layer; null, or stopping=none: it has all its rounds",
        at_least(1),
        earlier=30,
    )
    min_delta: float = setting(
        "stopping.min_delta", 0.0, "by which a metric has to be better", at_least(0), FINITE
    )
    hidden_patience: int | None = setting(
        "stopping.hidden_patience",
        None,
        "patience of the layers before the last, which the next one starts from when nearly converged; null: the same",
        at_least(1),
    )

    def patience_of(self, layer: int, num_layers: int, factor: float = 1) -> int | None:
        """Of one of so many layers. factor: by which `patience` is longer; hidden_patience is taken as it is."""
        if layer < num_layers - 1 and self.hidden_patience is not None:
            return self.hidden_patience
        return None if self.patience is None else math.ceil(factor * self.patience)


@settings_dataclass
class GradientSettings(Checked):
    """How workers agree on a step."""

    mode: str = setting(
        "gradient.mode",
        "sync",
        "every round one exact full-batch step; or local_epochs steps on each worker, then the average of the changes",
        one_of("sync", "local"),
        is_group=True,
    )
    local_epochs: int = setting(
        "local_epochs", 1, "gradient=local: steps between two agreements", at_least(1)
    )
    precision: str = setting(
        "gradient.precision",
        "int6",
        "of what is sent; int8 and int6 have a scale for 128 values",
        one_of("fp32", "bf16", "int8", "int6"),
        earlier="fp32",
    )
    compression: str = setting(
        "gradient.compression",
        "powersgd",
        "powersgd: low-rank factors of each matrix, with error feedback",
        one_of("none", "powersgd"),
        earlier="none",
    )
    rank: int = setting(
        "gradient.rank",
        2,
        "powersgd: columns of each factor; 3 for gat and gin",
        at_least(1),
        earlier=4,
    )
    secure: bool = setting(
        "gradient.secure",
        False,
        "sums under pairwise masks, of three sites or more: none can read another's share; gradient.precision=fp32",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.secure and self.precision != "fp32":
            raise InputError(
                f"gradient.precision={self.precision}: gradient.secure=true sends integers of 32 bits; "
                "set gradient.precision=fp32"
            )
        if self.mode == "sync" and self.local_epochs != 1:
            raise InputError(
                f"local_epochs={self.local_epochs}: gradient=sync agrees on every step; "
                "set gradient=local, or local_epochs=1"
            )


@settings_dataclass
class ComputeSettings(Checked):
    """How a worker computes."""

    precision: str = setting(
        "compute.precision",
        "fp32",
        "of a layer's dense products; up to 4 times as fast where the CPU has bf16",
        one_of("fp32", "bf16"),
    )


@settings_dataclass
class ExchangeSettings(Checked):
    """How boundary rows are sent."""

    mode: str = setting(
        "exchange.mode",
        "exact",
        "as few bytes as serve every edge; or the row of every halo node, dense",
        one_of("exact", "plain"),
        is_group=True,
    )
    precision: tuple[str, ...] = setting(
        "exchange.precision",
        ["int4"],
        "of the rows of each layer, as one or a list; fp32 is exact, int8 and int4 have a scale per row",
        one_of("fp32", "bf16", "int8", "int4"),
        per_layer=True,
        earlier=["fp32"],
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode == "plain" and self.rounded:
            raise InputError(
                f"exchange.precision={self.rounded}: exchange=plain sends fp32; set exchange=exact"
            )

    @property
    def rounded(self) -> str:
        """The precisions but fp32."""
        return ",".join(dict.fromkeys(each for each in self.precision if each != "fp32"))


@settings_dataclass
class SmoothingSettings(Checked):
    """How answers are propagated along the edges after training (retexo.trainers.label_propagation)."""

    steps: int = setting("smoothing.steps", 5, "hops; 0: none", at_least(0), earlier=0)
    reach: str = setting(
        "smoothing.reach",
        "hops",
        "whose predictions it starts from. hops: all nodes within that many hops. computed: nodes in "
        "a split only, so that the result depends on the split",
        one_of(*REACHES),
        earlier="computed",
    )
    alphas: tuple[float, ...] = setting(
        "smoothing.alphas",
        [1.0, 0.5, 0.3, 0.2, 0.1],
        "shares that a node keeps of its own answer, of which validation chooses one; 1: no smoothing",
        Check(lambda alpha: 0 < alpha <= 1, "must be in (0, 1]"),
    )

    @property
    def hops(self) -> int:
        """From the nodes in a split to those that are computed for smoothing alone."""
        return self.steps if self.reach == "hops" else 0


@settings_dataclass
class CheckpointSettings(Checked):
    """What is kept of a run that is not done, besides every finished layer."""

    keep: bool = setting(
        "checkpoint.keep",
        True,
        "false, or checkpoint=none: nothing to go on from",
        per_node=True,
        compared=False,
    )
    every: int | None = setting(
        "checkpoint.every",
        None,
        "rounds between two states that are kept; null: none within a layer",
        at_least(1),
        per_node=True,
        compared=False,
    )


@settings_dataclass
class TrainerSettings(Checked):
    """Which algorithm trains."""

    name: str = setting(
        "trainer.name", "lazy", "the algorithm, see docs/trainers.md", is_group=True
    )
    options: dict[str, Any]
    """The settings NAME.*, as they were given; the trainer checks them (`typed_options`)."""


@settings_dataclass
class TrainSettings(Checked):
    """All that the training of a model depends on, besides the partition."""

    task: TaskSettings
    model: ModelSettings
    optimizer: OptimizerSettings
    compute: ComputeSettings
    batch_size: int | str | None = setting(
        "batch_size",
        None,
        "training nodes of a worker that a step is made from, drawn anew each time; null: all; auto: 32,768 of all "
        "workers together, each its share, of graphs with 131,072 training nodes or more, and of many validation nodes "
        "8,192 score a round; of others all",
        number_or("auto", 1),
    )
    exchange: ExchangeSettings
    gradient: GradientSettings
    stopping: StoppingSettings
    output_heads: str = setting(
        "output_heads",
        "validation",
        "layers whose head predicts: the last, or the layer or mean of layers that validation "
        "chooses",
        one_of("last", "validation"),
        earlier="last",
    )
    smoothing: SmoothingSettings
    checkpoint: CheckpointSettings
    max_rows_shared: float | None = setting(
        "sites.max_rows_shared",
        None,
        "own nodes that any other site may ask for, in all runs together: below 1 a share, else a number; null: any",
        *RATE,
        per_node=True,
        compared=False,
    )
    resume: str | None = setting(
        "resume",
        None,
        "auto: go on with the run in hydra.run.dir, if there is one; DIR: with the one in DIR",
        per_node=True,
        compared=False,
    )
    cluster: ClusterSettings
    trainer: TrainerSettings
    num_rounds: tuple[int, ...] = setting(
        "num_rounds",
        [200],
        "most rounds of each layer; a short list goes on with its last entry",
        at_least(0),
        at_most(MAX_ROUNDS),
        per_layer=True,
    )
    learning_rate: tuple[float, ...] = setting(
        "learning_rate", [0.01], "of each layer; likewise", *RATE, per_layer=True, earlier=[0.003]
    )
    best_val_model: bool = setting(
        "best_val_model", True, "keep the parameters of the best validation round"
    )
    seed: int = setting(
        "seed",
        42,
        "of all that is drawn, unless split.seed, partition.seed or synthetic.seed say otherwise",
        *SEED,
        is_seed=True,
    )
    log_every: int = setting(
        "log_every",
        100,
        "most rounds between two lines of the log",
        at_least(1),
        per_node=True,
        compared=False,
    )
    measure_dv: bool = setting(
        "measure_dv", False, "print the table of bytes, always counted", compared=False
    )
    sleep_time: float = setting(
        "sleep_time", 0.0, "seconds of latency added per sequential hop", *seconds(0)
    )
    logger: str | None = setting(
        "logger",
        None,
        "tensorboard: besides metrics.jsonl",
        Check(
            lambda value: value == "tensorboard",
            "choose tensorboard, or leave it out",
            ("tensorboard",),
        ),
        compared=False,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in (("resume", self.resume), ("checkpoint.every", self.checkpoint.every)):
            if value is not None and not self.checkpoint.keep:
                raise InputError(
                    f"{name}={value}: checkpoint=none keeps nothing to go on from; leave one of them out"
                )
        if self.model.num_layers + self.smoothing.steps > MAX_LAYERS:
            raise InputError(
                f"smoothing.steps={self.smoothing.steps}: with num_layers must be at most {MAX_LAYERS}"
            )


@settings_dataclass
class Settings(Checked):
    """What to run, and everything that was configured."""

    app: str = setting(
        "app",
        "train",
        "what to run",
        one_of("train", "partition_data", "plan", "evaluate", "predict", "report", "hub"),
        compared=False,
    )
    partition: PartitionSettings
    train: TrainSettings
    plan_rounds: tuple[int, ...] | None = setting(
        "plan.rounds",
        None,
        "app=plan: rounds of each layer to predict for, besides num_rounds",
        at_least(0),
        at_most(MAX_ROUNDS),
        per_layer=True,
        compared=False,
    )
    checkpoint_dir: str | None = setting(
        "checkpoint_dir",
        None,
        "app=evaluate, app=predict: the run directory of the trained model, or its checkpoint/",
        per_node=True,
        compared=False,
    )
    predict: PredictSettings
    report: ReportSettings
    arguments: tuple[str, ...]
    """The command line that makes these settings: --config-name=NAME, --config-dir=DIR if any, then the overrides."""
    given: frozenset[str]
    """Names of the settings that were given on the command line; the others have their defaults."""
    resolved: dict[str, Any]
    """All settings by name, as JSON values."""
    started: float
    """Unix time: of a command, when its process was started."""
    is_multirun_job: bool
    """Whether this is one of several jobs of --multirun."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.app in ("evaluate", "predict") and self.checkpoint_dir is None:
            raise InputError(
                f"checkpoint_dir=null: app={self.app} needs checkpoint_dir=DIR, the run directory of app=train"
            )
        trainer = self.train.trainer.name
        if self.app == "plan" and trainer != "lazy":
            raise InputError(
                f"trainer={trainer}: app=plan predicts the bytes of trainer=lazy, and shows those of other "
                "trainers beside them; leave it out"
            )
