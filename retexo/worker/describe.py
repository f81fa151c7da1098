"""Worker of app=describe at several sites: adds up statistics of their tables.

The sums are secure with gradient.secure. Rows stay at their site.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from partitioning.sites.describe_tables import SharedTables
from retexo.arrays import IntArray
from retexo.comm.collectives import ReduceInput
from retexo.comm.socket_transport import Streams
from retexo.comm.traffic_meter import SETUP
from retexo.launch.heartbeat import Progress
from retexo.sites.secure_sums import hide_shares
from retexo.worker.process import Job, configure, serve


@dataclass(frozen=True)
class DescribeJob(Job):
    """A worker's part of app=describe."""

    tables: SharedTables


def run(rank: int, job: DescribeJob, streams: Streams | None, progress: Progress) -> dict[str, Any]:
    """Join the group, add up, and return `state`, the pipeline, the same on all ranks.

    `bytes`: those that this worker sent.
    """
    configure(rank, job.settings)
    progress.enter("rendezvous")
    with job.connected(rank, streams) as disclosure:
        progress.enter("sums")
        comm = disclosure.comm
        if job.settings.gradient.secure:
            has_rows = comm.all_gather(torch.tensor([job.tables.has_rows(rank)]).long(), SETUP)
            hide_shares(comm, (int(has_rows.sum()), 0, 0), job.rendezvous.identity)
        disclosure.summed_columns = list(job.tables.compared)

        def add_up(words: IntArray) -> IntArray:
            total = torch.from_numpy(words.copy())
            comm.all_reduce([ReduceInput(total)], SETUP)
            sums: IntArray = total.numpy()
            return sums

        state = job.tables.fit(rank, add_up)
        return {"state": state, "bytes": comm.meter.total}


main = partial(serve, run)
"""Entry of a worker process."""
