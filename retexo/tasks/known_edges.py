"""Which pairs of nodes have an edge or are held out, by what each worker knows of its partition.

I inner nodes; q sources.
"""

import torch
from torch import Tensor

from retexo.arrays import repeat_interleave
from retexo.tasks.task_context import TaskContext


def get_links(context: TaskContext) -> dict[str, Tensor]:
    """Return the pairs of this worker's partition, int64 [n, 2], by set (splits and negatives)."""
    assert context.partition.links is not None
    return dict(context.partition.links)


class KnownEdges:
    """Which nodes have an edge, in this partition's edges and in its held-out pairs.

    held_out=False: of the graph's edges alone, so of training pairs.
    """

    def __init__(self, context: TaskContext, *, held_out: bool = True) -> None:
        part, links, info = context.partition, get_links(context), context.graph_info
        edges = part.edges
        halo = info.id_bounds[edges.halo_owner] + edges.halo_index
        ids = torch.cat((part.first_id + torch.arange(part.num_inner), halo))
        self.first = part.first_id
        self.destinations = torch.arange(part.num_inner)
        """int64 [C] the inner nodes that can be a destination, ascending."""
        if info.num_candidates:
            self.destinations = torch.unique(links["candidates"][:, 0]) - self.first
        pairs = torch.cat((links["val"], links["test"]))[: None if held_out else 0]
        self._held_out = pairs[pairs[:, 0].argsort(stable=True)]
        order = ids[edges.src.long()].argsort(stable=True)
        self._source, self._node = ids[edges.src.long()][order], edges.dst.long()[order]

    def find_held_out(self, sources: Tensor) -> Tensor:
        """Return the held-out pairs of sources [q], int64 [p, 2]: source's position, destination.

        Only the source's owner knows these.
        """
        place, match = _find_matches(self._held_out[:, 0].contiguous(), sources)
        return torch.stack((place, self._held_out[match, 1]), dim=1)

    def find_excluded(self, ids: Tensor, held_out: Tensor) -> tuple[Tensor, Tensor]:
        """Return positions of sources, [e], and of `destinations` they are not ranked among, [e].

        These are the source itself, and nodes that it has an edge or a held-out pair to.

        Args:
            ids: int64 [q] sources, of any worker.
            held_out: int64 [p, 2] of find_held_out, from the owners of the sources.
        """
        place, match = _find_matches(self._source, ids)
        places = torch.cat((place, held_out[:, 0], torch.arange(len(ids))))
        nodes = torch.cat((self._node[match], held_out[:, 1] - self.first, ids - self.first))
        columns = torch.searchsorted(self.destinations, nodes)
        found = torch.isin(nodes, self.destinations)
        return places[found], columns[found]


def _find_matches(ascending: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the positions in `values` and in `ascending` of all equal numbers."""
    begin, end = (
        torch.searchsorted(ascending, values.contiguous(), right=right) for right in (False, True)
    )
    counts = end - begin
    place = repeat_interleave(torch.arange(len(values)), counts)
    shift = repeat_interleave(counts.cumsum(0) - counts - begin, counts)
    return place, torch.arange(len(place)) - shift
