"""Batches of links: their loss, and ranks from comparisons that are summed as floats."""

import pytest
import torch

from retexo.models.scorer import Scorer
from retexo.tasks.link_prediction import LinkSeeds
from retexo.tasks.metrics import rank_among

NODES = 40


def seeds(batch_size: int | None) -> LinkSeeds:
    generator = torch.Generator().manual_seed(3)
    pairs = torch.randint(NODES, (60, 2), generator=generator)
    drawn_from = torch.arange(0, NODES, 2)
    weight = torch.bincount(pairs[:50, 1], minlength=NODES)[drawn_from].double()
    return LinkSeeds(
        *(pairs[:50], pairs[50:], drawn_from, weight, 0.5, 5, batch_size),
        seed=1,
        layer=0,
        metric="mrr",
    )


@pytest.mark.parametrize("batch_size", [None, 7])
def test_a_batch_has_the_loss_of_its_formula_and_reads_no_other_node(
    batch_size: int | None,
) -> None:
    torch.manual_seed(0)
    embedded, scorer = torch.randn(NODES, 4, dtype=torch.float64), Scorer("dot", 4)
    own = seeds(batch_size)
    own.begin_round(2)
    batch = own.draw_batch()
    nodes = torch.arange(NODES)[batch.nodes]
    rows, drawn = nodes[batch.pairs], nodes[batch.drawn]
    assert len(rows) == (batch_size or 50)
    assert (
        batch_size is None or nodes.tolist() == torch.cat((rows.flatten(), drawn)).unique().tolist()
    )
    often = 1 / len(own.drawn_from) + own.weight / own.weight.sum()  # at random and by weight
    torch.testing.assert_close(batch.log_expected, torch.log(5 * 0.5 * often[drawn // 2]))
    expected = 0.0
    for u, v in rows.tolist():
        terms = [embedded[u] @ embedded[v]]
        for w, log in zip(drawn.tolist(), batch.log_expected, strict=True):
            if w not in (u, v):
                terms.append(embedded[u] @ embedded[w] - log)
        expected += float(torch.logsumexp(torch.stack(terms), 0) - terms[0]) * 50 / len(rows)
    assert float(batch.compute_loss(embedded[batch.nodes], scorer)) == pytest.approx(expected)


def test_validation_ranks_all_pairs_among_the_same_nodes() -> None:
    torch.manual_seed(0)
    embedded, scorer = torch.randn(NODES, 4), Scorer("dot", 4)
    own = seeds(None)
    validation = own.draw_validation()
    ranks = []
    for u, v in own.val.tolist():
        others = [embedded[u] @ embedded[w] for w in own.drawn_from.tolist() if w not in (u, v)]
        ranks.append(1 + sum(float(score > embedded[u] @ embedded[v]) for score in others))
    total, pairs, _ = validation.count(embedded[validation.nodes], scorer).tolist()
    assert pairs == len(own.val)
    assert total / 2**16 == pytest.approx(sum(1 / rank for rank in ranks), abs=1e-3)


@pytest.mark.parametrize("kind", ["dot", "distmult", "mlp"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nodes_that_are_alike_share_a_rank(kind: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    scorer, same = (
        Scorer(kind, 64).to(dtype),
        torch.randn(20, 1, 64, dtype=dtype).expand(20, 500, 64),
    )
    for embedded in same:
        own = scorer.pairs(embedded[:9], embedded[9:18])
        assert rank_among(own, scorer.against(embedded[:9], embedded)).tolist() == [251.0] * 9
