"""The task, link prediction: its loss and its metric, on embeddings of the nodes that a worker has the inputs of.

The loss of a pair (u, v) is the cross-entropy of v among all N nodes that can be destinations, s the score:

    log ( e^s(u,v) + sum over drawn nodes w of  e^s(u,w) / E_w )  -  s(u,v)

Half of the nodes w are drawn uniformly, half as ends of training pairs, anew in each step; E_w is how often w is
expected among them, so that the sum is that over all nodes, in the mean (importance sampling, as in sampled softmax;
Bengio and Senecal, 2008).

n nodes at hand, m pairs, K drawn nodes, M nodes that are drawn from, D width of an embedding.
"""

import hashlib
import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from partitioning.directory.partition import Partition
from retexo.models.matrix import RowIndex
from retexo.models.scorer import Scorer

ONE = 1 << 16
"""Reciprocal ranks are added up as integers, in these parts of one."""
CELLS = 1 << 22
"""Scores that are looked at at a time."""
VALIDATED = 1 << 13
"""Pairs that rounds are validated by, about; they are ranked among CANDIDATES nodes."""
CANDIDATES = 1000
ROUNDING = 64
"""By so many units in the last place scores may differ that are equal."""


class LinkPrediction:
    """Which pairs of nodes have an edge; its seeds are pairs."""

    multilabel = False

    def __init__(self, dim: int) -> None:
        """dim: D, which takes the place of the number of classes."""
        self.num_classes = dim

    @staticmethod
    def num_seeds(partition: Partition) -> list[int]:
        """Pairs whose sources are the part's."""
        assert partition.links is not None
        return [len(partition.links[part]) for part in ("train", "val", "test")]

    @staticmethod
    def metric(counts: Tensor) -> float:
        """The mean reciprocal rank; counts: the sum of reciprocal ranks in parts of ONE, pairs, nothing."""
        total, pairs, _ = counts.tolist()
        return float(total / ONE / max(1, pairs))


