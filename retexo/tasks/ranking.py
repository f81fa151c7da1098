"""How well pairs are ranked: MRR, Hits@K, AUC and the scores of sources' lists, from counts.

A pair (u, v) is ranked among all nodes that u has no edge to in any split. The embedding of u goes
to every worker, which counts those of its own nodes that score above v; so no list of all nodes is
ever held, and the replies are counts. A rank is the mean of best and worst rank under ties, as in
OGB's evaluator. In the list of u, from which recall and NDCG are computed, the other pairs of u in
the same split have places, too (partitioning.links.score_ranks). AUC and OGB's metrics compare with
the fixed negative pairs of the partition directory.

I inner nodes, N nodes, q pairs of one worker that are ranked at a time, s their sources, D width of
a node's embeddings side by side, A candidates for the output heads, P embeddings (of stages and the
spectral one).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn

from partitioning.links.score_names import CUTOFFS, OF_LISTS
from partitioning.links.score_ranks import count_above_in_list, score_lists
from retexo.comm.collectives import ReduceInput
from retexo.comm.received import check_node_numbers, check_places
from retexo.comm.traffic_meter import METRICS, MessageTag
from retexo.exchange.coding.rows import RowFormat, decode, encode
from retexo.exchange.coding.values import value_bytes
from retexo.models.scorer import Scorer
from retexo.models.stage import OutputHeads, Stage
from retexo.tasks.adamic_adar import WeightedNeighbours
from retexo.tasks.known_edges import KnownEdges, get_links
from retexo.tasks.link_prediction import sample_share
from retexo.tasks.metrics import bounds_of_ties, rank_among
from retexo.tasks.task_context import TaskContext

MAX_PAIRS = 1 << 12
"""Pairs of a worker that are ranked at a time."""
MAX_SCORES = 1 << 22
"""Scores that are held at a time."""
MIN_SOURCES = 64
"""Of how many sources these are at least, if there are so many: of fewer, products take longer."""
ONE = 1 << 32
"""Reciprocal ranks, hits and scores of lists are summed as integers, in units of 1 / ONE."""
SHARES = (0.0, 0.5, 0.8, 0.94, 0.985, 1.0)
"""Candidates for the shares of the spectral score and of Adamic and Adar's. Both scale a training
pair's mean score to 1; the scores of a network are a few units."""
TAG = MessageTag("predictions")


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

        A candidate's score adds the embeddings' products up by these weights.

        Where exchanged rows are rounded these are, too, to eight bits with a scale for each piece
        as wide as a stage's embedding.
        """
        numbers = range(len(stages) - len(logits), len(stages))
        embeddings = [stage_logits.cpu() for stage_logits in logits]
        scorers = [stages[number].cpu().scorer for number in numbers]
        if any(candidate.spectral for candidate in candidates):
            spectral = get_links(context)[spectral_name].to(embeddings[0])
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
            num_nodes = int(context.graph_info.id_bounds[-1])
            neighbours = WeightedNeighbours.of(context.partition, num_nodes)
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
        products = torch.stack([score(*each) for each in zip(self.scorers, *split, strict=True)])
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

        All workers call it.
        """
        comm, bounds = self.context.comm, self.context.graph_info.id_bounds
        distinct, inverse = np.unique(ids.numpy(), return_inverse=True)
        owner = torch.searchsorted(bounds, torch.from_numpy(distinct), right=True) - 1
        counts = torch.bincount(owner, minlength=comm.world_size)
        lists = list(torch.split(torch.from_numpy(distinct) - bounds[owner], counts.tolist()))
        announced = comm.all_to_all(list(torch.split(counts, 1)), [1] * comm.world_size, TAG)
        sizes = [int(size) for size in announced]
        requested = comm.all_to_all([part.to(torch.int32) for part in lists], sizes, TAG)
        for peer, ids_of_peer in enumerate(requested):
            check_node_numbers(peer, ids_of_peer, len(self.rows))
        size = self._bytes_per_row
        replies = [self._encode(self.rows[ids_of_peer.long()]) for ids_of_peer in requested]
        received = comm.all_to_all(
            replies, [count * size for count in counts.tolist()], TAG, consume=True
        )
        decoded = map(self._decode, received, counts.tolist())
        rows = torch.cat([*decoded])[torch.from_numpy(inverse)]
        if self.neighbours is None:
            return FetchedNodes(rows, None)
        neighbours = self.neighbours.fetch(comm, requested, counts.tolist(), TAG)
        return FetchedNodes(rows, neighbours[inverse])

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensor of every worker, [n_w, ...], at every worker."""
        comm = self.context.comm
        sizes = comm.all_gather(torch.tensor([tensor.numel()]), TAG)[:, 0].tolist()
        received = comm.all_to_all([tensor.flatten()] * comm.world_size, sizes, TAG)
        return [flat.view(-1, *tensor.shape[1:]) for flat in received]

    def score_by_source(self, pairs: Tensor) -> Tensor:
        """Score pairs, int64 [n, 2], whose sources are this worker's; return [A, n].

        All workers call it.
        """
        most = int(self.context.comm.all_gather(torch.tensor([len(pairs)]), TAG).max())
        scores, step = [self.rows.new_zeros(len(self.weights), 0)], 32 * MAX_PAIRS
        for first in range(0, most, step):
            some = pairs[first : first + step]
            sources = some[:, 0] - self.context.partition.first_id
            scores.append(self.score_pairs(sources, self.fetch(some[:, 1])))
        return torch.cat(scores, dim=1)

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


# --- output heads and scores ----------


def choose_link_heads(
    context: TaskContext, stages: Sequence[Stage], logits: Sequence[Tensor]
) -> tuple[OutputHeads, dict[str, float]]:
    """Choose the output heads by the metric of validation pairs; all workers call it.

    Also returns the scores of validation pairs that are known from it, for score_links.

    The last stage, unless classifiers=validation and there are such pairs.

    First the stage, or the mean of the last ones; then the share of the spectral score; then that
    of Adamic and Adar's score.
    """
    num_layers = len(stages)
    heads, scores = OutputHeads((num_layers - 1,)), dict[str, float]()
    if context.settings.classifiers != "validation" or not context.graph_info.num_val:
        return heads, scores

    def best(candidates: list[OutputHeads]) -> tuple[OutputHeads, dict[str, float]]:
        embedded = EmbeddedNodes.of(context, stages, logits, candidates, "spectral_val")
        name = context.task.metric_name
        measure = compare_with_negatives if name == "auc" else rank_pairs
        measured = measure(embedded, "val")
        place = int(torch.tensor([scored[name] for scored in measured]).argmax())
        return candidates[place], measured[place]

    if len(logits) > 1:
        numbers = range(num_layers)
        means = [OutputHeads(tuple(range(first, num_layers))) for first in numbers[:-1]]
        heads, scores = best([*(OutputHeads((stage,)) for stage in numbers), *means])
    if get_links(context)["spectral"].shape[1]:
        heads, scores = best([replace(heads, spectral=share) for share in SHARES])
    num_neighbours = torch.tensor([len(get_links(context)["neighbours"])])
    if context.comm.all_gather(num_neighbours, TAG).any():
        heads, scores = best([replace(heads, paths=share) for share in SHARES])
    return heads, scores


def score_links(
    context: TaskContext,
    stages: Sequence[Stage],
    logits: Sequence[Tensor],
    heads: OutputHeads,
    known: Mapping[str, float],
) -> dict[str, dict[str, float]]:
    """Return the scores of validation and test pairs that a run reports; all workers call it.

    known: scores of validation pairs that need not be computed again.
    """
    sizes = {"val": context.graph_info.num_val, "test": context.graph_info.num_test}
    scores = {}
    for split, name in (("val", "spectral_val"), ("test", "spectral")):
        if sizes[split]:
            embedded = EmbeddedNodes.of(context, stages, logits, [heads], name)
            scores[split] = dict(known) if split == "val" else {}
            for metric, measure in (("mrr", rank_pairs), ("auc", compare_with_negatives)):
                if metric not in scores[split]:
                    scores[split] |= measure(embedded, split)[0]
    return scores


def rank_pairs(embedded: EmbeddedNodes, split: str) -> list[dict[str, float]]:
    """Return MRR, Hits@K and the scores of lists of a split's pairs, for each candidate's weights.

    `ranked` and `sources` count the pairs and sources of all workers that were ranked: of more than
    task.ranked sources a random sample, by the seed. All workers call it.
    """
    context, comm = embedded.context, embedded.context.comm
    pairs = _sample_sources(context, get_links(context)[split])
    known, pieces = KnownEdges(context), []
    destinations = embedded.take(known.destinations)
    most = int(comm.all_gather(torch.tensor([len(pairs)]), TAG).max())
    for first in range(0, most, MAX_PAIRS):
        some = pairs[first : first + MAX_PAIRS]
        sources = some[:, 0] - context.partition.first_id
        own = embedded.score_pairs(sources, embedded.fetch(some[:, 1]))
        above = _count_above_everywhere(embedded, destinations, known, some, own)
        pieces.append((own, 1 + above.double() / 2))
    totals = torch.zeros(len(embedded.weights), 1 + len(CUTOFFS) + len(OF_LISTS), dtype=torch.int64)
    source = pairs[:, 0].numpy()
    for place in range(len(totals) if pieces else 0):
        own, rank = (
            torch.cat([each[place] for each in part]) for part in zip(*pieces, strict=True)
        )
        places = rank.numpy() + count_above_in_list(source, own.numpy())
        of_lists = torch.from_numpy(score_lists(source, places))
        of_pairs = torch.stack([1 / rank, *[(rank <= k).double() for k in CUTOFFS]], dim=1)
        sums = [(values * ONE).round().long().sum(dim=0) for values in (of_pairs, of_lists)]
        totals[place] = torch.cat(sums)
    counts = torch.tensor([len(pairs), len(np.unique(source))])
    comm.all_reduce([ReduceInput(totals.view(-1)), ReduceInput(counts)], METRICS)
    num_ranked, num_sources = counts.tolist()
    means = totals.double() / ONE
    means[:, : 1 + len(CUTOFFS)] /= max(1, num_ranked)
    means[:, 1 + len(CUTOFFS) :] /= max(1, num_sources)
    names = ["mrr", *(f"hits@{k}" for k in CUTOFFS), *OF_LISTS]
    return [
        {**dict(zip(names, values, strict=True)), "ranked": num_ranked, "sources": num_sources}
        for values in means.tolist()
    ]


def _sample_sources(context: TaskContext, pairs: Tensor) -> Tensor:
    """Return the pairs of up to task.ranked random sources of all workers, by source."""
    settings, sources = context.settings, torch.unique(pairs[:, 0])
    total = int(context.comm.all_gather(torch.tensor([len(sources)]), TAG).sum())
    chosen = sample_share(sources, settings.task.ranked, total, settings.seed)
    pairs = pairs[torch.isin(pairs[:, 0], chosen)]
    return pairs[pairs[:, 0].argsort(stable=True)]


def _count_above_everywhere(
    embedded: EmbeddedNodes,
    destinations: Sequence[EmbeddedNodes],
    known: KnownEdges,
    pairs: Tensor,
    own: Tensor,
) -> Tensor:
    """Add up how many nodes of all workers score above each pair, and how many at least as much.

    All workers call it, those without pairs, too.

    Args:
        embedded: this worker's nodes.
        destinations: those of them that can be destinations, in pieces.
        known: the pairs that are not ranked.
        pairs: int64 [q, 2] by source, whose sources are this worker's.
        own: [A, q], their scores.

    Returns:
        int64 [A, q].
    """
    comm = embedded.context.comm
    dtype = torch.int32 if embedded.context.graph_info.id_bounds[-1] < 2**31 else torch.int64
    sources, places = torch.unique(pairs[:, 0], return_inverse=True)
    scores = embedded.all_gather(own.T.contiguous())
    parts = [sources, places, known.find_held_out(sources)]
    gathered = zip(*(embedded.all_gather(each.to(dtype)) for each in parts), strict=True)
    counts = []
    for peer, (score, (ids, place, excluded)) in enumerate(zip(scores, gathered, strict=True)):
        check_places(peer, place, len(score), len(ids))
        check_node_numbers(peer, excluded[:, 0], len(ids))
        not_ranked = known.find_excluded(ids.long(), excluded.long())
        fetched = embedded.fetch(ids.long())
        counts.append(_count_above_here(destinations, fetched, place, score.T, not_ranked))
    num_candidates = len(embedded.weights)
    sizes = [len(pairs) * num_candidates] * comm.world_size
    received = comm.all_to_all([count.flatten() for count in counts], sizes, TAG)
    return torch.stack(received).long().sum(dim=0).view(num_candidates, len(pairs))


def _count_above_here(
    destinations: Sequence[EmbeddedNodes],
    sources: FetchedNodes,
    places: Tensor,
    own: Tensor,
    excluded: tuple[Tensor, Tensor],
) -> Tensor:
    """Add up for each pair how many destinations score above it, and at least as much.

    int32 [A, q], without nodes that a source has an edge to.

    Args:
        destinations: of this worker, in pieces.
        sources: of one worker's pairs.
        places: int [q] the place of each pair's source among them, ascending.
        own: [A, q], the scores of the pairs.
        excluded: of KnownEdges.find_excluded.
    """
    lowest, highest = (bound.numpy() for bound in bounds_of_ties(own))
    place_of_pair, counts = places.numpy(), np.zeros(own.shape, np.int32)
    for first, _, scores in _score_destinations(destinations, sources, excluded):
        begin, end = np.searchsorted(place_of_pair, (first, first + scores.shape[1]))
        # A row at a time, which stays in the cache; numpy counts bools faster than torch.
        for candidate, by_source in enumerate(scores.numpy()):
            for pair in range(begin, end):
                others = by_source[place_of_pair[pair] - first]
                counts[candidate, pair] += np.count_nonzero(others > highest[candidate, pair])
                counts[candidate, pair] += np.count_nonzero(others >= lowest[candidate, pair])
    return torch.from_numpy(counts)


def _score_destinations(
    destinations: Sequence[EmbeddedNodes], sources: FetchedNodes, excluded: tuple[Tensor, Tensor]
) -> Iterator[tuple[int, int, Tensor]]:
    """Yield scores [A, n, m] of some sources with a piece of the destinations.

    Before them the places of the first source and destination. Destinations that a source is not
    ranked among (KnownEdges.find_excluded) have -inf. Without sources it yields each piece once.
    """
    place, column = excluded
    step = MAX_SCORES // max(1, len(destinations[0].weights) * len(destinations[0].rows))
    for first in range(0, max(1, len(sources.rows)), step):
        some, begin = sources.take(slice(first, first + step)), 0
        for piece in destinations:
            end = begin + len(piece.rows)
            scores = piece.score_all(some)
            inside = (place >= first) & (place < first + step) & (column >= begin) & (column < end)
            scores[:, place[inside] - first, column[inside] - begin] = -torch.inf
            yield first, begin, scores
            begin = end


def compare_with_negatives(embedded: EmbeddedNodes, split: str) -> list[dict[str, float]]:
    """Return the AUC against the fixed negative pairs, for each candidate; NaN without pairs.

    For OGB's graphs also the metric of OGB's evaluator. All workers call it.
    """
    links = get_links(embedded.context)
    scores = [embedded.score_by_source(links[name]) for name in (split, f"{split}_neg")]
    return [_compare(embedded, *by_candidate) for by_candidate in zip(*scores, strict=True)]


def _compare(embedded: EmbeddedNodes, positive: Tensor, negative: Tensor) -> dict[str, float]:
    """Return the AUC of own pairs, [n], against own negative ones, [m]; NaN without pairs.

    For OGB's graphs also "ogb mrr" or "ogb hits@K". All workers call it.
    """
    comm = embedded.context.comm
    all_positive = torch.cat(embedded.all_gather(positive))
    ordered = negative.sort().values
    wins = sum(
        torch.searchsorted(ordered, all_positive, right=right).sum() for right in (False, True)
    )
    counts = torch.tensor([int(wins), len(negative)])
    comm.all_reduce([ReduceInput(counts)], METRICS)
    comparisons = len(all_positive) * int(counts[1])
    scores = {"auc": int(counts[0]) / 2 / comparisons if comparisons else float("nan")}
    name, num_positive = embedded.context.graph_info.evaluator, max(1, len(all_positive))
    if name == "mrr":
        by_pair = negative.view(len(positive), len(negative) // max(1, len(positive)))
        rank = rank_among(positive, by_pair).double()
        total = torch.tensor([int((ONE / rank).round().sum())])
        comm.all_reduce([ReduceInput(total)], METRICS)
        scores["ogb mrr"] = int(total) / ONE / num_positive
    elif name:
        k = int(name.split("@")[1])
        highest = torch.cat(embedded.all_gather(ordered.flip(0)[:k])).sort(descending=True).values
        is_hit = positive > highest[k - 1] if len(highest) >= k else torch.ones_like(positive)
        hits = torch.tensor([int(is_hit.sum())])
        comm.all_reduce([ReduceInput(hits)], METRICS)
        scores[f"ogb {name}"] = int(hits) / num_positive
    return scores


def find_top_destinations(
    embedded: EmbeddedNodes,
    destinations: Sequence[EmbeddedNodes],
    known: KnownEdges,
    ids: Tensor,
    top: int,
) -> tuple[Tensor, Tensor]:
    """Return the most likely new ones of this worker's destinations for any sources, int64 [q].

    All workers call it with the same `ids`; the callers join their answers.

    Returns:
        Scores [q, K] and inner nodes int64 [q, K]; -inf for nodes with an edge.
    """
    sources = embedded.fetch(ids)
    held_out = torch.cat(embedded.all_gather(known.find_held_out(ids)))
    excluded = known.find_excluded(ids, held_out)
    # There may be fewer destinations than `top`.
    best = sources.rows.new_full((len(ids), top), -torch.inf)
    nodes = torch.zeros(len(ids), top, dtype=torch.int64)
    for first, begin, scores in _score_destinations(destinations, sources, excluded):
        some, end = slice(first, first + scores.shape[1]), begin + scores.shape[2]
        nodes_of_piece = known.destinations[begin:end].expand(scores.shape[1], -1)
        best[some], chosen = torch.cat((best[some], scores[0]), dim=1).topk(top, dim=1)
        nodes[some] = torch.cat((nodes[some], nodes_of_piece), dim=1).gather(1, chosen)
    return best, nodes
