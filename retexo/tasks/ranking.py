"""How well pairs are ranked, and the choice of output heads by it.

A pair (u, v) is ranked among all nodes that u has no edge to in any split, which gives MRR and
Hits@K. The embedding of u goes to every worker, which counts those of its own nodes that score
above v; so no list of all nodes is ever held, and the replies are counts. A rank is the mean of
best and worst rank under ties, as in OGB's evaluator. In the list of u, from which recall and NDCG
are computed, the other pairs of u in the same split have places, too
(partitioning.links.score_ranks). AUC and OGB's metrics compare with the fixed negative pairs of the
partition directory.

I inner nodes, q pairs of one worker that are ranked at a time, A candidates for the output heads.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from partitioning.links.score_names import CUTOFFS, OF_LISTS
from partitioning.links.score_ranks import count_above_in_list, score_lists
from retexo.arrays import repeat_interleave
from retexo.comm.collectives import ReduceInput
from retexo.comm.received import check_node_numbers, check_places
from retexo.comm.traffic_meter import METRICS, PREDICTIONS
from retexo.models.stage import OutputHeads, Stage
from retexo.tasks.embedded_nodes import MAX_PAIRS, EmbeddedNodes
from retexo.tasks.link_prediction import sample_share
from retexo.tasks.metrics import bounds_of_ties, rank_among
from retexo.tasks.task_context import TaskContext

ONE = 1 << 32
"""Reciprocal ranks, hits and scores of lists are summed as integers, in units of 1 / ONE."""
SHARES = (0.0, 0.5, 0.8, 0.94, 0.985, 1.0)
"""Candidates for the shares of the spectral score and of Adamic and Adar's. Both scale a training
pair's mean score to 1; the scores of a network are a few units."""


