"""Settings of training, evaluation and reports: type, default, checks and help text of each.

partitioning/setting_fields.py defines `setting`; CONTRIBUTING.md shows how to add one.
"""

from dataclasses import fields, replace
from typing import Any, cast

from partitioning.errors import InputError
from partitioning.setting_fields import (
    FINITE,
    SEED,
    Check,
    Checked,
    at_least,
    at_most,
    group,
    not_a_setting,
    one_of,
    refuse,
    setting,
    subgroup,
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
from retexo.settings.cluster_settings import ClusterSettings
from retexo.settings.communication_settings import CommunicationSettings
from retexo.settings.objective_settings import StoppingSettings, TaskSettings
from retexo.settings.options import (
    MAX_LAYERS,
    BNSOptions,
    FedGCNOptions,
    LocalOptions,
    NetworkSettings,
    SampledOptions,
    choose_output,
)
from retexo.settings.search import check_objective

REACHES = ("computed", "hops")
MAX_ROUNDS = 1_000_000_000
MAX_RATE = 1e30
"""Largest learning rate and weight decay: optimizers multiply them in float32."""

RATE = (at_least(0), FINITE, at_most(MAX_RATE))


@group()
class OptimizerSettings(Checked):
    """Optimizer."""

    optimizer: dict[str, Any] = setting(
        {"_target_": "torch.optim.Adam"},
        "optimizer._target_=torch.optim.NAME, and its arguments: +optimizer.NAME=VALUE",
    )
    weight_decay: float = setting(0.0005, "weight decay of the optimizer", *RATE)
    scheduler: str = setting(
        "none",
        "learning rate over a layer's rounds; cosine: falls to 0 at num_rounds; step: is halved "
        "every 50; plateau: the same after 5 without improvement",
        one_of("none", "cosine", "plateau", "step"),
    )


@group("smoothing")
class SmoothingSettings(Checked):
    """Label propagation of the predictions (APPNP; Gasteiger et al., ICLR 2019)."""

    steps: int = setting(
        5,
        "number of steps, if the first one helps validation nodes; 0: off",
        at_least(0),
    )
    reach: str = setting(
        "hops",
        "hops: from all nodes within smoothing.steps hops of a split; computed: only from "
        "nodes in a split",
        one_of(*REACHES),
    )
    alphas: Any = setting(
        [1.0, 0.5, 0.3, 0.2, 0.1],
        "teleport probabilities, of which validation chooses one; 1: no propagation",
        Check(lambda alpha: 0 < alpha <= 1, "must be in (0, 1]"),
        list_of=float,
    )

    @property
    def hops(self) -> int:
        """Hops from the nodes in a split to the nodes that label propagation alone needs."""
        return self.steps if self.reach == "hops" else 0


@group("checkpoint")
class CheckpointSettings(Checked):
    """States that an interrupted run resumes from."""

    every: int | None = setting(
        None,
        "rounds between two saved states; null: only after each layer; 0 (or "
        "checkpoint=none): none at all",
        at_least(0),
        per_node=True,
        compared=False,
    )

    @property
    def keep(self) -> bool:
        """Whether there is a state to resume from."""
        return self.every != 0


@group("trainer")
class TrainerSettings(Checked):
    """Training algorithm."""

    name: str = setting("lazy", "training algorithm (docs/trainers.md)", is_group=True)


@group("sites", compared=False)
class SiteSettings(Checked):
    """What a site agrees to send."""

    max_rows_shared: float | None = setting(
        None,
        "nodes of this site whose rows another site may request in all runs together: a "
        "number, or a share below 1",
        *RATE,
        per_node=True,
    )
    share_aggregates: bool = setting(
        False,
        "allow model.lookahead, whose aggregates contain rows of nodes that no other site needs",
    )


@group()
class TrainSettings(
    NetworkSettings, OptimizerSettings, CommunicationSettings, DisplaySettings, ClusterSettings
):
    """Everything that training depends on."""

    task: TaskSettings = subgroup(TaskSettings)
    batch_size: int | str | None = setting(
        "auto",
        "training nodes per step and worker; null: all; auto: all below 131,072 training "
        "nodes, else 32,768 per step over all workers; trainer=sampled: 1024",
        Check(
            lambda value: value == "auto" if isinstance(value, str) else value >= 1,
            "must be at least 1, or auto",
        ),
    )
    stopping: StoppingSettings = subgroup(StoppingSettings)
    classifiers: str = setting(
        "validation",
        "last: the last layer predicts; validation: one layer, or the mean of several, by "
        "the validation metric",
        one_of("last", "validation"),
    )
    smoothing: SmoothingSettings = subgroup(SmoothingSettings)
    threshold: float | str = setting(
        "auto",
        "probability from which the positive class, or a label, is predicted; auto: the best "
        "F1 on validation, or 0.5 where accuracy or loss is the metric",
        Check(
            lambda value: value == "auto" if isinstance(value, str) else 0 < value < 1,
            "must be between 0 and 1, or auto",
        ),
    )
    checkpoint: CheckpointSettings = subgroup(CheckpointSettings)
    sites: SiteSettings = subgroup(SiteSettings)
    resume: str | None = setting(
        None,
        "auto: continue the run in hydra.run.dir, if any; DIR: that in DIR",
        per_node=True,
        compared=False,
    )
    init: str | None = setting(
        None,
        "run directory of a trained model, whose network and parameters training starts from",
        per_node=True,
    )
    trainer: TrainerSettings = subgroup(TrainerSettings)
    bns: BNSOptions = subgroup(BNSOptions)
    fedgcn: FedGCNOptions = subgroup(FedGCNOptions)
    local: LocalOptions = subgroup(LocalOptions)
    sampled: SampledOptions = subgroup(SampledOptions)
    num_rounds: Any = setting(
        [200],
        "largest number for each layer; the last entry of a short list holds for further layers",
        at_least(0),
        at_most(MAX_ROUNDS),
        list_of=int,
        per_layer=True,
    )
    learning_rate: Any = setting(
        [0.01],
        "learning rate of each layer, a list like num_rounds",
        *RATE,
        list_of=float,
        per_layer=True,
    )
    best_val_model: bool = setting(
        True,
        "restore the parameters of the best validation round",
    )
    seed: int = setting(
        42,
        "random seed, also of split, partitions and synthetic graph unless their own seeds are set",
        *SEED,
        is_seed=True,
    )
    log_every: int = setting(
        100,
        "largest number of rounds between two lines of the log",
        at_least(1),
        per_node=True,
        compared=False,
    )
    measure_dv: bool = setting(
        False,
        "print the bytes by kind, layer and worker at the end",
        compared=False,
    )

    @property
    def link_scorer(self) -> str:
        """Return task.scorer for links; empty for other tasks."""
        return self.task.scorer.replace("auto", "dot") if self.task.links else ""

    @property
    def edge_head(self) -> str:
        """Return task.scorer for labelled edges; mlp for other tasks."""
        return self.task.scorer.replace("auto", "mlp") if self.task.of_edges else "mlp"

    def check_together(self) -> None:
        """Check what depends on several settings.

        Repeat lists for all layers, and set what is auto, in place. InputError names the settings.
        """
        self.decide_by_network(links=self.task.links)
        if self.model.output is None:  # not that of a checkpoint
            output = choose_output(self.trainer.name, input_skip=self.model.input_skip)
            self.model = replace(self.model, output=output)
        self.num_rounds = self.of_layers(self.num_rounds)
        self.learning_rate = self.of_layers(self.learning_rate)
        precision = self.of_layers(self.exchange.precision)
        self.exchange = replace(self.exchange, precision=precision)
        for name in ("bns", "fedgcn", "local", "sampled"):
            own = getattr(self, name)
            if name != self.trainer.name and own != type(own)():
                keys = ", ".join(f"{name}.{field.name}" for field in fields(own))
                raise InputError(f"{keys}: trainer={name} has to be set for it")
        refuse(
            (
                self.resume is not None and not self.checkpoint.keep,
                f"resume={self.resume}: checkpoint=none keeps nothing to go on from; leave one of"
                " them out",
            ),
            (
                self.model.depth + self.smoothing.steps > MAX_LAYERS,
                f"smoothing.steps={self.smoothing.steps}: with num_layers must be at most"
                f" {MAX_LAYERS}",
            ),
        )


@group(compared=False)
class Settings(TrainSettings):
    """The application and what it reads and returns."""

    app: str = setting("train", "application to run", one_of(*APPS))
    seeds: Any = setting(
        None,
        "train once per seed, into RUN_DIR/seedN, and print mean and sample deviation of the "
        "scores",
        *SEED,
        list_of=int,
    )
    objective: Any = setting(
        None,
        "numbers of summary.json for a Hydra sweeper, such as val.roc_auc; null: the metric "
        "of stopping, R2 for regression",
        list_of=str,
    )
    checkpoint_dir: str | None = setting(
        None,
        "app=evaluate, predict, export, serve: run directory of the trained model",
        per_node=True,
    )
    predict: PredictSettings = subgroup(PredictSettings)
    export: ExportSettings = subgroup(ExportSettings)
    serve: ServeSettings = subgroup(ServeSettings)
    report: ReportSettings = subgroup(ReportSettings)
    remote: RemoteSettings = subgroup(RemoteSettings)
    arguments: tuple[str, ...] = not_a_setting(())
    """The command line: --config-name, --config-dir if given, then the overrides."""
    given: frozenset[str] = not_a_setting(frozenset())
    """Names of the settings on the command line."""
    started: float = not_a_setting(0.0)
    """Unix time in seconds when the command started."""
    is_multirun_job: bool = not_a_setting(False)
    """Whether this is one of several jobs of --multirun."""
    addresses: tuple[tuple[str, str], ...] = not_a_setting(())
    """Settings that name a local copy, and the address each was given as."""

    @property
    def stored(self) -> dict[str, Any]:
        """All settings as nested JSON values, as a run stores them.

        Those that name a local copy have the address that the user gave, by dotted name.
        """
        from omegaconf import OmegaConf  # workers need none

        container: Any = OmegaConf.to_container(OmegaConf.structured(self))
        return cast(dict[str, Any], container) | dict(self.addresses)

    def check_together(self) -> None:
        for name in self.objective or ():
            check_objective(name, of_links=self.task.links)
        text, seeds = f"seeds={list(self.seeds or ())}", self.seeds
        refuse(
            (
                self.app in NEED_A_MODEL and self.checkpoint_dir is None,
                f"checkpoint_dir=null: app={self.app} needs checkpoint_dir=DIR, the run directory"
                " of app=train",
            ),
            (
                self.app == "plan" and self.trainer.name != "lazy",
                f"trainer={self.trainer.name}: app=plan predicts the bytes of trainer=lazy, and"
                " shows those of other trainers beside them; leave it out",
            ),
            (
                seeds is not None and self.app != "train",
                f"{text}: only app=train runs several seeds; set seed instead",
            ),
            (
                seeds is not None and "seed" in self.given,
                f"{text}: seed is set, too; leave one of them out",
            ),
            (
                seeds is not None and len(set(seeds)) < len(seeds),
                f"{text}: must be different numbers",
            ),
            (
                seeds is not None and self.resume not in (None, "auto"),
                f"{text}: resume={self.resume} continues one run; set resume=auto, which continues"
                " those in hydra.run.dir",
            ),
        )
