"""Settings of training, evaluation and reports: type, default, checks and help text of each.

partitioning/setting_fields.py defines `setting`; CONTRIBUTING.md shows how to add one.
"""

import math
from typing import Any

from partitioning.errors import InputError
from partitioning.partition_settings import PartitionSettings
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
    within,
)
from retexo.settings.app_settings import (
    APPS,
    NEED_A_MODEL,
    DisplaySettings,
    ExportSettings,
    PredictSettings,
    RemoteSettings,
    ReportSettings,
    ServeSettings,
)
from retexo.settings.cluster_settings import ClusterSettings, ComputeSettings, seconds
from retexo.settings.communication_settings import (
    ExchangeSettings,
    GradientSettings,
    NetworkSettings,
)
from retexo.settings.objective_settings import BELOW_ONE, MAX_WIDTH, StoppingSettings, TaskSettings
from retexo.settings.search import IS_OBJECTIVE, check_objective_name

AUTO = "auto"
MAX_LAYERS = 254
"""The exchange plan stores a layer number in one byte."""
FEW_COLUMNS = 16
"""Features with at most so many columns are not dropped by default: each column counts."""
REACHES = ("computed", "hops")
SCHEDULERS = ("none", "cosine", "plateau", "step")
ACTIVATIONS = ("relu", "gelu", "elu", "leaky_relu", "tanh")
MAX_ROUNDS = 1_000_000_000
MAX_RATE = 1e30
"""Largest learning rate and weight decay: optimizers multiply them in float32."""

RATE = (at_least(0), FINITE, at_most(MAX_RATE))


@settings_dataclass
class ModelSettings(Checked):
    """Convolution, width and skip connections of the layers."""

    name: str = setting(
        "model.name",
        "gcn",
        "convolution; --config-name=node_classification_NAME sets it, too",
        is_group=True,
    )
    num_layers: int | str = setting(
        "num_layers",
        2,
        "number of layers; auto (default for rgcn, rgat and hetero_sage): layers are added "
        "until two in a row have not improved validation",
        number_or(AUTO, 1, MAX_LAYERS),
    )
    max_layers: int = setting(
        "max_layers",
        8,
        "num_layers=auto: largest number of layers",
        at_least(1),
        at_most(MAX_LAYERS),
    )
    hidden_dim: int = setting(
        "hidden_dim",
        256,
        "width of the hidden layers; gat: of all heads together",
        at_least(1),
        at_most(MAX_WIDTH),
    )
    heads: int = setting("heads", 8, "gat: number of attention heads", at_least(1))
    dropout: float = setting(
        "dropout",
        0.4,
        "dropout rate of the aggregate; gat: of its input rows",
        BELOW_ONE,
    )
    input_dropout: float | None = setting(
        "model.input_dropout",
        None,
        "dropout rate of the features and their aggregate in every layer that reads them; "
        f"null: dropout, or 0 where the features have at most {FEW_COLUMNS} columns",
        BELOW_ONE,
    )
    norm: str = setting(
        "model.norm",
        "layer",
        "normalisation of the hidden layers: LayerNorm or none",
        one_of("layer", "none"),
    )
    activation: str = setting(
        "model.activation",
        "relu",
        "activation of the hidden layers, and in the MLP of gin",
        one_of(*ACTIVATIONS),
    )
    self_weight: bool = setting(
        "model.self_weight",
        True,
        "skip connection from a node's own row, with its own weight matrix; gat adds it to the "
        "output of attention, other models use half of hidden_dim for it",
    )
    input_skip: bool = setting(
        "model.input_skip",
        True,
        "skip connections from the features and their aggregate to every layer after the first",
    )
    output: str = setting(
        "model.output",
        "aggregate",
        "input of the next layer: the activation, or the weighted aggregate before norm and "
        "activation; gat and pooling always use the activation",
        one_of("activation", "aggregate"),
    )
    lookahead: int = setting(
        "model.lookahead",
        0,
        "1: train each layer together with the next one; sends aggregates of boundary nodes "
        "once per layer and sets model.output=activation; 0: train each layer alone",
        within(0, 1),
    )
    options: dict[str, Any] = setting("model.*", {}, "settings of one model only, listed below")

    @property
    def grows(self) -> bool:
        """Whether validation chooses the number of layers."""
        return self.num_layers == AUTO

    @property
    def depth(self) -> int:
        """The number of layers that plan and network are made for."""
        return self.max_layers if isinstance(self.num_layers, str) else self.num_layers

    def features_dropout(self, num_columns: int) -> float:
        """Dropout rate of features with so many columns, and of their aggregate."""
        if self.input_dropout is not None:
            return self.input_dropout
        return self.dropout if num_columns > FEW_COLUMNS else 0.0