@dataclass(eq=False)
class LinkSeeds:
    """This worker's pairs, by numbers of nodes at hand."""

    train: Tensor
    """int64 [m, 2] source, destination."""
    val: Tensor
    """int64 [v, 2]"""
    drawn_from: Tensor
    """int64 [M]"""
    weight: Tensor
    """float [M] of how many training pairs each is the end."""
    share: float
    """M / N"""
    num_negatives: int
    """K / 2"""
    batch_size: int | None
    seed: int
    layer: int
    _step: tuple[int, int] = field(default=(0, 0))

    def begin_round(self, number: int) -> None:
        """A round begins. Its pairs and nodes depend only on seed, layer, round and step, also in a resumed run."""
        self._step = number, 0

    def _generator(self, *key: int) -> torch.Generator:
        text = repr((self.seed, self.layer, *key)).encode()
        return torch.Generator().manual_seed(
            int.from_bytes(hashlib.sha256(text).digest()[:7], "little")
        )

    def batch(self) -> "LinkBatch":
        """What the next step reads."""
        generator = self._generator(*self._step)
        self._step = self._step[0], self._step[1] + 1
        drawn, log_expected = self._draw(generator)
        if self.batch_size is None or self.batch_size >= len(self.train):
            return LinkBatch(slice(None), self.train, drawn, log_expected, 1.0)
        order = torch.randperm(len(self.train), generator=generator)
        rows = self.train[order[: self.batch_size]]
        nodes, rows, drawn = _numbered(rows, drawn)
        return LinkBatch(nodes, rows, drawn, log_expected, len(self.train) / self.batch_size)

    def validation(self) -> "LinkValidation":
        """What validates every round: each pair is ranked among the same nodes."""
        order = torch.randperm(len(self.drawn_from), generator=self._generator())[:CANDIDATES]
        return LinkValidation(*_numbered(self.val, self.drawn_from[order]))

    def _draw(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Drawn nodes, int64 [K], and the logarithm of how often each is expected, [K]."""
        count = self.num_negatives if len(self.drawn_from) else 0
        places = torch.randint(max(1, len(self.drawn_from)), (count,), generator=generator)
        weight = self.weight.double()
        if count and float(weight.sum()) > 0:
            places = torch.cat(
                (places, torch.multinomial(weight, count, replacement=True, generator=generator))
            )
        expected = (
            count * self.share * (1 / max(1, len(weight)) + weight / weight.sum().clamp(min=1))
        )
        return self.drawn_from[places], expected[places].log().to(self.weight.dtype)


def _numbered(rows: Tensor, others: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The nodes of both, ascending, then both by their places among these."""
    nodes, place = torch.unique(torch.cat((rows.flatten(), others)), return_inverse=True)
    return nodes, place[: rows.numel()].view(-1, 2), place[rows.numel() :]


@dataclass(frozen=True, eq=False)
class LinkBatch:
    """Pairs of a step, and the drawn nodes that they are told from."""

    nodes: RowIndex
    """[n] those of the nodes at hand that are embedded."""
    rows: Tensor
    """int64 [m, 2] source, destination, by their places among `nodes`."""
    drawn: Tensor
    """int64 [K], likewise."""
    log_expected: Tensor
    """[K] the logarithm of how often each is expected to be drawn."""
    factor: float
    """By which the pairs stand for all."""

    def loss(self, embedded: Tensor, scorer: Scorer) -> Tensor:
        """Summed over the training pairs; embedded: [n, D]. It is made in pieces, so that few scores are there at once:
        the gradient of the embeddings is known when it is returned.
        """
        drawn, log_expected = self.drawn.to(embedded.device), self.log_expected.to(embedded.device)
        rows = self.rows[
            self.rows[:, 0].argsort(stable=True)
        ]  # a piece has few sources, which are scored once each
        leaf = embedded.detach().requires_grad_()
        total = leaf.new_zeros(())
        for some in torch.split(rows.to(embedded.device), max(1, CELLS // max(1, len(drawn)))):
            own = scorer.pairs(leaf[some[:, 0]], leaf[some[:, 1]])
            sources, place = torch.unique_consecutive(some[:, 0], return_inverse=True)
            others = scorer.against(leaf[sources], leaf[drawn]) - log_expected
            others = others.masked_fill(drawn == sources[:, None], -torch.inf)
            # e^-80 of the largest adds nothing, and an exponential that underflows takes 60 times as long.
            others = torch.maximum(others, others.detach().amax(dim=1, keepdim=True) - 80)
            rest = torch.logsumexp(others, dim=1)[place]
            is_drawn = torch.isin(some[:, 1], drawn).nonzero()[
                :, 0
            ]  # it is no negative of its own pair
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
    """Pairs that rounds are validated by."""

    nodes: Tensor
    """int64 [n] those of the nodes at hand that are embedded."""
    rows: Tensor
    """int64 [v, 2] source, destination, by their places among `nodes`."""
    others: Tensor
    """int64 [c] what each pair is ranked among, likewise."""

    @torch.no_grad()
    def counts(self, embedded: Tensor, scorer: Scorer) -> Tensor:
        """See LinkPrediction.metric; int64 [3]. embedded: [n, D]"""
        others, total = self.others.to(embedded.device), 0
        for some in torch.split(
            self.rows.to(embedded.device), max(1, CELLS // max(1, len(others)))
        ):
            own = scorer.pairs(embedded[some[:, 0]], embedded[some[:, 1]])
            scores = scorer.against(embedded[some[:, 0]], embedded[others])
            scores[(others == some[:, :1]) | (others == some[:, 1:])] = -torch.inf
            total += int((ONE / rank_among(own, scores)).round().sum())
        return torch.tensor([total, len(self.rows), 0])


def share_of(rows: Tensor, wanted: int, total: int, seed: int) -> Tensor:
    """Random rows of this worker, [n, ...], its share of about `wanted` of the `total` that all workers have."""
    count = math.ceil(len(rows) * min(1, wanted / max(1, total)))
    return rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:count]]


def rank_among(own: Tensor, others: Tensor) -> Tensor:
    """The rank of scores [n] among others [n, K], from 1 on: the mean of the best and the worst that ties allow."""
    return 1 + (num_above(own, others) + num_above(own, others, ties=True)) / 2


def num_above(own: Tensor, others: Tensor, *, ties: bool = False) -> Tensor:
    """How many of others [..., n, K] are above own [..., n], or not below it, int32; K below 2^24.

    Scores that differ by rounding are equal: one product of two rows and a product of matrices add up in other orders.
    """
    compare, numbers = (
        torch.ge if ties else torch.gt,
        torch.empty_like(others),
    )  # bools take six times as long to add
    slack = own.abs() * (ROUNDING * torch.finfo(own.dtype).eps)
    return (
        compare(others, (own - slack if ties else own + slack)[..., None], out=numbers)
        .sum(dim=-1)
        .int()
    )
