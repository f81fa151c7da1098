"""Nodes as ends of links: what they are scored by, and how it is fetched from their owners.

I inner nodes, N nodes, q pairs, D width of a node's embeddings side by side, A candidates for the
output heads, P embeddings (of stages and the spectral one).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn

from retexo.comm.received import check_node_numbers
from retexo.comm.traffic_meter import PREDICTIONS
from retexo.exchange.coding.rows import RowFormat, decode, encode
from retexo.exchange.coding.values import value_bytes
from retexo.models.scorer import Scorer
from retexo.models.stage import OutputHeads, Stage
from retexo.tasks.adamic_adar import WeightedNeighbours
from retexo.tasks.link_prediction import MAX_SCORES
from retexo.tasks.task_context import TaskContext

MAX_PAIRS = 1 << 12
"""Pairs of a worker that are ranked at a time."""
MIN_SOURCES = 64
"""Fewest sources that are scored at a time, where there are so many: fewer take longer."""


@dataclass(frozen=True, eq=False)
class FetchedNodes:
    """What q nodes of any workers are scored by."""

    rows: Tensor
    """[q, D]"""
    neighbours: sp.csr_array | None
    """int64 [q, N], see WeightedNeighbours.fetch; None without Adamic and Adar's score."""

    def take(self, nodes: slice) -> "FetchedNodes":
        """Return some of the nodes."""
        return FetchedNodes(
            self.rows[nodes], None if self.neighbours is None else self.neighbours[nodes]
        )


