"""What one layer trains: convolution, norm, activation and head, all of them part of the model.

A stage before the last is convolution + LayerNorm + ReLU, with a linear head that classifies while it trains; its
embedding is the vector after the ReLU. The last stage is the bare convolution to C classes.
"""

from dataclasses import asdict, dataclass, fields
from typing import Any, Self

import torch
from torch import Tensor, nn

from retexo.config.settings import ModelSettings
from retexo.nn.convolution import Convolution, Inputs, LayerShape
from retexo.nn.registry import build_convolution, find


@dataclass(frozen=True)
class Architecture:
    """All that a network's shape depends on; part of a checkpoint."""

    model: ModelSettings
    num_features: int
    num_classes: int

    def to_json(self) -> dict[str, Any]:
        """One flat object: the settings of the model, its convolution's own among them, and the sizes."""
        common = asdict(self.model)
        options = common.pop("options")
        return {**common, **options, "num_features": self.num_features, "num_classes": self.num_classes}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """From to_json, also of a checkpoint from before an option: that has `Setting.earlier`.

        Raises KeyError for what is missing, InputError for an unknown model, or widths that are out of range.
        """
        own = {field.name: field.metadata["setting"].earlier for field in fields(find(content["name"]).Options)}
        options = {
            name: content[name] if earlier is None else content.get(name, earlier) for name, earlier in own.items()
        }
        common = {field.name: content[field.name] for field in fields(ModelSettings) if field.name != "options"}
        return cls(ModelSettings(**common, options=options), content["num_features"], content["num_classes"])


class Stage(nn.Module):
    """One layer with its head; `logits` trains it, `embed` makes the input of the next one."""

    def __init__(self, conv: Convolution, num_classes: int | None) -> None:
        """num_classes: of the head; None for the last stage, which has none."""
        super().__init__()
        self.conv = conv
        self.norm = nn.LayerNorm(conv.output_dim) if num_classes is not None else None
        self.head = nn.Linear(conv.output_dim, num_classes) if num_classes is not None else None

    @property
    def output_dim(self) -> int:
        """D of `embed`."""
        return self.conv.output_dim

    def logits(self, inputs: Inputs) -> Tensor:
        """[N_dst, C]"""
        with self._precision(inputs):
            return self._whole(self._embed(inputs) if self.head is None else self.head(self._embed(inputs)))

    def embed(self, inputs: Inputs) -> Tensor:
        """[N_dst, D] after LayerNorm and ReLU; of the last stage the logits."""
        with self._precision(inputs):
            return self._whole(self._embed(inputs))

    def _embed(self, inputs: Inputs) -> Tensor:
        out: Tensor = self.conv(inputs)
        return out if self.norm is None else torch.relu_(self.norm(out))

    def _whole(self, out: Tensor) -> Tensor:
        """In the precision of the parameters."""
        return out.to(self.conv.neighbour_weight.dtype)

    def _precision(self, inputs: Inputs) -> torch.autocast:
        return torch.autocast(self.conv.neighbour_weight.device.type, torch.bfloat16, enabled=inputs.bf16)


def build_stages(architecture: Architecture, seed: int) -> list[Stage]:
    """The stages of all layers with the initial parameters that `seed` stands for, the same on every worker."""
    model, classes = architecture.model, architecture.num_classes
    stages: list[Stage] = []
    with torch.random.fork_rng(devices=[]):
        for layer in range(model.num_layers):
            torch.manual_seed(seed * 1_000 + layer)
            is_last = layer == model.num_layers - 1
            num_in = stages[-1].output_dim if stages else architecture.num_features
            shape = LayerShape(num_in, classes if is_last else model.hidden_dim, is_last, model)
            stages.append(Stage(build_convolution(shape), None if is_last else classes))
    return stages
