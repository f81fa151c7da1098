"""Settings of one convolution or one trainer.

The modules that use them import torch, which takes seconds, so the settings are defined here.
"""

from dataclasses import fields, replace
from typing import Any, ClassVar, TypeVar

from partitioning.errors import InputError
from partitioning.setting_fields import (
    Check,
    Checked,
    at_least,
    at_most,
    group,
    not_a_setting,
    one_of,
    setting,
    subgroup,
    within,
)
from retexo.settings.objective_settings import BELOW_ONE, MAX_WIDTH

T = TypeVar("T")
AUTO = "auto"
MAX_LAYERS = 254
"""The exchange plan stores a layer number in one byte."""
FEW_COLUMNS = 16
"""Features with at most so many columns are not dropped by default: each column counts."""
ACTIVATIONS = ("relu", "gelu", "elu", "leaky_relu", "tanh")


@group("model")
class ModelSettings(Checked):
    """Convolution and skip connections."""

    name: str = setting(
        "gcn",
        "convolution; --config-name=node_classification_NAME sets it, too",
        is_group=True,
    )
    input_dropout: float | None = setting(
        None,
        "dropout rate of the features and their aggregate; "
        f"null: dropout, or 0 where they have at most {FEW_COLUMNS} columns",
        BELOW_ONE,
    )
    norm: str = setting(
        "layer",
        "LayerNorm of the hidden layers, or none",
        one_of("layer", "none"),
    )
    activation: str = setting(
        "relu",
        "activation of the hidden layers, and in the MLP of gin",
        one_of(*ACTIVATIONS),
    )
    self_weight: bool = setting(
        True,
        "skip connection from a node's own row; gat adds it to its output, others use half "
        "of hidden_dim for it",
    )
    input_skip: bool = setting(
        True,
        "skip connections from the features and their aggregate to every later layer",
    )
    residual: bool = setting(
        False,
        "residual layers, for deep networks; needs model.self_weight",
    )
    lookahead: int = setting(
        0,
        "1: train each layer together with the next one",
        within(0, 1),
    )

    output: str | None = not_a_setting(None)
    """Input of the next layer: "activation", or "aggregate" (the weighted one before it, but of gat
    and pooling); None: TrainSettings decides it."""
    num_layers: int | str = not_a_setting(2)
    """This and the next ones: the settings without a group, which NetworkSettings sets here."""
    max_layers: int = not_a_setting(8)
    hidden_dim: int = not_a_setting(256)
    heads: int = not_a_setting(8)
    dropout: float = not_a_setting(0.4)
    SIZES: ClassVar = ("num_layers", "max_layers", "hidden_dim", "heads", "dropout")

    @property
    def sizes(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.SIZES}

    @property
    def grows(self) -> bool:
        """Whether validation chooses the number of layers."""
        return self.num_layers == AUTO

    @property
    def depth(self) -> int:
        """Return the number of layers that plan and network are made for."""
        return self.max_layers if isinstance(self.num_layers, str) else self.num_layers

    @property
    def passes_aggregate(self) -> bool:
        """Whether linear aggregators pass on the weighted aggregate, not the activation."""
        return self.output == "aggregate" and not (self.lookahead or self.residual)

    def features_dropout(self, num_columns: int) -> float:
        """Return the dropout rate of features with so many columns, and of their aggregate."""
        if self.input_dropout is not None:
            return self.input_dropout
        return self.dropout if num_columns > FEW_COLUMNS else 0.0

    @property
    def own(self) -> str:
        """Return the settings that other models lack, as text: " with model.aggregator=pool"."""
        names = [field.name for field in fields(self)[len(fields(ModelSettings)) :]]
        return "".join(f" with model.{name}={getattr(self, name)}" for name in names)


def choose_output(trainer: str, *, input_skip: bool) -> str:
    """Return ModelSettings.output of a network that a trainer makes."""
    return "aggregate" if trainer == "lazy" and input_skip else "activation"


@group("model")
class GATOptions(ModelSettings):
    """GAT, with model=gat only."""

    head_merge: str = setting(
        "mean",
        "how hidden layers merge heads: mean has width hidden_dim / heads",
        one_of("mean", "concat"),
    )
    self_loops: bool = setting(
        True,
        "attention includes the node itself; false: as in the public Retexo code",
    )


@group("model")
class SAGEOptions(ModelSettings):
    """GraphSAGE, with model=sage only."""

    aggregator: str = setting(
        "mean",
        "mean of the neighbours' rows, or their maximum after a dense layer (pool)",
        one_of("mean", "pool"),
    )


@group("bns")
class BNSOptions(Checked):
    """Boundary node sampling, trainer=bns."""

    p: float = setting(0.1, "probability that a boundary node is sampled in an epoch", within(0, 1))


@group("fedgcn")
class FedGCNOptions(Checked):
    """FedGCN, trainer=fedgcn."""

    hops: int = setting(
        2,
        "1: aggregates of own nodes; 2: also of their neighbours on other workers",
        within(1, 2),
    )


@group("local")
class LocalOptions(Checked):
    """Local training, trainer=local."""

    degrees: str = setting(
        "local",
        "normalise by degrees within the partition, or in the whole graph",
        one_of("local", "global"),
    )


@group("sampled")
class SampledOptions(Checked):
    """Neighbour sampling, trainer=sampled."""

    fanout: Any = setting(
        [15, 10],
        "in-edges of each node, first layer first; -1: all; the last entry holds for further "
        "layers",
        at_least(-1),
        list_of=int,
    )


MODELS: dict[str, type[ModelSettings]] = {
    "gat": GATOptions,
    "gcn": ModelSettings,
    "gin": ModelSettings,
    "hetero_sage": ModelSettings,
    "rgat": ModelSettings,
    "rgcn": ModelSettings,
    "rgcn_union": ModelSettings,
    "sage": SAGEOptions,
}
"""Value of `model` -> its settings."""


@group()
class NetworkSettings(Checked):
    """Number, width and dropout of the layers."""

    num_layers: int | str = setting(
        2,
        "auto (default for rgcn, rgat, hetero_sage): until two layers in a row have not "
        "improved validation",
        Check(
            lambda value: value == AUTO if isinstance(value, str) else 1 <= value <= MAX_LAYERS,
            f"must be in [1, {MAX_LAYERS}], or {AUTO}",
        ),
    )
    max_layers: int = setting(
        8,
        "largest number of layers with num_layers=auto",
        at_least(1),
        at_most(MAX_LAYERS),
    )
    hidden_dim: int = setting(
        256,
        "width of the hidden layers; gat: of all heads together",
        at_least(1),
        at_most(MAX_WIDTH),
    )
    heads: int = setting(8, "gat: number of attention heads", at_least(1))
    dropout: float = setting(
        0.4,
        "dropout rate of the aggregate; gat: of its input rows, 0.3 by its --config-name",
        BELOW_ONE,
    )
    model: ModelSettings = subgroup(ModelSettings)

    def of_layers(self, values: tuple[T, ...]) -> tuple[T, ...]:
        """Return one value per layer: more are left out, a short list goes on with its last."""
        return tuple(values[min(layer, len(values) - 1)] for layer in range(self.model.depth))

    def check_together(self) -> None:
        """Replace `model` by a copy with the sizes; InputError for options of another model."""
        if type(self.model) is not MODELS.get(self.model.name, ModelSettings):
            raise InputError(
                f"model.name={self.model.name}: has settings of its own; choose model="
                f"{self.model.name} (in a file: - override model: {self.model.name})"
            )
        self.model = replace(
            self.model, **{name: getattr(self, name) for name in ModelSettings.SIZES}
        )
