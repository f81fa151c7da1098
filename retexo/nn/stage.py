"""What one layer trains: convolution, norm, activation and head, all of them part of the model.

A stage before the last is convolution + LayerNorm + ReLU, with a linear head that classifies while it trains; its
embedding is the vector after the ReLU. The last stage is the bare convolution to C classes.
"""

from dataclasses import asdict, dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from retexo.nn.conv.gat import GAT
from retexo.nn.conv.gcn import GCN
from retexo.nn.conv.gin import GIN
from retexo.nn.conv.sage import SAGEMean, SAGEPool
from retexo.nn.convolution import Convolution, Inputs


@dataclass(frozen=True)
class Architecture:
    """All that a model's shape depends on; part of a checkpoint. Field by field as in ModelSettings."""

    name: str
    num_layers: int
    hidden_dim: int
    heads: int
    dropout: float
    aggregator: str
    head_merge: str
    num_features: int
    num_classes: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Self:
        return cls(**fields)

    @property
    def embedding_dim(self) -> int:
        """Width of an embedding between two layers."""
        if self.name == "gat" and self.head_merge == "mean":
            return self.hidden_dim // self.heads
        return self.hidden_dim

    def input_dim(self, layer: int) -> int:
        return self.num_features if layer == 0 else self.embedding_dim

    def is_last(self, layer: int) -> bool:
        return layer == self.num_layers - 1


class Stage(nn.Module):
    """One layer with its head; `logits` trains it, `embed` makes the input of the next one."""

    def __init__(self, conv: Convolution, embedding_dim: int | None, num_classes: int) -> None:
        super().__init__()
        self.conv = conv
        self.output_dim = num_classes if embedding_dim is None else embedding_dim
        self.norm = nn.LayerNorm(embedding_dim) if embedding_dim is not None else None
        self.head = nn.Linear(embedding_dim, num_classes) if embedding_dim is not None else None

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


def build_stage(architecture: Architecture, layer: int, seed: int) -> Stage:
    """The stage of one layer with the initial parameters that `seed` stands for, the same on every worker."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed * 1_000 + layer)
        last = architecture.is_last(layer)
        conv = _convolution(architecture, layer)
        return Stage(conv, None if last else architecture.embedding_dim, architecture.num_classes)


def _convolution(architecture: Architecture, layer: int) -> Convolution:
    last = architecture.is_last(layer)
    num_in = architecture.input_dim(layer)
    num_out = architecture.num_classes if last else architecture.hidden_dim
    dropout = architecture.dropout
    if architecture.name == "gcn":
        return GCN(num_in, num_out, dropout)
    if architecture.name == "sage":
        return (SAGEPool if architecture.aggregator == "pool" else SAGEMean)(num_in, num_out, dropout)
    if architecture.name == "gin":
        return GIN(num_in, num_out, dropout, width=architecture.hidden_dim)
    assert architecture.name == "gat"
    merge = "mean" if last else architecture.head_merge
    width = num_out if last else architecture.hidden_dim // architecture.heads
    return GAT(num_in, width, dropout, architecture.heads, merge)
