"""ROC AUC, average precision and thresholds by histograms, against scikit-learn."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics
from support import graph_info, train_settings
from torch import Tensor

from retexo.comm.collectives import Communicator
from retexo.comm.thread_transport import run_threads
from retexo.tasks.classification_scores import sum_histograms
from retexo.tasks.metrics import average_precision, roc_auc
from retexo.tasks.node_classification import NodeClassification
from retexo.tasks.round_metrics import RankingMetric
from retexo.tasks.score_histogram import (
    best_f1_edge,
    count_scores,
    even_bin_edges,
    from_key,
    to_keys,
)
from retexo.tasks.task_context import TaskContext


def drawn(num_nodes: int, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Scores in a narrow range, as logits of a rare class are, and whether each is positive."""
    generator = torch.Generator().manual_seed(seed)
    is_positive = torch.rand(num_nodes, generator=generator) < share
    is_positive[:2] = torch.tensor([True, False])
    return torch.randn(num_nodes, generator=generator) / 2 + is_positive - 3.5, is_positive


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1))
def test_keys_have_the_order_of_scores(scores: list[float]) -> None:
    values = torch.tensor(scores)
    keys = to_keys(values)
    assert torch.equal(keys[:, None] < keys, values[:, None] < values)
    finite = [
        (key, each) for key, each in zip(keys.tolist(), scores, strict=True) if math.isfinite(each)
    ]
    assert all(from_key(key) == each for key, each in finite)


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1))
def test_few_scores_are_scored_exactly(cells: list[tuple[int, bool]]) -> None:
    """With a bin for each value, ROC AUC is scikit-learn's, ties included."""
    scores = torch.tensor([float(value) for value, _ in cells])
    is_positive = torch.tensor([each for _, each in cells])
    counts = count_scores(scores, is_positive, to_keys(torch.arange(1.0, 6.0)))
    if len(set(is_positive.tolist())) < 2:
        assert math.isnan(roc_auc(counts))
        return
    assert roc_auc(counts) == pytest.approx(metrics.roc_auc_score(is_positive, scores))


@given(st.lists(st.booleans(), min_size=1).filter(any))
def test_average_precision_is_exact_without_ties(order: list[bool]) -> None:
    scores, is_positive = -torch.arange(float(len(order))), torch.tensor(order)
    counts = count_scores(scores, is_positive, to_keys(scores).sort().values[1:])
    expected = metrics.average_precision_score(is_positive, scores)
    assert average_precision(counts) == pytest.approx(expected)


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize(("num_nodes", "share"), [(300, 0.01), (3_000, 0.03), (20_000, 0.01)])
def test_final_scores_are_within_a_thousandth_of_scikit_learn(
    num_nodes: int, share: float, world: int
) -> None:
    scores, is_positive = drawn(num_nodes, share, 4)
    labels, logits = is_positive.long(), torch.stack((-scores / 2, scores / 2), dim=1)
    masks = {"train_mask": torch.zeros(num_nodes, dtype=torch.bool)}
    masks["val_mask"] = torch.rand(num_nodes, generator=torch.Generator().manual_seed(0)) < 0.5
    masks["val_mask"][:2] = True
    masks["test_mask"] = ~masks["val_mask"]
    masks["test_mask"][:2] = True

    def work(comm: Communicator) -> dict[str, Tensor]:
        own = slice(comm.rank, None, comm.world_size)

        class Nodes:
            """This worker's nodes."""

        for name, mask in masks.items():
            setattr(Nodes, name, mask[own])
        context = TaskContext(
            settings=train_settings(),
            partition=Nodes,  # type: ignore[arg-type]
            labels=labels[own],
            graph_info=graph_info(num_train=0, num_val=num_nodes // 2, num_test=num_nodes // 2),
            task=NodeClassification(2, False),
            comm=comm,
        )
        return {name: each.counts for name, each in sum_histograms(context, logits[own]).items()}

    found, *others = run_threads(world, work)
    for name, counts in found.items():
        assert all(torch.equal(counts, each[name]) for each in others)
        mask = masks[f"{name}_mask"]
        assert counts.sum(dim=1).tolist() == [
            int((~is_positive & mask).sum()),
            int((is_positive & mask).sum()),
        ]
        arrays = is_positive[mask], scores[mask]
        assert roc_auc(counts) == pytest.approx(metrics.roc_auc_score(*arrays), abs=1e-3)
        assert average_precision(counts) == pytest.approx(
            metrics.average_precision_score(*arrays), abs=1e-3
        )


def test_edges_of_rounds_follow_the_scores() -> None:
    """The same edges on every worker; close to exact after a few rounds, also when scores move."""
    task = NodeClassification(2, False)
    metric = RankingMetric("roc_auc", task.scores, with_loss=False)
    for number in range(12):
        scores, is_positive = drawn(3_000, 0.03, number)
        scores = scores * (1 + number / 4) + number / 4
        logits = torch.stack((torch.zeros_like(scores), scores), dim=1)
        metric.start()
        value = metric.value(metric.count(logits, is_positive.long()), math.nan)
        if number >= 4:
            assert value == pytest.approx(metrics.roc_auc_score(is_positive, scores), abs=5e-3)
    again = RankingMetric("roc_auc", task.scores, with_loss=False)
    again.load_state(metric.state())
    for each in (metric, again):
        each.start()
    assert torch.equal(
        metric.count(logits, is_positive.long()), again.count(logits, is_positive.long())
    )


def test_the_threshold_has_the_best_f1_of_its_histogram() -> None:
    scores, is_positive = drawn(500, 0.1, 0)
    edges = to_keys(torch.linspace(-6, 0, 61))
    edge = best_f1_edge(edges, count_scores(scores, is_positive, edges))
    assert edge is not None
    best = metrics.f1_score(is_positive, scores >= from_key(edge))
    candidates = [
        metrics.f1_score(is_positive, scores >= from_key(each)) for each in edges.tolist()
    ]
    assert best == pytest.approx(np.max(candidates))
    assert best_f1_edge(even_bin_edges(8), torch.zeros(2, 8, dtype=torch.int64)) is None
