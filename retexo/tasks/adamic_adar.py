"""Adamic and Adar's score of two nodes on any workers: their common neighbours, weighted by degree.

A node's owner knows its neighbours' ids and weights (partitioning.links.adamic_adar); the owner of
one node receives the neighbours of the other. N nodes of the graph, I inner nodes, q other nodes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from partitioning.links.adamic_adar import ONE
from retexo.arrays import csr_from_counts
from retexo.comm.collectives import Communicator
from retexo.comm.received import reading_from
from retexo.comm.traffic_meter import PREDICTIONS
from retexo.tasks.task_context import TaskContext


@dataclass(frozen=True, eq=False)
class WeightedNeighbours:
    """Neighbours of this worker's nodes."""

    weights: sp.csr_array
    """int64 [I, N]"""

    @cached_property
    def by_neighbour(self) -> sp.csr_array:
        """Return the transpose of `weights`, int64 [N, I]."""
        return sp.csr_array(self.weights.T)

    def take(self, nodes: Tensor) -> "WeightedNeighbours":
        """Return those of some own nodes, int64 [n]."""
        return WeightedNeighbours(self.weights[nodes.numpy()])

    @classmethod
    def of(cls, context: TaskContext) -> "WeightedNeighbours":
        """Build the weights of this worker's pairs of neighbours."""
        part, num_nodes = context.partition, int(context.graph_info.id_bounds[-1])
        node, neighbour, weight = context.links["neighbours"].numpy().T
        shape = (part.num_inner, num_nodes)
        return cls(sp.csr_array((weight, (node - part.first_id, neighbour)), shape=shape))

    def fetch(
        self, comm: Communicator, requested: Sequence[Tensor], counts: Sequence[int]
    ) -> sp.csr_array:
        """Return the neighbours of other workers' nodes, owner by owner; all workers call it.

        Args:
            comm: to the other workers.
            requested: by worker, the rows, int [n_w], of this worker's nodes that it requests.
            counts: how many nodes this worker requests from each.

        Returns:
            Ones, int64 [q, N].

        Raises:
            TrainingError: a worker sent ids that cannot be neighbours.
        """
        chosen = [self.weights[nodes.numpy()] for nodes in requested]
        dtype = torch.int32 if self.weights.shape[1] < 1 << 31 else torch.int64
        sizes = [torch.from_numpy(np.diff(rows.indptr)).to(torch.int32) for rows in chosen]
        lengths = comm.all_to_all(sizes, counts, PREDICTIONS)
        columns = [torch.from_numpy(rows.indices).to(dtype) for rows in chosen]
        received = comm.all_to_all(
            columns, [int(lengths_of_peer.sum()) for lengths_of_peer in lengths], PREDICTIONS
        )
        matrices = []
        for peer, (ids, lengths_of_peer) in enumerate(zip(received, lengths, strict=True)):
            ones = np.ones(len(ids), np.int64)
            with reading_from(peer, "list of neighbours"):
                matrix = csr_from_counts(
                    ones, ids.numpy(), lengths_of_peer.numpy(), self.weights.shape[1]
                )
                matrix.check_format()  # SciPy's products read past the end at an invalid index
            matrices.append(matrix)
        return sp.csr_array(sp.vstack(matrices, format="csr"))

    def score_pairs(self, own: Tensor, neighbours: sp.csr_array) -> Tensor:
        """Score pairs of nodes by their common neighbours, [q].

        Each pair is one own node, row `own` int64 [q], and the node whose neighbours are in the
        same row of `neighbours`, [q, N].
        """
        return torch.from_numpy(self.weights[own.numpy()].multiply(neighbours).sum(axis=1)) / ONE

    def score_all(self, neighbours: sp.csr_array) -> tuple[Tensor, Tensor, Tensor]:
        """Score other nodes, whose neighbours are ones [q, N], with all own nodes.

        The score of two nodes is that of their common neighbours.

        Returns:
            For the p pairs with common neighbours: the rows of the other nodes, the own nodes (both
            int64 [p]), and the scores [p].
        """
        pairs = (neighbours @ self.by_neighbour).tocoo()
        other, own, score = (
            torch.from_numpy(array) for array in (pairs.row, pairs.col, pairs.data)
        )
        return other.long(), own.long(), score / ONE