@dataclass(frozen=True, eq=False)
class EmbeddedNodes:
    """What this worker's nodes are scored by."""

    context: TaskContext
    scorers: Sequence[Scorer]
    """[P]"""
    widths: Sequence[int]
    """[P] of the embeddings: D together, each a multiple of the first."""
    rows: Tensor
    """[I, D] the stages' embeddings side by side, then the spectral one."""
    weights: Sequence[tuple[float, ...]]
    """[A][P] the weight of each embedding's score."""
    neighbours: WeightedNeighbours | None
    """None where no candidate uses Adamic and Adar's score."""
    neighbour_shares: Tensor
    """[A] the weight of that score."""

    @classmethod
    def of(
        cls,
        context: TaskContext,
        stages: Sequence[Stage],
        logits: Sequence[Tensor],
        candidates: Sequence[OutputHeads],
        spectral_name: str = "spectral",
    ) -> "EmbeddedNodes":
        """Collect stage and spectral embeddings of own nodes, and each candidate's weights.

        Validation pairs need those called spectral_val, which do not know these pairs.

        A candidate's score adds the embeddings' products up by these weights. Nothing is sent; the
        stages move to the CPU.

        Where exchanged rows are rounded these are, too, to eight bits with a scale for each piece
        as wide as a stage's embedding.
        """
        numbers = range(len(stages) - len(logits), len(stages))
        embeddings = [stage_logits.cpu() for stage_logits in logits]
        scorers = [stages[number].cpu().scorer for number in numbers]
        if any(candidate.spectral for candidate in candidates):
            spectral = context.links[spectral_name].to(embeddings[0])
            missing = -spectral.shape[1] % embeddings[0].shape[1]
            embeddings.append(nn.functional.pad(spectral, (0, missing)))
            scorers.append(Scorer("dot", spectral.shape[1]))
        rows = torch.cat(embeddings, dim=1)
        num_spectral = len(scorers) - len(numbers)
        weights = []
        for candidate in candidates:
            network = (1 - candidate.paths) * (1 - candidate.spectral)
            spectral_weight = (1 - candidate.paths) * candidate.spectral
            by_stage = [
                network * (stage in candidate.stages) / len(candidate.stages) for stage in numbers
            ]
            weights.append((*by_stage, *[spectral_weight] * num_spectral))
        shares = rows.new_tensor([candidate.paths for candidate in candidates])
        neighbours = None
        if shares.any():
            neighbours = WeightedNeighbours.of(context)
        widths = [embedding.shape[1] for embedding in embeddings]
        nodes = cls(context, scorers, widths, rows, weights, neighbours, shares)
        return replace(nodes, rows=nodes._decode(nodes._encode(rows), len(rows)))

    @torch.no_grad()
    def _score_embeddings(
        self, score: Callable[[Scorer, Tensor, Tensor], Tensor], src: Tensor, dst: Tensor
    ) -> Tensor:
        """Return the scores by the embeddings, [A, q] or [A, q, n].

        Args:
            score: Scorer.pairs or Scorer.against.
            src: [q, D], embeddings of the sources.
            dst: [q, D] or [n, D], embeddings of the destinations.
        """
        split = (torch.split(rows, list(self.widths), dim=1) for rows in (src, dst))
        products = torch.stack(
            [score(*arguments) for arguments in zip(self.scorers, *split, strict=True)]
        )
        return torch.einsum("ap,p...->a...", products.new_tensor(self.weights), products)

    def score_pairs(self, own: Tensor, destinations: FetchedNodes) -> Tensor:
        """Score each source with its destination, [A, q].

        own: int64 [q], the sources' rows among this worker's nodes.
        """
        scores = self._score_embeddings(Scorer.pairs, self.rows[own], destinations.rows)
        if self.neighbours is not None and destinations.neighbours is not None:
            common = self.neighbours.score_pairs(own, destinations.neighbours)
            scores += torch.outer(self.neighbour_shares, common.to(scores))
        return scores

    def score_all(self, sources: FetchedNodes) -> Tensor:
        """Score each source with each node of this worker, [A, q, I]."""
        scores = self._score_embeddings(Scorer.against, sources.rows, self.rows)
        if self.neighbours is not None and sources.neighbours is not None:
            source, node, common = self.neighbours.score_all(sources.neighbours)
            scores[:, source, node] += torch.outer(self.neighbour_shares, common.to(scores))
        return scores

    @property
    def max_sources(self) -> int:
        """How many sources are scored with all of these nodes at a time."""
        return MAX_SCORES // max(1, len(self.weights) * len(self.rows))

    def take(self, nodes: Tensor) -> list["EmbeddedNodes"]:
        """Return some of this worker's nodes, int64 [n] ascending, which cannot be fetched.

        In pieces of as many as MIN_SOURCES are scored with at a time, or one empty piece.
        """
        rows = self.rows if len(nodes) == len(self.rows) else self.rows[nodes]
        size = MAX_SCORES // (MIN_SOURCES * len(self.weights))
        pieces = []
        for some, part in zip(torch.split(nodes, size), torch.split(rows, size), strict=True):
            neighbours = None if self.neighbours is None else self.neighbours.take(some)
            pieces.append(replace(self, rows=part, neighbours=neighbours))
        return pieces

    def fetch(self, ids: Tensor) -> FetchedNodes:
        """Get nodes from their owners, by their ids in the partitioned graph, int64 [n].

        They come in the order of `ids`. All workers call it. TrainingError for an invalid message.
        """
        comm, bounds = self.context.comm, self.context.graph_info.id_bounds
        distinct, inverse = np.unique(ids.numpy(), return_inverse=True)
        owner = torch.searchsorted(bounds, torch.from_numpy(distinct), right=True) - 1
        counts = torch.bincount(owner, minlength=comm.world_size)
        lists = list(torch.split(torch.from_numpy(distinct) - bounds[owner], counts.tolist()))
        ones = [1] * comm.world_size
        announced = comm.all_to_all(list(torch.split(counts, 1)), ones, PREDICTIONS)
        sizes = [int(size) for size in announced]
        requested = comm.all_to_all([part.to(torch.int32) for part in lists], sizes, PREDICTIONS)
        for peer, ids_of_peer in enumerate(requested):
            check_node_numbers(peer, ids_of_peer, len(self.rows))
        replies = [self._encode(self.rows[ids_of_peer.long()]) for ids_of_peer in requested]
        sizes = [count * self._bytes_per_row for count in counts.tolist()]
        received = comm.all_to_all(replies, sizes, PREDICTIONS, consume=True)
        decoded = [*map(self._decode, received, counts.tolist())]
        rows = torch.cat(decoded)[torch.from_numpy(inverse)]
        if self.neighbours is None:
            return FetchedNodes(rows, None)
        neighbours = self.neighbours.fetch(comm, requested, counts.tolist())
        return FetchedNodes(rows, neighbours[inverse])

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensors of all workers, [n_w, ...], by rank; all workers call it."""
        comm = self.context.comm
        sizes = comm.all_gather(torch.tensor([tensor.numel()]), PREDICTIONS)[:, 0].tolist()
        received = comm.all_to_all([tensor.flatten()] * comm.world_size, sizes, PREDICTIONS)
        return [flat.view(-1, *tensor.shape[1:]) for flat in received]

    def score_in_pieces(self, pairs: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield up to `size` pairs at a time, int64 [n, 2], and their scores [A, n].

        Their sources are this worker's. All workers call it, and get as many pieces as the one with
        the most pairs.
        """
        most = int(self.context.comm.all_gather(torch.tensor([len(pairs)]), PREDICTIONS).max())
        for first in range(0, most, size):
            some = pairs[first : first + size]
            sources = some[:, 0] - self.context.partition.first_id
            yield some, self.score_pairs(sources, self.fetch(some[:, 1]))

    def score_by_source(self, pairs: Tensor) -> Tensor:
        """Score pairs, int64 [n, 2], whose sources are this worker's; return [A, n].

        All workers call it.
        """
        scores = [own for _, own in self.score_in_pieces(pairs, 32 * MAX_PAIRS)]
        return torch.cat([self.rows.new_zeros(len(self.weights), 0), *scores], dim=1)

    @property
    def _row_format(self) -> RowFormat:
        """Format of a piece of a row: eight bits and a scale where rows are rounded."""
        return RowFormat("dense", "int8" if self.context.settings.exchange.rounded else "full")

    @property
    def _bytes_per_row(self) -> int:
        """Bytes of a node's embeddings in a message."""
        width = self.widths[0]
        of_piece = value_bytes(width, self.rows.dtype, self._row_format.precision)
        return sum(self.widths) // width * of_piece

    def _encode(self, rows: Tensor) -> Tensor:
        """Encode rows [n, D] for a message, piece by piece."""
        return encode(rows.reshape(-1, self.widths[0]), self._row_format)

    def _decode(self, data: Tensor, count: int) -> Tensor:
        """Decode `count` rows."""
        width, total = self.widths[0], sum(self.widths)
        shape = count * (total // width), width
        return decode(data, shape, self.rows.dtype, self._row_format).view(count, total)
