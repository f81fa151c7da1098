"""How well pairs are told from others: MRR, Hits@K and AUC, from counts that are added up over the workers.

A pair (u, v) is ranked among all nodes that u has no edge to in any set. The embedding of u goes to every worker, which
counts those of its own nodes that score more than v; so no list of all nodes is ever held, and what comes back are
counts. A rank is the mean of the best and the worst that equal scores allow, as OGB's evaluator has it. AUC is against
the fixed pairs of the partition directory, and so is what OGB asks for of its own graphs.

I inner nodes, q pairs of one worker that are ranked at a time, D width of all embeddings of a node, A answers, N nodes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn

from retexo.arrays import repeat_interleave
from retexo.comm.collectives import ReduceInput
from retexo.comm.int8 import SCALE_BYTES, to_int8
from retexo.comm.received import check_node_numbers
from retexo.comm.traffic_meter import MessageTag
from retexo.models.scorer import Scorer
from retexo.models.stage import Answer, Stage
from retexo.tasks.link_prediction import num_above, rank_among, share_of
from retexo.trainers.context import Context
from retexo.trainers.paths import Paths

QUERIES = 1 << 10
"""Pairs of a worker that are ranked at a time."""
CELLS = 1 << 21
"""Scores that are there at a time, of each stage."""
ONE = 1 << 32
"""Reciprocal ranks are added up in these parts of one."""
HITS = (10, 20, 50)
SHARES = (0.0, 0.5, 0.8, 0.94, 0.985, 1.0)
"""Of the spectral score and of paths, that validation chooses among: a training pair's is 1 in the mean, a network's
some."""
TAG = MessageTag("predictions")


@dataclass(frozen=True, eq=False)
class Fetched:
    """What nodes of any worker are scored by."""

    rows: Tensor
    """[q, D]"""
    neighbours: sp.csr_array | None
    """int64 [q, N], as Paths.fetch has it; None where paths do not count."""

    @cached_property
    def by_neighbour(self) -> sp.csr_array:
        """[N, q]"""
        assert self.neighbours is not None
        return sp.csr_array(self.neighbours.T)


@dataclass(frozen=True, eq=False)
class Embedded:
    """What this worker's nodes are scored by, as all workers see it."""

    context: Context
    scorers: Sequence[Scorer]
    rows: Tensor
    """[I, D] of the stages side by side, and the spectral embedding after them, in pieces as wide."""
    answers: Sequence[tuple[float, ...]]
    """[A] the weight of each stage's score, and of each piece of the spectral one."""
    paths: Paths | None
    """None where no answer has a share of them."""
    path_shares: Tensor
    """[A]"""

    @classmethod
    def of(
        cls,
        context: Context,
        stages: Sequence[Stage],
        logits: Sequence[Tensor],
        answers: Sequence[Answer],
    ) -> "Embedded":
        """logits: of the last stages, [I, C] each. Where rows are rounded these are, too: eight bits, a scale each."""
        last = list(stages)[len(stages) - len(logits) :]
        parts, scorers = [each.cpu() for each in logits], [stage.cpu().scorer for stage in last]
        width = parts[0].shape[1]
        if any(each.spectral for each in answers):
            pieces = torch.split(_links(context)["spectral"].to(parts[0]), width, dim=1)
            parts += [nn.functional.pad(each, (0, width - each.shape[1])) for each in pieces]
            scorers += [Scorer("dot", width) for _ in pieces]
        rows, numbers = torch.cat(parts, dim=1), range(len(stages) - len(last), len(stages))
        if context.settings.exchange.rounded:
            rows = _unpacked(_packed(rows, len(scorers)), len(scorers), rows)
        weights = []
        for each in answers:
            network, spectral = (
                (1 - each.paths) * share for share in (1 - each.spectral, each.spectral)
            )
            of_stages = (network * (stage in each.stages) / len(each.stages) for stage in numbers)
            weights.append((*of_stages, *(spectral for _ in scorers[len(last) :])))
        shares = rows.new_tensor([each.paths for each in answers])
        paths = (
            Paths.of(context.partition, int(context.graph_info.id_bounds[-1]))
            if shares.any()
            else None
        )
        return cls(context, scorers, rows, weights, paths, shares)

    @property
    def bounds(self) -> Tensor:
        return self.context.graph_info.id_bounds

    @torch.no_grad()
    def _scores(
        self, score: Callable[[Scorer, Tensor, Tensor], Tensor], src: Tensor, dst: Tensor
    ) -> Tensor:
        """[A, ...] from embeddings of sources and destinations, without paths; `score` is a method of a scorer."""
        width = src.shape[1] // len(self.scorers)
        pieces = zip(
            self.scorers,
            torch.split(src, width, dim=1),
            torch.split(dst, width, dim=1),
            strict=True,
        )
        each = [score(scorer, *ends) for scorer, *ends in pieces]
        pairs = [zip(each, answer, strict=False) for answer in self.answers]
        none = torch.zeros_like(each[0])
        return torch.stack(
            [sum((part * share for part, share in some if share), start=none) for some in pairs]
        )

    def pairs(self, own: Tensor, destinations: Fetched) -> Tensor:
        """[A, q]; own: int64 [q] places of sources among this worker's nodes."""
        scores = self._scores(Scorer.pairs, self.rows[own], destinations.rows)
        if self.paths is not None and destinations.neighbours is not None:
            scores += torch.outer(
                self.path_shares, self.paths.pairs(own, destinations.neighbours).to(scores)
            )
        return scores

    def against(self, sources: Fetched, own: slice) -> Tensor:
        """[A, q, n]; own: which of this worker's nodes."""
        scores = self._scores(Scorer.against, sources.rows, self.rows[own])
        if self.paths is not None:
            source, node, score = self.paths.against(sources.by_neighbour, own)
            scores[:, source, node] += torch.outer(self.path_shares, score.to(scores))
        return scores

    def fetch(self, ids: Tensor) -> Fetched:
        """What any nodes are scored by, by their ids in the partitioned graph, int64 [n]; all workers call it."""
        comm, bounds = self.context.comm, self.bounds
        wanted, inverse = np.unique(ids.numpy(), return_inverse=True)
        owner = torch.searchsorted(bounds, torch.from_numpy(wanted), right=True) - 1
        counts = torch.bincount(owner, minlength=comm.world_size)
        lists = list(torch.split(torch.from_numpy(wanted) - bounds[owner], counts.tolist()))
        sizes = [
            int(each)
            for each in comm.all_to_all(list(torch.split(counts, 1)), [1] * comm.world_size, TAG)
        ]
        asked = comm.all_to_all([each.to(torch.int32) for each in lists], sizes, TAG)
        for peer, each in enumerate(asked):
            check_node_numbers(peer, each, len(self.rows))
        size = self._row_bytes
        replies = [self._packed(self.rows[each.long()]) for each in asked]
        received = comm.all_to_all(
            replies, [count * size for count in counts.tolist()], TAG, consume=True
        )
        rows = self._unpacked(torch.cat(received))[torch.from_numpy(inverse)]
        if self.paths is None:
            return Fetched(rows, None)
        return Fetched(rows, self.paths.fetch(comm, asked, counts.tolist(), TAG)[inverse])

    def everywhere(self, tensor: Tensor) -> list[Tensor]:
        """Of every worker its tensor, [n_w, ...], at every worker."""
        comm = self.context.comm
        sizes = comm.all_gather(torch.tensor([tensor.numel()]), TAG)[:, 0].tolist()
        received = comm.all_to_all([tensor.flatten()] * comm.world_size, sizes, TAG)
        return [each.view(-1, *tensor.shape[1:]) for each in received]

    def of_pairs(self, rows: Tensor) -> Tensor:
        """The first answer's scores of pairs whose sources are this worker's, [n]; a piece of them at a time."""
        most = int(self.context.comm.all_gather(torch.tensor([len(rows)]), TAG).max())
        found = [self.rows.new_zeros(0)]
        for first in range(0, most, 32 * QUERIES):
            some = rows[first : first + 32 * QUERIES]
            found.append(
                self.pairs(some[:, 0] - self.context.partition.first_id, self.fetch(some[:, 1]))[0]
            )
        return torch.cat(found)

    @property
    def _row_bytes(self) -> int:
        count = len(self.scorers)
        width = self.rows.shape[1]
        return (
            width + SCALE_BYTES * count
            if self.context.settings.exchange.rounded
            else width * self.rows.itemsize
        )

    def _packed(self, rows: Tensor) -> Tensor:
        rounded = self.context.settings.exchange.rounded
        return (
            _packed(rows, len(self.scorers))
            if rounded
            else rows.contiguous().view(-1).view(torch.uint8)
        )

    def _unpacked(self, data: Tensor) -> Tensor:
        if self.context.settings.exchange.rounded:
            return _unpacked(data, len(self.scorers), self.rows)
        return data.clone().view(self.rows.dtype).view(-1, self.rows.shape[1])


