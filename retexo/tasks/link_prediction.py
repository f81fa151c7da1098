"""Link prediction: the loss and the validation metric, on embeddings.

The loss of a pair (u, v) is the cross-entropy of v among all N nodes that can be destinations, s
the score:

    log ( e^s(u,v) + sum over drawn nodes w of  e^s(u,w) / E_w )  -  s(u,v)

Half of the nodes w are drawn uniformly, half as ends of training pairs, anew in each step; E_w is
how often w is expected among them, so the sum estimates that over all nodes without bias
(importance sampling, as in sampled softmax; Bengio and Senecal, 2008).

n available nodes, m pairs, K drawn nodes, M nodes that they are drawn from, D width of an
embedding.
"""

import hashlib
import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from partitioning.directory.partition import Partition
from partitioning.links.score_names import OF_LISTS
from partitioning.links.score_ranks import count_above_in_list, score_lists
from retexo.models.matrix import RowIndex
from retexo.models.scorer import Scorer
from retexo.models.stage import OutputHeads
from retexo.rounds.task import RoundMetric
from retexo.tasks.metrics import rank_among

ONE = 1 << 16
"""Reciprocal ranks are summed as integers, in units of 1 / ONE."""
MAX_SCORES = 1 << 22
"""Scores that are computed at a time."""
NUM_VALIDATION_PAIRS = 1 << 13
"""About how many pairs of all workers validate a round."""
NUM_VALIDATION_NODES = 1000
"""Nodes that each of them is ranked among."""