@settings_dataclass
class OptimizerSettings(Checked):
    """The optimizer and its arguments."""

    target: str = setting(
        "optimizer._target_", "torch.optim.Adam", "optimizer class of torch.optim"
    )
    arguments: dict[str, Any] = setting(
        "optimizer.*", {}, "other arguments of the optimizer: +optimizer.NAME=VALUE"
    )
    weight_decay: float = setting("weight_decay", 0.0005, "weight decay of the optimizer", *RATE)
    scheduler: str = setting(
        "scheduler",
        "none",
        "learning rate over a layer's rounds; cosine: falls to 0 at num_rounds; step: "
        "multiplied by scheduler_factor every scheduler_rounds; plateau: the same after "
        "scheduler_rounds without improvement",
        one_of(*SCHEDULERS),
    )
    factor: float = setting(
        "scheduler_factor",
        0.5,
        "scheduler=step and plateau: factor of the learning rate",
        Check(lambda value: 0 < value <= 1, "must be in (0, 1]"),
    )
    scheduler_rounds: int | None = setting(
        "scheduler_rounds",
        None,
        "scheduler=step and plateau: number of rounds before the learning rate falls; null: 50 for "
        "step, 5 for plateau",
        at_least(1),
    )
    max_grad_norm: float | None = setting(
        "max_grad_norm",
        None,
        "gradient clipping: largest norm of the gradient of all workers, or with gradient=local "
        "of each step; null: off",
        Check(lambda value: 0 < value < math.inf, "must be above 0 and finite"),
    )


@settings_dataclass
class SmoothingSettings(Checked):
    """Label propagation of the predictions after training (APPNP; Gasteiger et al., ICLR 2019)."""

    steps: int = setting(
        "smoothing.steps",
        5,
        "label propagation: number of steps, if the first one helps validation nodes; 0: off",
        at_least(0),
    )
    reach: str = setting(
        "smoothing.reach",
        "hops",
        "label propagation starts from all nodes within smoothing.steps hops of a split (hops) "
        "or only nodes in a split (computed)",
        one_of(*REACHES),
    )
    alphas: tuple[float, ...] = setting(
        "smoothing.alphas",
        [1.0, 0.5, 0.3, 0.2, 0.1],
        "label propagation: teleport probabilities, of which validation chooses one; 1: no "
        "propagation",
        Check(lambda alpha: 0 < alpha <= 1, "must be in (0, 1]"),
    )

    @property
    def hops(self) -> int:
        """Hops from the nodes in a split to the nodes that label propagation alone needs."""
        return self.steps if self.reach == "hops" else 0


@settings_dataclass
class CheckpointSettings(Checked):
    """State that an interrupted run is resumed from, besides the finished layers."""

    keep: bool = setting(
        "checkpoint.keep",
        True,
        "keep a state to resume from; checkpoint=none sets it to false",
        per_node=True,
        compared=False,
    )
    every: int | None = setting(
        "checkpoint.every",
        None,
        "rounds between two saved states; null: a state only after each layer",
        at_least(1),
        per_node=True,
        compared=False,
    )