def _packed(rows: Tensor, count: int) -> Tensor:
    """Rows [n, D] as bytes: codes, then a scale for each of `count` parts of a row."""
    width = rows.shape[1]
    codes, scales = to_int8(rows.reshape(len(rows) * count, width // count))
    both = (
        codes.view(len(rows), width).view(torch.uint8),
        scales.view(len(rows), count).view(torch.uint8),
    )
    return torch.cat(both, dim=1).view(-1)


def _unpacked(data: Tensor, count: int, like: Tensor) -> Tensor:
    width, scale_bytes = like.shape[1], SCALE_BYTES * count
    codes, scales = torch.split(data.view(-1, width + scale_bytes), [width, scale_bytes], dim=1)
    values = codes.contiguous().view(torch.int8).view(len(codes) * count, width // count)
    return (
        (values * scales.reshape(-1).clone().view(torch.float32).view(-1, 1))
        .view(-1, width)
        .to(like)
    )


def choose_links(context: Context, stages: Sequence[Stage], logits: Sequence[Tensor]) -> Answer:
    """By the MRR of validation pairs: the stage, or the mean of the last ones; the share of the spectral score; then
    that of paths."""
    num_layers = len(stages)
    answer = Answer((num_layers - 1,))
    if context.settings.output_heads != "validation" or not context.graph_info.num_val:
        return answer

    def best(candidates: list[Answer]) -> Answer:
        ranked = ranks(Embedded.of(context, stages, logits, candidates), "val")
        return candidates[int(torch.tensor([each["mrr"] for each in ranked]).argmax())]

    if len(logits) > 1:
        numbers = range(num_layers)
        several = [Answer(tuple(range(each, num_layers))) for each in numbers[:-1]]
        answer = best([*(Answer((each,)) for each in numbers), *several])
    if _links(context)["spectral"].shape[1]:
        answer = best([replace(answer, spectral=share) for share in SHARES])
    if context.comm.all_gather(torch.tensor([len(_links(context)["neighbours"])]), TAG).any():
        answer = best([replace(answer, paths=share) for share in SHARES])
    return answer


def link_scores(
    context: Context, stages: Sequence[Stage], logits: Sequence[Tensor], answer: Answer
) -> dict[str, dict[str, float]]:
    """The scores of validation and test pairs that a run reports."""
    embedded = Embedded.of(context, stages, logits, [answer])
    sizes = {"val": context.graph_info.num_val, "test": context.graph_info.num_test}
    return {
        part: {**ranks(embedded, part)[0], **against_fixed(embedded, part)}
        for part, size in sizes.items()
        if size
    }


def ranks(embedded: Embedded, part: str) -> list[dict[str, float]]:
    """MRR and Hits@K of the pairs of a set, or of a sample of them, by answer."""
    context, links = embedded.context, _links(embedded.context)
    comm, info, settings = context.comm, context.graph_info, context.settings
    total = {"val": info.num_val, "test": info.num_test}[part]
    rows = share_of(links[part], settings.task.ranked, total, settings.seed)
    known = Known(embedded)
    totals = torch.zeros(len(embedded.answers), 1 + len(HITS), dtype=torch.int64)
    most = int(comm.all_gather(torch.tensor([len(rows)]), TAG).max())
    for first in range(0, most, QUERIES):
        some = rows[first : first + QUERIES]
        own = embedded.pairs(some[:, 0] - context.partition.first_id, embedded.fetch(some[:, 1]))
        above = _above(embedded, known, some, own)
        rank = 1 + above.double().sum(dim=2) / 2
        hits = [(rank <= k).sum(dim=1) for k in HITS]
        totals += torch.stack([(ONE / rank).round().long().sum(dim=1), *hits], dim=1)
    count = torch.tensor([len(rows)])
    comm.all_reduce([ReduceInput(totals.view(-1)), ReduceInput(count)], MessageTag("metrics"))
    pairs = max(1, int(count))
    shares = totals.double() / pairs
    names = ["mrr", *(f"hits@{k}" for k in HITS)]
    shares[:, 0] /= ONE
    return [{**dict(zip(names, each, strict=True)), "ranked": pairs} for each in shares.tolist()]


def _above(embedded: Embedded, known: "Known", rows: Tensor, own: Tensor) -> Tensor:
    """For each pair [A, q, 2] how many nodes of the graph score more than it, and how many at least as much."""
    comm = embedded.context.comm
    wanted = embedded.everywhere(own.T.contiguous())
    dtype = torch.int32 if int(embedded.bounds[-1]) < 2**31 else torch.int64
    sources = embedded.everywhere(rows[:, 0].to(dtype))
    held = embedded.everywhere(known.held_out(rows[:, 0]).to(dtype))
    answers = []
    for score, ids, others in zip(wanted, sources, held, strict=True):
        fetched = embedded.fetch(ids.long())
        answers.append(_count(embedded, known, fetched, score.T, ids.long(), others.long()))
    sizes = [len(rows) * 2 * len(embedded.answers)] * comm.world_size
    received = comm.all_to_all([each.flatten() for each in answers], sizes, TAG)
    return (
        torch.stack([each.view(len(embedded.answers), len(rows), 2) for each in received])
        .long()
        .sum(dim=0)
    )


def _count(
    embedded: Embedded, known: "Known", source: Fetched, own: Tensor, ids: Tensor, others: Tensor
) -> Tensor:
    """Of this worker's nodes, int32 [A, q, 2]; without those that a source, of int64 [q], has an edge to."""
    place, node = known.of_sources(ids, others)
    total = torch.zeros(len(embedded.answers), len(ids), 2, dtype=torch.int32)
    step = max(1, CELLS // max(1, len(ids) * len(embedded.answers)))
    for first in range(0, len(embedded.rows), step):
        scores = embedded.against(source, slice(first, first + step))
        inside = (node >= first) & (node < first + step)
        scores[:, place[inside], node[inside] - first] = -torch.inf
        scores[:, :, known.others[first : first + step]] = -torch.inf
        total[:, :, 0] += num_above(own, scores)
        total[:, :, 1] += num_above(own, scores, ties=True)
    return total


class Known:
    """Which nodes have an edge from which: those of this part's edges, and of its pairs."""

    def __init__(self, embedded: Embedded) -> None:
        part, links = embedded.context.partition, _links(embedded.context)
        halo = embedded.bounds[part.halo_owner] + part.halo_index
        ids = torch.cat((part.first_id + torch.arange(part.num_inner), halo))
        self.first, self.count = part.first_id, part.num_inner
        self.others = torch.full((part.num_inner,), embedded.context.graph_info.num_candidates > 0)
        """bool [I] nodes that can be no end."""
        self.others[links["candidates"][:, 0] - self.first] = False
        self._held = torch.cat((links["val"], links["test"]))
        self._held = self._held[self._held[:, 0].argsort(stable=True)]
        order = ids[part.src.long()].argsort(stable=True)
        self._source, self._node = ids[part.src.long()][order], part.dst.long()[order]

    def held_out(self, sources: Tensor) -> Tensor:
        """[p, 2] place of a source, and another node that a pair of it has; its own owner knows these."""
        place, at = _matches(self._held[:, 0].contiguous(), sources)
        return torch.stack((place, self._held[at, 1]), dim=1)

    def of_sources(self, ids: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
        """Places of sources and inner nodes that do not count for them: the source itself, known ends."""
        place, at = _matches(self._source, ids)
        places = torch.cat((place, others[:, 0], torch.arange(len(ids))))
        nodes = torch.cat((self._node[at], others[:, 1] - self.first, ids - self.first))
        inner = (nodes >= 0) & (nodes < self.count)
        return places[inner], nodes[inner]


def _matches(ascending: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Place in `wanted`, and place in `ascending`, of all equal numbers."""
    begin, end = (
        torch.searchsorted(ascending, wanted.contiguous(), right=right) for right in (False, True)
    )
    counts = end - begin
    place = repeat_interleave(torch.arange(len(wanted)), counts)
    return place, torch.arange(len(place)) - repeat_interleave(
        counts.cumsum(0) - counts - begin, counts
    )


def against_fixed(embedded: Embedded, part: str) -> dict[str, float]:
    """AUC against the fixed pairs, and what OGB's evaluator says of its own graphs."""
    links, comm = _links(embedded.context), embedded.context.comm
    positive, negative = embedded.of_pairs(links[part]), embedded.of_pairs(links[f"{part}_neg"])
    everyone = torch.cat(embedded.everywhere(positive))
    ordered = negative.sort().values
    wins = sum(torch.searchsorted(ordered, everyone, right=right).sum() for right in (False, True))
    counts = torch.tensor([int(wins), len(negative)])
    comm.all_reduce([ReduceInput(counts)], MessageTag("metrics"))
    pairs = len(everyone) * int(counts[1])
    found = {"auc": int(counts[0]) / 2 / pairs if pairs else float("nan")}
    name = embedded.context.graph_info.evaluator
    if name == "mrr":
        several = negative.view(len(positive), len(negative) // max(1, len(positive)))
        rank = rank_among(positive, several).double()
        total = torch.tensor([int((ONE / rank).round().sum())])
        comm.all_reduce([ReduceInput(total)], MessageTag("metrics"))
        found["ogb mrr"] = int(total) / ONE / max(1, len(everyone))
    elif name:
        k = int(name.split("@")[1])
        best = torch.cat(embedded.everywhere(ordered.flip(0)[:k])).sort(descending=True).values
        hits = torch.tensor(
            [int((positive > best[k - 1]).sum()) if len(best) >= k else len(positive)]
        )
        comm.all_reduce([ReduceInput(hits)], MessageTag("metrics"))
        found[f"ogb {name}"] = int(hits) / max(1, len(everyone))
    return found


def new_scores(embedded: Embedded, known: Known, ids: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """This worker's best nodes for any nodes, int64 [q]: scores [q, K] and nodes; -inf for those with an edge."""
    source = embedded.fetch(ids)
    place, node = known.of_sources(ids, torch.cat(embedded.everywhere(known.held_out(ids))))
    best, nodes = (
        source.rows.new_full((len(ids), top), -torch.inf),
        torch.zeros(len(ids), top, dtype=torch.int64),
    )
    step = max(1, CELLS // max(1, len(ids)))
    for first in range(0, len(embedded.rows), step):
        scores = embedded.against(source, slice(first, first + step))[0]
        inside = (node >= first) & (node < first + step)
        scores[place[inside], node[inside] - first] = -torch.inf
        scores[:, known.others[first : first + step]] = -torch.inf
        both = torch.cat((best, scores), dim=1)
        numbers = torch.cat(
            (nodes, first + torch.arange(scores.shape[1]).expand(len(ids), -1)), dim=1
        )
        best, chosen = both.topk(top, dim=1)
        nodes = numbers.gather(1, chosen)
    return best, nodes


def _links(context: Context) -> dict[str, Tensor]:
    assert context.partition.links is not None
    return dict(context.partition.links)
