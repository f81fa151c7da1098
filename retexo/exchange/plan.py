"""Who needs which rows: made once, before the first layer.

W workers, H halo nodes of a worker.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from partitioning.storage import Partition
from retexo.comm.collectives import Communicator
from retexo.comm.traffic import Purpose

SETUP = Purpose("setup")


@dataclass(frozen=True, eq=False)
class BoundaryPlan:
    """What this worker sends to each peer, and how much comes back."""

    send_rows: tuple[Tensor, ...]
    """int64, one a peer: the inner nodes whose rows it needs, ascending."""
    recv_counts: tuple[int, ...]
    """Halo rows from each peer; joined in the order of ranks they are the halo nodes in their order."""

    @property
    def num_halo(self) -> int:
        return sum(self.recv_counts)


def make_plan(partition: Partition, comm: Communicator) -> BoundaryPlan:
    """Every worker tells each owner which of its rows it needs, as int32; only the receiver knows its in-edges."""
    wanted = torch.bincount(partition.halo_owner, minlength=comm.world_size)
    counts = comm.all_to_all(list(torch.split(wanted, 1)), [1] * comm.world_size, SETUP)
    indices = list(torch.split(partition.halo_index.to(torch.int32), wanted.tolist()))
    asked = comm.all_to_all(indices, [int(count) for count in counts], SETUP)
    return BoundaryPlan(tuple(rows.long() for rows in asked), tuple(wanted.tolist()))


def whole_out_degree(partition: Partition, plan: BoundaryPlan, comm: Communicator) -> Tensor:
    """Out-degrees in the whole graph, int64 [I + H], for a directory that does not store them.

    An edge is held by the part of its destination. So each part counts the edges that leave its halo nodes, the owner
    adds up the counts and sends the sums back.
    """
    counted = torch.bincount(partition.src, minlength=partition.num_inner + partition.num_halo)
    inner, halo = counted[: partition.num_inner], counted[partition.num_inner :]
    sizes = [len(rows) for rows in plan.send_rows]
    reports = comm.all_to_all(list(torch.split(halo.to(torch.int32), list(plan.recv_counts))), sizes, SETUP)
    for rows, report in zip(plan.send_rows, reports, strict=True):
        inner[rows] += report
    answers = comm.all_to_all([inner[rows].to(torch.int32) for rows in plan.send_rows], plan.recv_counts, SETUP)
    return torch.cat((inner, *answers))