@settings_dataclass
class TrainerSettings(Checked):
    """Training algorithm."""

    name: str = setting(
        "trainer.name", "lazy", "training algorithm (docs/trainers.md)", is_group=True
    )
    options: dict[str, Any]
    """The settings NAME.* as given; the trainer checks them with `typed_options`."""


@settings_dataclass
class TrainSettings(Checked):
    """Everything that training depends on, except the partitions."""

    task: TaskSettings
    model: ModelSettings
    optimizer: OptimizerSettings
    compute: ComputeSettings
    batch_size: int | str | None = setting(
        "batch_size",
        "auto",
        "training nodes per step and worker; null: full batch; auto: full batch below 131,072 "
        "training nodes, else 32,768 per step over all workers (docs/training.md)",
        number_or("auto", 1),
    )
    network: NetworkSettings
    exchange: ExchangeSettings
    gradient: GradientSettings
    stopping: StoppingSettings
    output_heads: str = setting(
        "output_heads",
        "validation",
        "output heads that predict; last: that of the last layer; validation: one, or the mean "
        "of several, with the best validation metric",
        one_of("last", "validation"),
    )
    smoothing: SmoothingSettings
    temperature: str = setting(
        "temperature",
        "auto",
        "calibration of the final logits by validation log loss: one temperature, with class "
        "weights a slope and a bias for each class; none: off",
        one_of("auto", "none"),
    )
    threshold: float | str = setting(
        "threshold",
        "auto",
        "probability from which the positive class, or a label of a multi-label node, is "
        "predicted; auto: the best F1 on validation, or 0.5 if stopping.metric is accuracy or "
        "loss",
        Check(
            lambda value: value == "auto" if isinstance(value, str) else 0 < value < 1,
            "must be between 0 and 1, or auto",
        ),
    )
    histogram_bins: int = setting(
        "histogram_bins",
        512,
        "bins of the histograms for the final ROC AUC, average precision and threshold; fewer "
        "bins disclose less to other sites",
        at_least(8),
        at_most(1 << 20),
    )
    checkpoint: CheckpointSettings
    max_rows_shared: float | None = setting(
        "sites.max_rows_shared",
        None,
        "limit on the nodes of this site whose rows another site may request, over all runs: a "
        "number, or a share if below 1; null: unlimited",
        *RATE,
        per_node=True,
        compared=False,
    )
    share_aggregates: bool = setting(
        "sites.share_aggregates",
        False,
        "allow model.lookahead with dataset_name=parts, which sends aggregates that contain "
        "rows of nodes that no other site needs",
        compared=False,
    )
    resume: str | None = setting(
        "resume",
        None,
        "auto: continue the run in hydra.run.dir if there is one; DIR: continue the run in DIR",
        per_node=True,
        compared=False,
    )
    init: str | None = setting(
        "init",
        None,
        "run directory of a trained model: training starts from its parameters, with its network",
        per_node=True,
    )
    cluster: ClusterSettings
    trainer: TrainerSettings
    num_rounds: tuple[int, ...] = setting(
        "num_rounds",
        [200],
        "maximum number of rounds of each layer; the last entry of a short list applies to the "
        "other layers",
        at_least(0),
        at_most(MAX_ROUNDS),
        per_layer=True,
    )
    learning_rate: tuple[float, ...] = setting(
        "learning_rate",
        [0.01],
        "learning rate of each layer, a list like num_rounds",
        *RATE,
        per_layer=True,
    )
    best_val_model: bool = setting(
        "best_val_model",
        True,
        "restore the parameters of the best validation round at the end of a layer",
    )
    seed: int = setting(
        "seed",
        42,
        "random seed; also of split, partitions and synthetic graph unless their own seeds are set",
        *SEED,
        is_seed=True,
    )
    log_every: int = setting(
        "log_every",
        100,
        "maximum number of rounds between two lines of the log",
        at_least(1),
        per_node=True,
        compared=False,
    )
    measure_dv: bool = setting(
        "measure_dv",
        False,
        "print the data volume by kind, layer and worker at the end",
        compared=False,
    )
    sleep_time: float = setting(
        "sleep_time",
        0.0,
        "simulated network latency: seconds added to every sequential message",
        *seconds(0),
    )
    display: DisplaySettings

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in (("resume", self.resume), ("checkpoint.every", self.checkpoint.every)):
            if value is not None and not self.checkpoint.keep:
                raise InputError(
                    f"{name}={value}: checkpoint=none keeps nothing to go on from; leave one of"
                    " them out"
                )
        if self.model.depth + self.smoothing.steps > MAX_LAYERS:
            raise InputError(
                f"smoothing.steps={self.smoothing.steps}: with num_layers must be at most"
                f" {MAX_LAYERS}"
            )


