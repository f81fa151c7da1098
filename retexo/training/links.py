"""The task, link prediction: its loss and its metric, on embeddings of the nodes that a worker has the inputs of.

The loss of a pair (u, v) is the cross-entropy of v among all N nodes, s the score:

    log ( e^s(u,v) + sum over drawn nodes w of  e^s(u,w) / E_w )  -  s(u,v)

Half of the nodes w are drawn uniformly, half as ends of training pairs, anew in each step; E_w is how often w is
expected among them, so that the sum is that over all nodes, in the mean (importance sampling, as in sampled softmax;
Bengio and Senecal, 2008).

n nodes at hand, m pairs, K drawn nodes, M nodes that are drawn from, D width of an embedding.
"""

import hashlib
from dataclasses import dataclass, field

import torch
from torch import Tensor

from partitioning.directory.types import Partition
from retexo.nn.scorer import Scorer

ONE = 1 << 16
"""Reciprocal ranks are added up as integers, in these parts of one."""
CELLS = 1 << 22
"""Scores that are looked at at a time."""
VALIDATED = 1 << 13
"""Pairs of a worker that its rounds are validated by, at most; they are ranked among CANDIDATES nodes."""
CANDIDATES = 1000


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

    def begin(self, number: int) -> None:
        """A round begins: what is drawn in it depends on its number and the step alone, also in a resumed run."""
        self._step = number, 0

    def _generator(self, *key: int) -> torch.Generator:
        text = repr((self.seed, self.layer, *key)).encode()
        return torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(text).digest()[:7], "little"))

    def loss(self, embedded: Tensor, scorer: Scorer) -> Tensor:
        """Summed over the training pairs; embedded: [n, D]. It is made in pieces, so that few scores are there at once:
        the gradient of the embeddings is known when it is returned.
        """
        generator = self._generator(*self._step)
        self._step = self._step[0], self._step[1] + 1
        drawn, log_expected = (each.to(embedded.device) for each in self._draw(generator))
        rows, factor = self.train, 1.0
        if self.batch_size is not None and self.batch_size < len(rows):
            rows, factor = rows[torch.randperm(len(rows))[: self.batch_size]], len(rows) / self.batch_size
        rows = rows[rows[:, 0].argsort(stable=True)]  # a piece has few sources, which are scored once each
        leaf = embedded.detach().requires_grad_()
        total = leaf.new_zeros(())
        for some in torch.split(rows.to(embedded.device), max(1, CELLS // max(1, len(drawn)))):
            own = scorer.pairs(leaf[some[:, 0]], leaf[some[:, 1]])
            sources, place = torch.unique_consecutive(some[:, 0], return_inverse=True)
            others = scorer.against(leaf[sources], leaf[drawn]) - log_expected
            others = others.masked_fill(drawn == sources[:, None], -torch.inf)
            rest = torch.logsumexp(others, dim=1)[place]
            is_drawn = torch.isin(some[:, 1], drawn).nonzero()[:, 0]  # it is no negative of its own pair
            without = others[place[is_drawn]].masked_fill(drawn == some[is_drawn, 1:], -torch.inf)
            rest = rest.index_put((is_drawn,), torch.logsumexp(without, dim=1))
            part = (torch.logaddexp(own, rest) - own).sum() * factor
            part.backward()  # type: ignore[no-untyped-call]
            total += part.detach()
        if leaf.grad is None:
            return embedded.sum() * 0
        inner = (embedded * leaf.grad).sum()
        return inner - inner.detach() + total

    def _draw(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Drawn nodes, int64 [K], and the logarithm of how often each is expected, [K]."""
        count = self.num_negatives if len(self.drawn_from) else 0
        places = torch.randint(max(1, len(self.drawn_from)), (count,), generator=generator)
        weight = self.weight.double()
        if count and float(weight.sum()) > 0:
            places = torch.cat((places, torch.multinomial(weight, count, replacement=True, generator=generator)))
        expected = count * self.share * (1 / max(1, len(weight)) + weight / weight.sum().clamp(min=1))
        return self.drawn_from[places], expected[places].log().to(self.weight.dtype)

    @torch.no_grad()
    def val_counts(self, embedded: Tensor, scorer: Scorer) -> Tensor:
        """See LinkPrediction.metric; int64 [3]. Each pair is ranked among the same nodes in every round."""
        order = torch.randperm(len(self.drawn_from), generator=self._generator())[:CANDIDATES]
        others, total = self.drawn_from[order].to(embedded.device), 0
        for some in torch.split(self.val.to(embedded.device), max(1, CELLS // max(1, len(others)))):
            own = scorer.pairs(embedded[some[:, 0]], embedded[some[:, 1]])
            scores = scorer.against(embedded[some[:, 0]], embedded[others])
            scores[(others == some[:, :1]) | (others == some[:, 1:])] = -torch.inf
            total += int((ONE / rank_among(own, scores)).round().sum())
        return torch.tensor([total, len(self.val), 0])


def rank_among(own: Tensor, others: Tensor) -> Tensor:
    """The rank of scores [n] among others [n, K], from 1 on: the mean of the best and the worst that ties allow."""
    return 1 + ((others > own[:, None]).sum(dim=1) + (others >= own[:, None]).sum(dim=1)) / 2
