"""A stage, which is one layer as it trains: convolution, norm, activation and a linear head.

The head classifies while the stage trains; the embedding of a node is the vector after the
activation, which is ReLU unless model.activation names another.
Without skip connections the last stage is the bare convolution to C classes.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from partitioning.graph.graph_data import PLAIN_TYPE
from retexo.models.convolution import (
    Convolution,
    Inputs,
    make_activation,
    make_norm,
)
from retexo.models.linear import LinearConvolution
from retexo.models.matrix import dropout, matmul, to_dense
from retexo.settings.options import ModelSettings

Skip = Literal["rows", "features", "aggregate", "edges"]
"""Source of a skip connection, which bypasses the convolution: the layer's input, the graph's
features, the first layer's aggregate of these, or the mean of the in-edges' features."""


class Stage(nn.Module):
    """One layer with its head; `logits` is trained, `embed` computes the input of the next one.

    Skip connections S_i, after dropout D, are concatenated with the convolution or added to it:

        concatenated    h = relu(LN([D(S_1) W_1 ; ... ; conv(x)]))
        added           h = relu(LN(D(S_1) W_1 + ... + conv(x)))

    The output is h, or the aggregate after the convolution's weights, A x W, without norm and
    activation. With model.residual (He et al., CVPR 2016) it is x + W_2 D(h) + b, in the first
    layer without x, and a norm stands before the head.
    """

    def __init__(
        self,
        conv: Convolution,
        num_classes: int | None,
        model: ModelSettings,
        *,
        skips: Mapping[Skip, nn.Parameter] | None = None,
        features: bool = False,
        is_last: bool = False,
        outputs_aggregate: bool = False,
    ) -> None:
        """Build a stage around a convolution.

        Args:
            conv: the convolution.
            num_classes: of the head; None for a last stage that is the bare convolution, without
                norm and head.
            model: settings.
            skips: the weights [F, D] of skip connections.
            features: whether the layer's input are the features, which have a dropout rate of their
                own and are not added to residual layers.
            is_last: whether `embed` returns the logits.
            outputs_aggregate: whether `embed` returns the weighted aggregate.
        """
        super().__init__()
        self.conv = conv
        self.skips = nn.ParameterDict(skips or {})
        self.hidden_dim = conv.output_dim
        if not conv.adds_skips:
            self.hidden_dim += sum(weight.shape[1] for weight in self.skips.values())
        self.norm = make_norm(model.norm, self.hidden_dim) if num_classes is not None else None
        self.head = nn.Linear(self.hidden_dim, num_classes) if num_classes is not None else None
        self.expand = nn.Linear(self.hidden_dim, self.hidden_dim) if model.residual else None
        self.head_norm = make_norm(model.norm if model.residual else "none", self.hidden_dim)
        self.adds_input = model.residual and not features
        self.activation = make_activation(model.activation)
        self.is_last, self.outputs_aggregate = is_last, outputs_aggregate
        self.dropout_rate = model.dropout
        self.skip_rates = [
            model.dropout
            if name == "rows" and not features
            else model.features_dropout(len(weight))
            for name, weight in self.skips.items()
        ]
        self.scorer: Any = None
        """For link prediction; set by build_network."""

    def by_type(self) -> "Iterator[tuple[str, Stage]]":
        """Yield the node type of a plain graph with this stage, as TypedLayer.by_type does."""
        yield PLAIN_TYPE, self

    @property
    def trunk(self) -> nn.ModuleList:
        """Return the modules of the stage that compute embeddings: all but the head."""
        return nn.ModuleList(
            part for part in (self.conv, self.norm, self.skips, self.expand) if part is not None
        )

    @property
    def output_dim(self) -> int:
        """Width of what `embed` returns: of the logits, from the last stage with a head."""
        if self.is_last and self.head is not None:
            return self.head.out_features
        return self.conv.projected_width if self.outputs_aggregate else self.hidden_dim

    @property
    def output_widths(self) -> tuple[int, int]:
        """D and C of `outputs`."""
        return self.output_dim, self.output_dim if self.head is None else self.head.out_features

    @property
    def first_weights(self) -> tuple[nn.Parameter, ...]:
        """Return the weights [F, D] of Inputs.matrices and Inputs.skips, in that order."""
        return *self.conv.first_weights, *self.skips.values()

    def hidden(self, inputs: Inputs) -> Tensor:
        """Return the input of the head, [N_dst, H]."""
        with self._autocast(inputs):
            return self._to_parameter_dtype(self._hidden(inputs))

    def logits(self, inputs: Inputs) -> Tensor:
        """Return the logits, [N_dst, C]."""
        with self._autocast(inputs):
            return self._to_parameter_dtype(self.classify(self._hidden(inputs)))

    def embed(self, inputs: Inputs) -> Tensor:
        """Return the input of the next layer, [N_dst, D]; the logits from the last stage."""
        with self._autocast(inputs):
            hidden = self._hidden(inputs)
            return self._to_parameter_dtype(
                self.classify(hidden) if self.is_last else self._output(inputs, hidden)
            )

    def outputs(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Return the results of `embed` and `logits`, computed together."""
        with self._autocast(inputs):
            hidden = self._hidden(inputs)
            logits = self._to_parameter_dtype(self.classify(hidden))
            if self.is_last:
                return logits, logits
            return self._to_parameter_dtype(self._output(inputs, hidden)), logits

    def _output(self, inputs: Inputs, hidden: Tensor) -> Tensor:
        """Return what the stage passes to the next layer: the weighted aggregate, or `hidden`."""
        if not self.outputs_aggregate:
            return hidden
        assert isinstance(self.conv, LinearConvolution)
        return self.conv.weighted_aggregate(inputs)

    def _hidden(self, inputs: Inputs) -> Tensor:
        """Return convolution and skip connections after norm and activation, [N_dst, H].

        Without a head neither follows. With model.residual a linear layer does, and above layer 0
        the own row is added to its output.
        """
        out: Tensor = self.conv(inputs)
        skips = zip(inputs.skips, self.skip_rates, self.skips.values(), strict=True)
        parts = [matmul(dropout(rows, rate, self.training), weight) for rows, rate, weight in skips]
        if parts:
            out = sum(parts, start=out) if self.conv.adds_skips else torch.cat((*parts, out), dim=1)
        out = out if self.norm is None else self.activation(self.norm(out))
        if self.expand is None:
            return out
        kept = dropout(out, self.dropout_rate, self.training)
        out = matmul(kept, self.expand.weight.T, self.expand.bias)
        if self.adds_input:
            out = out + to_dense(inputs.skips[[*self.skips].index("rows")])
        return out

    def classify(self, hidden: Tensor) -> Tensor:
        """Return the logits [n, C] of `hidden`, [n, H]; without a head `hidden` itself.

        With dropout in training, where there are skips.
        """
        if self.head is None:
            return hidden
        read = self.head_norm(hidden)
        read = dropout(read, self.dropout_rate, self.training) if self.skips else read
        return matmul(read, self.head.weight.T, self.head.bias)

    def _to_parameter_dtype(self, out: Tensor) -> Tensor:
        """Convert an output, which may be bfloat16, to the type of the parameters."""
        return out.to(self.conv.neighbour_weight.dtype)

    def _autocast(self, inputs: Inputs) -> AbstractContextManager[object]:
        """Return the context that computes products in bfloat16, if the inputs ask for it."""
        return (
            torch.autocast(self.conv.neighbour_weight.device.type, torch.bfloat16)
            if inputs.bf16
            else nullcontext()
        )