def choose_link_heads(
    context: TaskContext, stages: Sequence[Stage], logits: Sequence[Tensor]
) -> tuple[OutputHeads, dict[str, float]]:
    """Choose the output heads by the metric of validation pairs; all workers call it.

    Also returns the scores of validation pairs that are known from it, for score_links; {} where
    nothing was compared. Moves the stages to the CPU.

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
    if context.links["spectral"].shape[1]:
        heads, scores = best([replace(heads, spectral=share) for share in SHARES])
    num_neighbours = torch.tensor([len(context.links["neighbours"])])
    if context.comm.all_gather(num_neighbours, PREDICTIONS).any():
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

    A split without pairs is left out. Moves the stages to the CPU. known: scores of validation
    pairs that need not be computed again.
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
    pairs = _sample_sources(context, context.links[split])
    destinations, pieces = OwnDestinations(embedded), []
    for some, own in embedded.score_in_pieces(pairs, MAX_PAIRS):
        above = destinations.count_above(some, own)
        pieces.append((own, 1 + above.double() / 2))
    totals = torch.zeros(len(embedded.weights), 1 + len(CUTOFFS) + len(OF_LISTS), dtype=torch.int64)
    source = pairs[:, 0].numpy()
    for place in range(len(totals) if pieces else 0):
        own, rank = (
            torch.cat([tensor[place] for tensor in part]) for part in zip(*pieces, strict=True)
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
    """Return own pairs of about task.ranked random sources of all workers, by source.

    Drawn by the seed; all workers call it.
    """
    settings, sources = context.settings, torch.unique(pairs[:, 0])
    total = int(context.comm.all_gather(torch.tensor([len(sources)]), PREDICTIONS).sum())
    chosen = sample_share(sources, settings.task.ranked, total, settings.seed)
    pairs = pairs[torch.isin(pairs[:, 0], chosen)]
    return pairs[pairs[:, 0].argsort(stable=True)]


def compare_with_negatives(embedded: EmbeddedNodes, split: str) -> list[dict[str, float]]:
    """Return the AUC against the fixed negative pairs, for each candidate; NaN without pairs.

    For OGB's graphs also the metric of OGB's evaluator. All workers call it.
    """
    links = embedded.context.links
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


class OwnDestinations:
    """This worker's nodes that can be destinations, to be scored with sources of all workers."""

    def __init__(self, embedded: EmbeddedNodes, *, held_out: bool = True) -> None:
        """Take the destinations of this worker's nodes.

        held_out: whether held-out pairs are known, too, beside the edges of the graph.
        """
        self.embedded, self._known = embedded, KnownEdges(embedded.context, held_out=held_out)
        self._pieces = embedded.take(self._known.destinations)

    def count_above(self, pairs: Tensor, own: Tensor) -> Tensor:
        """Add up how many nodes of all workers score above a pair, and how many at least as much.

        Nodes that a source has an edge to do not count. All workers call it, those without pairs,
        too. TrainingError for an invalid message.

        Args:
            pairs: int64 [q, 2] by source, whose sources are this worker's.
            own: [A, q], their scores.

        Returns:
            int64 [A, q].
        """
        embedded, comm = self.embedded, self.embedded.context.comm
        dtype = torch.int32 if embedded.context.graph_info.id_bounds[-1] < 2**31 else torch.int64
        sources, places = torch.unique(pairs[:, 0], return_inverse=True)
        scores = embedded.all_gather(own.T.contiguous())
        parts = [sources, places, self._known.find_held_out(sources)]
        gathered = zip(*(embedded.all_gather(part.to(dtype)) for part in parts), strict=True)
        counts = []
        for peer, (score, (ids, place, excluded)) in enumerate(zip(scores, gathered, strict=True)):
            check_places(peer, place, len(score), len(ids))
            check_node_numbers(peer, excluded[:, 0], len(ids))
            counts.append(self._count_above_here(ids.long(), place, score.T, excluded.long()))
        num_candidates = len(embedded.weights)
        sizes = [len(pairs) * num_candidates] * comm.world_size
        received = comm.all_to_all([count.flatten() for count in counts], sizes, PREDICTIONS)
        return torch.stack(received).long().sum(dim=0).view(num_candidates, len(pairs))

    def _count_above_here(
        self, ids: Tensor, places: Tensor, own: Tensor, held_out: Tensor
    ) -> Tensor:
        """Add up for each pair how many destinations score above it, and at least as much.

        Args:
            ids: int64 [s] the sources of one worker's pairs.
            places: int [q] the place of each pair's source among them, ascending.
            own: [A, q], the scores of the pairs.
            held_out: of KnownEdges.find_held_out.

        Returns:
            int32 [A, q].
        """
        lowest, highest = (bound.numpy() for bound in bounds_of_ties(own))
        place_of_pair, counts = places.numpy(), np.zeros(own.shape, np.int32)
        for first, _, scores in self._score(ids, held_out):
            begin, end = np.searchsorted(place_of_pair, (first, first + scores.shape[1]))
            # A row at a time, which stays in the cache; numpy counts bools faster than torch.
            for candidate, by_source in enumerate(scores.numpy()):
                for pair in range(begin, end):
                    others = by_source[place_of_pair[pair] - first]
                    counts[candidate, pair] += np.count_nonzero(others > highest[candidate, pair])
                    counts[candidate, pair] += np.count_nonzero(others >= lowest[candidate, pair])
        return torch.from_numpy(counts)

    def find_top(self, ids: Tensor, top: int) -> tuple[Tensor, Tensor]:
        """Return the most likely new ones of these destinations for any sources, int64 [q].

        All workers call it with the same `ids`; the callers join their answers.

        Returns:
            Scores [q, K] and inner nodes int64 [q, K], K = top, best first; -inf for nodes with an
            edge, and where there are fewer destinations.
        """
        held_out = torch.cat(self.embedded.all_gather(self._known.find_held_out(ids)))
        # There may be fewer destinations than `top`.
        best = self.embedded.rows.new_full((len(ids), top), -torch.inf)
        nodes = torch.zeros(len(ids), top, dtype=torch.int64)
        for first, begin, scores in self._score(ids, held_out):
            some, end = slice(first, first + scores.shape[1]), begin + scores.shape[2]
            nodes_of_piece = self._known.destinations[begin:end].expand(scores.shape[1], -1)
            best[some], chosen = torch.cat((best[some], scores[0]), dim=1).topk(top, dim=1)
            nodes[some] = torch.cat((nodes[some], nodes_of_piece), dim=1).gather(1, chosen)
        return best, nodes

    def _score(self, ids: Tensor, held_out: Tensor) -> Iterator[tuple[int, int, Tensor]]:
        """Yield scores [A, n, m] of some sources, int64 [s], with a piece of the destinations.

        Before them the places of the first source and destination. Destinations that a source is
        not ranked among (KnownEdges.find_excluded) have -inf. Without sources it yields each piece
        once. All workers call it.
        """
        sources = self.embedded.fetch(ids)
        place, column = self._known.find_excluded(ids, held_out)
        step = self._pieces[0].max_sources
        for first in range(0, max(1, len(ids)), step):
            some, begin = sources.take(slice(first, first + step)), 0
            for piece in self._pieces:
                end = begin + len(piece.rows)
                scores = piece.score_all(some)
                inside = (place >= first) & (place < first + step)
                inside &= (column >= begin) & (column < end)
                scores[:, place[inside] - first, column[inside] - begin] = -torch.inf
                yield first, begin, scores
                begin = end


class KnownEdges:
    """Which nodes have an edge, in this partition's edges and in its held-out pairs.

    held_out=False: of the graph's edges alone, so of training pairs.
    """

    def __init__(self, context: TaskContext, *, held_out: bool = True) -> None:
        part, links, info = context.partition, context.links, context.graph_info
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
        is_destination = torch.isin(nodes, self.destinations)
        return places[is_destination], columns[is_destination]


def _find_matches(ascending: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the positions in `values` and in `ascending` of all equal numbers."""
    begin, end = (
        torch.searchsorted(ascending, values.contiguous(), right=right) for right in (False, True)
    )
    counts = end - begin
    place = repeat_interleave(torch.arange(len(values)), counts)
    shift = repeat_interleave(counts.cumsum(0) - counts - begin, counts)
    return place, torch.arange(len(place)) - shift