@settings_dataclass
class Settings(Checked):
    """The application and all settings."""

    app: str = setting("app", "train", "application to run", one_of(*APPS), compared=False)
    partition: PartitionSettings
    train: TrainSettings
    seeds: tuple[int, ...] | None = setting(
        "seeds",
        None,
        "app=train: train once per seed, into RUN_DIR/seedN, and print the mean and the sample "
        "deviation of the scores",
        *SEED,
        compared=False,
    )
    objective: tuple[str, ...] | None = setting(
        "objective",
        None,
        "numbers of summary.json that a run returns to a Hydra sweeper, such as val.roc_auc; "
        "null: the validation metric of stopping, R2 for regression",
        compared=False,
    )
    plan_rounds: tuple[int, ...] | None = setting(
        "plan.rounds",
        None,
        "app=plan: rounds of each layer to predict bytes for, besides num_rounds",
        at_least(0),
        at_most(MAX_ROUNDS),
        per_layer=True,
        compared=False,
    )
    checkpoint_dir: str | None = setting(
        "checkpoint_dir",
        None,
        "app=evaluate, predict, export, serve: run directory of the trained model, or its "
        "checkpoint folder",
        per_node=True,
        compared=False,
    )
    predict: PredictSettings
    export: ExportSettings
    serve: ServeSettings
    report: ReportSettings
    remote: RemoteSettings
    arguments: tuple[str, ...]
    """The command line: --config-name, --config-dir if given, then the overrides."""
    given: frozenset[str]
    """Names of the settings on the command line."""
    resolved: dict[str, Any]
    """All settings as nested JSON values."""
    started: float
    """Unix time in seconds when the command started."""
    is_multirun_job: bool
    """Whether this is one of several jobs of --multirun."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.app in NEED_A_MODEL and self.checkpoint_dir is None:
            raise InputError(
                f"checkpoint_dir=null: app={self.app} needs checkpoint_dir=DIR, the run directory"
                " of app=train"
            )
        self._check_seeds()
        for name in self.objective or ():
            check_objective_name(name, of_links=self.train.task.links)
            IS_OBJECTIVE("objective", name)
        trainer = self.train.trainer.name
        if self.app == "plan" and trainer != "lazy":
            raise InputError(
                f"trainer={trainer}: app=plan predicts the bytes of trainer=lazy, and shows those"
                " of other trainers beside them; leave it out"
            )

    def _check_seeds(self) -> None:
        """InputError for `seeds` with another app, repeated, or with settings against them."""
        if self.seeds is None:
            return
        text = f"seeds={list(self.seeds)}"
        if self.app != "train":
            raise InputError(f"{text}: only app=train runs several seeds; set seed instead")
        if "seed" in self.given:
            raise InputError(f"{text}: seed is set, too; leave one of them out")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise InputError(f"{text}: must be different numbers, at least one")
        if self.train.resume not in (None, "auto"):
            raise InputError(
                f"{text}: resume={self.train.resume} continues one run; set resume=auto, which"
                " continues those in hydra.run.dir"
            )
