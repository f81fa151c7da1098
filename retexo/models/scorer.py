"""Scorers of link prediction: how likely two nodes have an edge, from their embeddings z.

    dot       <z_u, z_v>
    distmult  <z_u * w, z_v>, with one relation
    mlp       a network with one hidden layer on z_u * z_v

DistMult: Yang et al., "Embedding Entities and Relations", ICLR 2015. n sources, m destinations, D
width of an embedding.
"""

import torch
from torch import Tensor, nn

MAX_PRODUCTS = 1 << 22
"""Values of products that an mlp holds at a time."""


class Scorer(nn.Module):
    """A scorer of one kind: dot, distmult or mlp."""

    def __init__(self, kind: str, dim: int) -> None:
        """Begin with weights of 1 (distmult), torch's usual ones (mlp) or none (dot)."""
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim)) if kind == "distmult" else None
        self.network = (
            nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, 1))
            if kind == "mlp"
            else None
        )

    def pairs(self, src: Tensor, dst: Tensor) -> Tensor:
        """Score each source with its destination: [n, D], [n, D] -> [n]"""
        both = src * dst
        if self.network is not None:
            return torch.as_tensor(self.network(both))[:, 0]
        return both.sum(dim=1) if self.weight is None else both @ self.weight

    def against(self, src: Tensor, dst: Tensor) -> Tensor:
        """Score each source with each destination: [n, D], [m, D] -> [n, m]"""
        if self.network is None:
            return (src if self.weight is None else src * self.weight) @ dst.T
        step = max(1, MAX_PRODUCTS // max(1, dst.numel()))
        pieces = [self.network(some[:, None] * dst)[:, :, 0] for some in torch.split(src, step)]
        return torch.cat([src.new_zeros(0, len(dst)), *pieces])
