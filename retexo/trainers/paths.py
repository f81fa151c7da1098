"""Scores of paths of two between nodes of any parts: Adamic and Adar's, by partitioning.links.adamic_adar.

A node's owner knows its neighbours, as ids, and what each of them weighs; of two nodes the owner of one needs the
neighbours of the other. N nodes of the graph, I inner nodes, q other ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from partitioning.directory.partition import Partition
from partitioning.links.adamic_adar import ONE
from retexo.comm.collectives import Communicator
from retexo.comm.traffic_meter import MessageTag


@dataclass(frozen=True, eq=False)
class Paths:
    """From this worker's nodes."""

    weights: sp.csr_array
    """int64 [I, N] of the neighbours."""

    @classmethod
    def of(cls, partition: Partition, num_nodes: int) -> "Paths":
        """num_nodes: N"""
        assert partition.links is not None
        node, neighbour, weight = partition.links["neighbours"].numpy().T
        shape = (partition.num_inner, num_nodes)
        return cls(sp.csr_array((weight, (node - partition.first_id, neighbour)), shape=shape))

    def fetch(
        self, comm: Communicator, asked: Sequence[Tensor], counts: Sequence[int], tag: MessageTag
    ) -> sp.csr_array:
        """Ones, int64 [q, N], between others and their neighbours, one owner's after the other; all workers call it.

        asked: by worker the places, int [n_w], of the own nodes that it wants. counts: how many this one wants of each.
        Raises ValueError for what cannot be neighbours.
        """
        chosen = [self.weights[each.numpy()] for each in asked]
        dtype = torch.int32 if self.weights.shape[1] < 1 << 31 else torch.int64
        sizes = [torch.from_numpy(np.diff(each.indptr)).to(torch.int32) for each in chosen]
        lengths = comm.all_to_all(sizes, counts, tag)
        columns = [torch.from_numpy(each.indices).to(dtype) for each in chosen]
        received = torch.cat(comm.all_to_all(columns, [int(each.sum()) for each in lengths], tag))
        ends = torch.cat((torch.zeros(1, dtype=torch.int64), torch.cat(lengths).cumsum(0)))
        shape = (sum(counts), self.weights.shape[1])
        found = sp.csr_array(
            (np.ones(len(received), np.int64), received.numpy(), ends.numpy()), shape=shape
        )
        found.check_format()  # SciPy's products would read past the end by an index that is none
        return found

    def pairs(self, own: Tensor, neighbours: sp.csr_array) -> Tensor:
        """[q] scores of own nodes, by their places, each with the other node of those neighbours, [q, N]."""
        return torch.from_numpy(self.weights[own.numpy()].multiply(neighbours).sum(axis=1)) / ONE

    def against(self, by_neighbour: sp.csr_array, own: slice) -> tuple[Tensor, Tensor, Tensor]:
        """Of other nodes, [N, q], and own ones those that have paths: places of both, and the scores, [p] each."""
        found = (self.weights[own] @ by_neighbour).tocoo()
        other, place, score = (
            torch.from_numpy(each) for each in (found.col, found.row, found.data)
        )
        return other.long(), place.long(), score / ONE
