"""How likely two nodes are to have an edge, from their embeddings.

    dot       <z_u, z_v>
    distmult  <z_u * w, z_v>             (Yang et al., "Embedding Entities and Relations", ICLR 2015, of one relation)
    mlp       a network of one hidden layer on z_u * z_v

n sources, m destinations, D width of an embedding.
"""

import torch
from torch import Tensor, nn

CELLS = 1 << 22
"""Values of products that an mlp has at a time."""


class Scorer(nn.Module):
    """Of a kind: dot, distmult or mlp."""

    def __init__(self, kind: str, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim)) if kind == "distmult" else None
        self.network = (
            nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, 1))
            if kind == "mlp"
            else None
        )

    def pairs(self, src: Tensor, dst: Tensor) -> Tensor:
        """[n, D], [n, D] -> [n]"""
        both = src * dst
        if self.network is not None:
            return torch.as_tensor(self.network(both))[:, 0]
        return both.sum(dim=1) if self.weight is None else both @ self.weight

    def against(self, src: Tensor, dst: Tensor) -> Tensor:
        """Each source with each destination: [n, D], [m, D] -> [n, m]"""
        if self.network is None:
            return (src if self.weight is None else src * self.weight) @ dst.T
        step = max(1, CELLS // max(1, dst.numel()))
        pieces = [self.network(some[:, None] * dst)[:, :, 0] for some in torch.split(src, step)]
        return torch.cat([src.new_zeros(0, len(dst)), *pieces])
