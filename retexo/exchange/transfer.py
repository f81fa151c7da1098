"""Sending boundary rows."""

import torch
from torch import Tensor

from retexo.comm.collectives import Communicator
from retexo.comm.traffic import Purpose
from retexo.exchange.plan import BoundaryPlan


def exchange_rows(rows: Tensor, plan: BoundaryPlan, comm: Communicator, purpose: Purpose) -> Tensor:
    """Send each peer the rows it needs, dense, and receive those of the halo nodes.

    Args:
        rows: [I, F] of the inner nodes.
    Returns: [H, F] in the order of the halo nodes.
    """
    width = rows.shape[1]
    outgoing = [rows[needed].flatten() for needed in plan.send_rows]
    incoming = comm.all_to_all(outgoing, [count * width for count in plan.recv_counts], purpose)
    return torch.cat(incoming).view(plan.num_halo, width)