@dataclass(frozen=True)
class OutputHeads:
    """Which heads predict, and how strongly label propagation smooths the predictions."""

    stages: tuple[int, ...]
    """The stages whose logits are averaged."""
    alpha: float = 1.0
    """In (0, 1], the weight of a node's own prediction; 1 for no smoothing."""
    steps: int = 0
    """K"""
    reach: str = "computed"
    """See SmoothingSettings."""
    spectral: float = 0.0
    """For link prediction, in [0, 1]: the share of the spectral score beside the network's."""
    paths: float = 0.0
    """For link prediction, in [0, 1]: the share of Adamic and Adar's score beside both."""
    offsets: tuple[float, ...] = ()
    """[C] logarithms of the class weights of the loss, which are subtracted from the final logits,
    so that probabilities are those of the data; empty without class weights."""
    offset_share: float = 0.0
    """In [0, 1], the share of `offsets` that the choice among more than two classes keeps."""
    temperature: float = 1.0
    """Divisor of the final logits, above 0."""
    slopes: tuple[float, ...] = ()
    """[C] factors of the final logits less their mean over the classes, above 0; empty for 1."""
    biases: tuple[float, ...] = ()
    """[C] added after the slopes; empty if they are."""
    has_labels: bool = False
    """Whether nodes have any number of labels: then slopes multiply the logits themselves."""
    threshold: float = 0.5
    """Probability, in (0, 1), from which on the positive class or a label is predicted."""
    positive: int = 1
    """The positive one of two classes, 0 or 1."""

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """Return the inverse of asdict; missing fields have defaults, TypeError for others."""
        lists = {name: tuple(value) for name, value in content.items() if isinstance(value, list)}
        return cls(**{**content, **lists})

    def calibrate(self, logits: Tensor) -> Tensor:
        """Subtract the offsets, then scale each class, or divide by the temperature.

        logits: [n, C], after smoothing.
        """
        if self.slopes:
            inputs = self.scaling_inputs(logits)
            return inputs * logits.new_tensor(self.slopes) + logits.new_tensor(self.biases)
        logits = self._without_offsets(logits)
        return logits if self.temperature == 1 else logits / self.temperature

    def scaling_inputs(self, logits: Tensor) -> Tensor:
        """Return what slopes multiply, [n, C].

        Classes are taken without their mean, because probabilities do not depend on what all
        classes of a node share.
        """
        logits = self._without_offsets(logits)
        return logits if self.has_labels else logits - logits.mean(dim=1, keepdim=True)

    def _without_offsets(self, logits: Tensor) -> Tensor:
        return logits - logits.new_tensor(self.offsets) if self.offsets else logits


@dataclass(frozen=True)
class TargetScale:
    """T targets; a head's output is (target - mean) / deviation."""

    mean: tuple[float, ...]
    """[T] of the training nodes."""
    deviation: tuple[float, ...]
    """[T] standard deviation of the training nodes, above 0."""

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """Return the inverse of asdict; KeyError for a missing field."""
        return cls(*(tuple(content[name]) for name in ("mean", "deviation")))