class LinkPrediction:
    """Which pairs of nodes have an edge: a Task whose seeds are pairs."""

    def __init__(self, dim: int, metric: str) -> None:
        """dim: D, which takes the place of the number of classes; metric: stopping.metric."""
        self.num_classes = dim
        self.metric_name = "mrr" if metric == "auto" else metric

    @staticmethod
    def count_seeds(partition: Partition) -> list[int]:
        """Return pairs of each split whose sources are the partition's."""
        assert partition.links is not None
        return [len(partition.links[split]) for split in ("train", "val", "test")]

    def make_round_metric(self) -> "MeanOfRanks":
        """Return the metric that chooses the best round of a layer."""
        return MeanOfRanks(self.metric_name)

    def make_targets(self, labels: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the labels unchanged: link prediction does not read them."""
        return labels

    def choices(self, heads: OutputHeads) -> dict[str, Any]:
        """Return what summary.json says about validation: the metric."""
        return {"metric": self.metric_name}

    def describe(self) -> dict[str, Any]:
        """Return the task's fields of model.json in a checkpoint."""
        return {"multilabel": False}


@dataclass
class MeanOfRanks(RoundMetric):
    """Metric of a round's validation pairs (LinkValidation), without a loss."""

    name: str
    """mrr or auc, the mean over pairs, or one of OF_LISTS, the mean over sources."""
    num_counts: int = field(default=3, init=False)
    with_loss: bool = field(default=False, init=False)

    def value(self, counts: Tensor, loss: float) -> float:
        """Return the mean; counts: the sum in units of 1 / ONE, pairs or sources, 0."""
        total, count, _ = counts.tolist()
        return float(total / ONE / max(1, count))


@dataclass(eq=False)
class LinkSeeds:
    """This worker's pairs, by the numbers of available nodes."""

    train: Tensor
    """int64 [m, 2] source, destination."""
    val: Tensor
    """int64 [v, 2]"""
    drawn_from: Tensor
    """int64 [M]"""
    weight: Tensor
    """float [M] how many training pairs have each node as destination."""
    share: float
    """M / N"""
    num_negatives: int
    """K / 2"""
    batch_size: int | None
    seed: int
    layer: int
    metric: str
    """See MeanOfRanks."""
    _step: tuple[int, int] = field(default=(0, 0))

    def begin_round(self, number: int) -> None:
        """Begin a round; its pairs and nodes depend only on seed, layer, round and step."""
        self._step = number, 0

    def _make_generator(self, *key: int) -> torch.Generator:
        """Return a random generator that depends on seed, layer and `key` only."""
        text = repr((self.seed, self.layer, *key)).encode()
        return torch.Generator().manual_seed(
            int.from_bytes(hashlib.sha256(text).digest()[:7], "little")
        )

    def draw_batch(self) -> "LinkBatch":
        """Return the pairs and the drawn nodes of the next step, and count that step."""
        generator = self._make_generator(*self._step)
        self._step = self._step[0], self._step[1] + 1
        drawn, log_expected = self._draw_nodes(generator)
        if self.batch_size is None or self.batch_size >= len(self.train):
            return LinkBatch(slice(None), self.train, drawn, log_expected, 1.0)
        order = torch.randperm(len(self.train), generator=generator)
        pairs = self.train[order[: self.batch_size]]
        nodes, pairs, drawn = _renumber(pairs, drawn)
        return LinkBatch(nodes, pairs, drawn, log_expected, len(self.train) / self.batch_size)

    def draw_validation(self) -> "LinkValidation":
        """Return the validation of every round, which ranks each pair among the same nodes.

        The nodes are drawn by seed and layer.
        """
        order = torch.randperm(len(self.drawn_from), generator=self._make_generator())
        candidates = self.drawn_from[order[:NUM_VALIDATION_NODES]]
        return LinkValidation(*_renumber(self.val, candidates), self.metric)

    def _draw_nodes(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return drawn nodes, int64 [K], and the logarithm of how often each is expected, [K].

        Uniformly, and if there are weights as many again by weight.
        """
        count = self.num_negatives if len(self.drawn_from) else 0
        places = torch.randint(max(1, len(self.drawn_from)), (count,), generator=generator)
        weight = self.weight.double()
        if count and float(weight.sum()) > 0:
            by_weight = torch.multinomial(weight, count, replacement=True, generator=generator)
            places = torch.cat((places, by_weight))
        probability = 1 / max(1, len(weight)) + weight / weight.sum().clamp(min=1)
        expected = count * self.share * probability
        return self.drawn_from[places], expected[places].log().to(self.weight.dtype)


def _renumber(pairs: Tensor, others: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the distinct nodes of pairs and others, ascending, and both as positions there."""
    nodes, place = torch.unique(torch.cat((pairs.flatten(), others)), return_inverse=True)
    return nodes, place[: pairs.numel()].view(-1, 2), place[pairs.numel() :]


@dataclass(frozen=True, eq=False)
class LinkBatch:
    """Pairs of a step, and the drawn nodes that their destinations compete with."""

    nodes: RowIndex
    """[n] the available nodes that are embedded."""
    pairs: Tensor
    """int64 [m, 2] source, destination, by position among `nodes`."""
    drawn: Tensor
    """int64 [K], likewise."""
    log_expected: Tensor
    """[K] the logarithm of how often each is expected to be drawn."""
    factor: float
    """All training pairs, divided by the pairs of the batch."""

    def compute_loss(self, embedded: Tensor, scorer: Scorer) -> Tensor:
        """Return the loss summed over the training pairs; embedded: [n, D].

        It is computed in pieces, so that few scores are held at once. Gradients of the scorer are
        added when it returns; the caller's backward pass only propagates that of the embeddings.
        """
        drawn, log_expected = self.drawn.to(embedded.device), self.log_expected.to(embedded.device)
        # Sorted, so that a piece has few sources, each of which is scored once.
        pairs = self.pairs[self.pairs[:, 0].argsort(stable=True)]
        leaf = embedded.detach().requires_grad_()
        total = leaf.new_zeros(())
        for some in torch.split(
            pairs.to(embedded.device), max(1, MAX_SCORES // max(1, len(drawn)))
        ):
            own = scorer.pairs(leaf[some[:, 0]], leaf[some[:, 1]])
            sources, place = torch.unique_consecutive(some[:, 0], return_inverse=True)
            others = scorer.against(leaf[sources], leaf[drawn]) - log_expected
            others = others.masked_fill(drawn == sources[:, None], -torch.inf)
            # e^-80 of the largest adds nothing; an underflowing exponential is 60 times slower.
            others = torch.maximum(others, others.detach().amax(dim=1, keepdim=True) - 80)
            rest = torch.logsumexp(others, dim=1)[place]
            # A drawn destination does not compete with itself.
            is_drawn = torch.isin(some[:, 1], drawn).nonzero()[:, 0]
            without = others[place[is_drawn]].masked_fill(drawn == some[is_drawn, 1:], -torch.inf)
            rest = rest.index_put((is_drawn,), torch.logsumexp(without, dim=1))
            part = (torch.logaddexp(own, rest) - own).sum() * self.factor
            part.backward()  # type: ignore[no-untyped-call]
            total += part.detach()
        if leaf.grad is None:
            return embedded.sum() * 0
        inner = (embedded * leaf.grad).sum()
        return inner - inner.detach() + total


@dataclass(frozen=True, eq=False)
class LinkValidation:
    """The pairs that validate a round."""

    nodes: Tensor
    """int64 [n] the available nodes that are embedded."""
    pairs: Tensor
    """int64 [v, 2] source, destination, by position among `nodes`."""
    others: Tensor
    """int64 [c] the nodes that each pair is ranked among, likewise."""
    metric: str
    """See MeanOfRanks."""

    @torch.no_grad()
    def count(self, embedded: Tensor, scorer: Scorer) -> Tensor:
        """Return the counts of MeanOfRanks, int64 [3]; embedded: [n, D]."""
        others, pieces = self.others.to(embedded.device), []
        pairs, step = self.pairs.to(embedded.device), max(1, MAX_SCORES // max(1, len(others)))
        for some in torch.split(pairs, step):
            own = scorer.pairs(embedded[some[:, 0]], embedded[some[:, 1]])
            scores = scorer.against(embedded[some[:, 0]], embedded[others])
            is_end = (others == some[:, :1]) | (others == some[:, 1:])
            scores[is_end] = -torch.inf
            num_others = (~is_end).sum(dim=1)
            by_pair = (own, rank_among(own, scores), num_others)
            pieces.append(torch.stack([column.double() for column in by_pair]).cpu())
        own, rank, num_others = torch.cat(pieces, dim=1)
        values = 1 / rank
        if self.metric == "auc":
            values = 1 - (rank - 1) / num_others.clamp(min=1)
        if self.metric in OF_LISTS:
            source = self.pairs[:, 0].numpy()
            places = rank.numpy() + count_above_in_list(source, own.numpy())
            by_source = score_lists(source, places)[:, OF_LISTS.index(self.metric)]
            values = torch.from_numpy(by_source)
        return torch.tensor([int((ONE * values).round().sum()), len(values), 0])


def sample_share(rows: Tensor, num_sampled: int, total: int, seed: int) -> Tensor:
    """Return this worker's share of about `num_sampled` rows of the `total` of all, [n, ...].

    In random order, by the seed; all own rows where there are no more than `num_sampled` in total.
    """
    count = math.ceil(len(rows) * min(1, num_sampled / max(1, total)))
    return rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:count]]
