"""Losses, counts, scores and label propagation of node classification.

They are compared with torch and scikit-learn; ROC AUC, average precision and thresholds come from
histograms.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize
from sklearn import metrics
from sklearn.utils.class_weight import compute_class_weight
from support import graph_info, refusing, train_settings
from torch import Tensor
from torch.nn import functional
from torchmetrics.functional import classification

from retexo.comm.collectives import Communicator, ReduceInput
from retexo.comm.thread_transport import run_threads
from retexo.comm.traffic_meter import MessageTag
from retexo.models.stage import OutputHeads
from retexo.tasks import classification_scores
from retexo.tasks.classification_scores import (
    choose_offset_share,
    class_rows,
    compute_scores,
    count_confusion,
    find_warnings,
    score_baseline,
    sum_histograms,
    sum_probabilities,
)
from retexo.tasks.metrics import average_precision, roc_auc
from retexo.tasks.node_classification import NodeClassification
from retexo.tasks.output_heads import first_step_helps, fit_class_scaling
from retexo.tasks.round_metrics import RankingMetric, choose_metric_name
from retexo.tasks.score_histogram import (
    best_f1_edge,
    count_scores,
    even_bin_edges,
    from_key,
    to_keys,
)
from retexo.tasks.task_context import TaskContext


def draw_logits(num_nodes: int, num_classes: int, multi: bool, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(num_nodes, num_classes, generator=generator)
    if multi:
        return logits, (torch.rand(num_nodes, num_classes, generator=generator) < 0.3).float()
    return logits, torch.randint(num_classes, (num_nodes,), generator=generator)


def score_predictions(task: NodeClassification, logits: Tensor, labels: Tensor) -> dict[str, float]:
    counts = task.count_by_class(task.predict(logits), labels)
    sums = sum_probabilities(task, logits, labels)
    return compute_scores(counts, sums, len(labels), multilabel=task.multilabel)


@pytest.mark.parametrize("num_nodes", [5, 200])
@pytest.mark.parametrize("num_classes", [2, 7])
def test_scores_of_classes_equal_scikit_learn(
    num_nodes: int, num_classes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(classification_scores, "NODES_AT_ONCE", 30)
    logits, labels = draw_logits(num_nodes, num_classes, False, num_nodes)
    scores = score_predictions(NodeClassification(num_classes, False), logits, labels)
    predicted, probabilities = (
        logits.argmax(dim=1).numpy(),
        logits.double().softmax(dim=1).numpy(),
    )
    actual = labels.numpy()
    classes = range(num_classes)
    expected = {
        "accuracy": float(np.mean(predicted == actual)),
        "micro_f1": metrics.f1_score(actual, predicted, average="micro"),
        "macro_f1": metrics.f1_score(actual, predicted, average="macro"),
        "balanced_accuracy": np.mean(
            [np.mean(predicted[actual == label] == label) for label in np.unique(actual)]
        ),
        "log_loss": metrics.log_loss(actual, probabilities, labels=classes),
        "brier": metrics.brier_score_loss(
            actual, probabilities if num_classes > 2 else probabilities[:, 1], labels=classes
        ),
        "calibration_error": float(
            classification.multiclass_calibration_error(
                logits.double().softmax(dim=1), labels, num_classes, n_bins=15
            )
        ),
    }
    if num_classes == 2:
        positive = logits.double().softmax(dim=1)[:, 1]
        expected["positive_calibration_error"] = float(
            classification.binary_calibration_error(positive, labels, n_bins=15)
        )
    assert scores == pytest.approx(expected, rel=1e-5)


def test_scores_of_labels_equal_scikit_learn_where_they_are_known() -> None:
    logits, labels = draw_logits(200, 5, True, 3)
    labels[torch.rand(200, 5, generator=torch.Generator().manual_seed(1)) < 0.4] = math.nan
    known = ~labels.isnan()
    scores = score_predictions(NodeClassification(5, True), logits, labels)
    actual, predicted = labels[known].int(), (logits > 0)[known].int()
    probabilities = logits.double().sigmoid()[known]
    assert scores["accuracy"] == pytest.approx(metrics.accuracy_score(actual, predicted))
    assert scores["micro_f1"] == pytest.approx(metrics.f1_score(actual, predicted))
    by_class = [
        metrics.f1_score(labels[mask, column], (logits > 0)[mask, column])
        for column, mask in enumerate(known.T)
    ]
    assert scores["macro_f1"] == pytest.approx(np.mean(by_class))
    assert scores["log_loss"] == pytest.approx(metrics.log_loss(actual, probabilities))
    assert scores["brier"] == pytest.approx(metrics.brier_score_loss(actual, probabilities))


@pytest.mark.parametrize("num_classes", [2, 4])
def test_the_baseline_is_scikit_learns_dummy_and_the_confusion_its_matrix(num_classes: int) -> None:
    task = NodeClassification(num_classes, False)
    logits, labels = draw_logits(90, num_classes, False, 3)
    labels[:20] = 0
    predicted, dummy = task.predict(logits), torch.zeros(90, dtype=torch.int64)
    counts = task.count_by_class(predicted, labels)
    baseline = score_baseline(task, {"train": counts, "val": counts, "test": counts}, ())
    expected = {
        "class": 0,
        "accuracy": metrics.accuracy_score(labels, dummy),
        "micro_f1": metrics.f1_score(labels, dummy, average="micro"),
        "macro_f1": metrics.f1_score(labels, dummy, average="macro"),
        "balanced_accuracy": metrics.balanced_accuracy_score(labels, dummy),
    }
    if num_classes == 2:
        expected |= {"roc_auc": 0.5, "average_precision": float((labels == 1).double().mean())}
    assert baseline == pytest.approx(expected)
    mask = torch.arange(90) % 3 > 0
    confusion = count_confusion(task, predicted, labels, mask)
    assert confusion.tolist() == metrics.confusion_matrix(labels[mask], predicted[mask]).tolist()
    assert count_confusion(NodeClassification(31, False), predicted, labels, mask).numel() == 0


@pytest.mark.parametrize("multi", [False, True])
def test_nothing_to_count(multi: bool) -> None:
    scores = score_predictions(NodeClassification(3, multi), *draw_logits(0, 3, multi, 0))
    assert all(math.isnan(value) for value in scores.values())


def test_weighted_losses_are_those_of_torch() -> None:
    logits, labels = draw_logits(50, 3, False, 0)
    weights = torch.tensor([0.5, 2.0, 1.0])
    task = NodeClassification(3, False, weights=weights.expand(2, -1))
    expected = functional.cross_entropy(logits, labels, weights, reduction="sum")
    assert float(task.loss_sum(logits, labels)) == pytest.approx(float(expected))


def test_the_focal_loss_is_that_of_its_equation() -> None:
    logits, labels = draw_logits(50, 3, False, 0)
    own = logits.softmax(dim=1).gather(1, labels[:, None])
    task = NodeClassification(3, False, loss_name="focal", focal_gamma=1.5)
    expected = -((1 - own) ** 1.5 * own.log()).sum()
    assert float(task.loss_sum(logits, labels)) == pytest.approx(float(expected), rel=1e-5)
    several, marks = draw_logits(50, 3, True, 0)
    chance = torch.where(marks > 0.5, several.sigmoid(), 1 - several.sigmoid())
    task = NodeClassification(3, True, loss_name="focal", focal_gamma=1.5)
    expected = -((1 - chance) ** 1.5 * chance.log()).sum() / 3
    assert float(task.loss_sum(several, marks)) == pytest.approx(float(expected), rel=1e-5)


def test_unknown_labels_have_no_loss_and_no_gradient() -> None:
    logits = torch.zeros(2, 2, requires_grad=True)
    labels = torch.tensor([[1.0, math.nan], [math.nan, 0.0]])
    loss = NodeClassification(2, True).loss_sum(logits, labels)
    loss.backward()  # type: ignore[no-untyped-call]
    assert float(loss.detach()) == pytest.approx(math.log(2))
    assert logits.grad.tolist() == [[-0.25, 0.0], [0.0, 0.25]]


def make_task(
    labels: Tensor, *overrides: str, multi: bool = False, names: Sequence[object] = ()
) -> NodeClassification:
    """The task of a run whose training nodes have these labels, as the only worker makes it."""
    every = torch.ones(len(labels), dtype=torch.bool)
    nodes: Any = SimpleNamespace(labels=labels, train_mask=every, val_mask=every, test_mask=every)
    num_classes = labels.shape[1] if multi else int(labels.max()) + 1
    info = graph_info(num_classes=num_classes, multilabel=multi)
    settings = train_settings(*overrides)
    return run_threads(1, lambda comm: NodeClassification.of(settings, nodes, info, comm, names))[0]


def test_balanced_weights_are_those_of_scikit_learn() -> None:
    labels = torch.tensor([0] * 10 + [1] * 3 + [2])
    task = make_task(labels, "task.class_weights=balanced")
    expected = compute_class_weight("balanced", classes=np.arange(3), y=labels.numpy())
    assert task.weights[0].tolist() == pytest.approx(expected.tolist())
    weights = make_task(labels, "class_weights=[1,2,4]").weights
    assert (weights[0] / weights[0][0]).tolist() == pytest.approx([1, 2, 4])
    assert float(weights[0][labels].mean()) == pytest.approx(1)


def test_balanced_weights_of_labels_give_both_values_the_same_total() -> None:
    labels = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0], [0.0, math.nan]])
    task = make_task(labels, "task.class_weights=balanced", multi=True)
    having, lacking = task.weights.tolist()
    assert having == pytest.approx([2.0, 1.5])
    assert lacking == pytest.approx([2 / 3, 0.75])


@pytest.mark.parametrize(
    ("counts", "weighted"),
    [
        ([96, 4], True),
        ([4, 96], True),
        ([95, 5], False),
        ([0, 20], False),
        ([75, 13, 12], True),
        ([74, 13, 13], False),
    ],
)
def test_by_default_classes_are_balanced_where_one_is_very_rare(
    counts: list[int], weighted: bool
) -> None:
    task = make_task(torch.arange(len(counts)).repeat_interleave(torch.tensor(counts)))
    assert (task.weights is not None) == weighted


@pytest.mark.parametrize("multi", [False, True])
def test_offsets_undo_the_class_weights(multi: bool) -> None:
    """The constant logits with the least weighted loss give the shares of the labels."""
    labels = torch.tensor([0] * 10 + [1] * 3 + [2])
    labels = functional.one_hot(labels).float() if multi else labels
    task = make_task(labels, "class_weights=[1,2,4]", multi=multi)
    logits = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([logits], max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = task.loss_sum(logits.expand(len(labels), -1), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    heads = OutputHeads((0,), offsets=task.offsets)
    calibrated = heads.calibrate(logits.detach())
    shares = calibrated.sigmoid() if multi else calibrated.softmax(dim=0)
    assert shares.tolist() == pytest.approx([10 / 14, 3 / 14, 1 / 14], abs=1e-3)


@pytest.mark.parametrize(("num_classes", "multi"), [(2, False), (4, False), (3, True)])
def test_class_scaling_is_the_optimum_whatever_the_partitions(
    num_classes: int, multi: bool
) -> None:
    """scipy finds the same minimum of the penalised log loss, finite without nodes of a class."""
    logits, labels = draw_logits(600, num_classes, multi, 5)
    logits = 3 * logits + torch.arange(num_classes)
    if multi:
        logits += 2 * labels
        labels[::7] = math.nan
    else:
        labels[labels == 3] = 0
        labels[torch.rand(600, generator=torch.Generator().manual_seed(2)) < 0.8] = 0
        logits[torch.arange(600), labels] += 2
    heads = OutputHeads((0,), offsets=tuple(map(float, range(num_classes))), has_labels=multi)

    def fit(comm: Communicator) -> list[float]:
        own = slice(comm.rank, None, comm.world_size)

        def add_up(sums: Tensor) -> None:
            comm.all_reduce([ReduceInput(sums)], MessageTag("metrics"))

        return torch.cat(fit_class_scaling(heads, logits[own], labels[own], add_up)).tolist()

    inputs = logits.double() - torch.arange(num_classes)
    inputs = inputs if multi else inputs - inputs.mean(dim=1, keepdim=True)

    def loss(at: np.ndarray) -> float:
        slope, bias = torch.from_numpy(at).view(2, -1)
        scaled, known = inputs * slope + bias, ~labels.isnan()
        total = (
            functional.binary_cross_entropy_with_logits(
                scaled[known], labels[known].double(), reduction="sum"
            )
            if multi
            else functional.cross_entropy(scaled, labels, reduction="sum")
        )
        return float(total) + 0.5 * float(((slope - 1) ** 2 + bias**2).sum())

    start = np.repeat([1.0, 0.0], num_classes)
    best = optimize.minimize(loss, start, method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-8})
    one, three = run_threads(1, fit)[0], run_threads(3, fit)
    assert loss(np.array(one)) <= best.fun + 1e-9
    assert one == pytest.approx(best.x.tolist(), abs=1e-3)
    for parameters in three:
        assert parameters == pytest.approx(one, rel=1e-9)
    scaled = replace(heads, slopes=tuple(one[:num_classes]), biases=tuple(one[num_classes:]))
    shifted = scaled.calibrate(logits.double() + (0 if multi else 5))
    expected = inputs * torch.tensor(one[:num_classes]) + torch.tensor(one[num_classes:])
    torch.testing.assert_close(shifted, expected.double(), rtol=1e-5, atol=1e-5)


def test_validation_chooses_how_much_of_the_weights_a_prediction_keeps() -> None:
    labels = torch.tensor([0] * 180 + [1] * 15 + [2] * 5)
    settings = ("class_weights=balanced", "stopping.metric=macro_f1")
    task = make_task(labels, *settings)
    generator = torch.Generator().manual_seed(0)
    signal = 4 * functional.one_hot(labels) + 2 * torch.randn(200, 3, generator=generator)
    heads = OutputHeads((0,), offsets=task.offsets, temperature=2.0)
    logits = heads.calibrate(signal)
    partition = SimpleNamespace(val_mask=torch.ones(200, dtype=torch.bool))

    def work(comm: Communicator) -> float:
        context = TaskContext(
            settings=train_settings(*settings),
            partition=partition,  # type: ignore[arg-type]
            labels=labels,
            graph_info=graph_info(num_classes=3, num_val=200),
            task=task,
            comm=comm,
        )
        return choose_offset_share(context, logits, heads)

    by_share = {
        share: metrics.f1_score(
            labels,
            (signal / 2 - (1 - share) * torch.tensor(task.offsets) / 2).argmax(dim=1),
            average="macro",
        )
        for share in (0.0, 0.5, 1.0)
    }
    assert run_threads(1, work) == [max(by_share, key=by_share.__getitem__)] != [0.0]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("task.class_weights=[1,2]",), ("task.class_weights=[1, 2]", "3 classes")),
        (("stopping.metric=roc_auc",), ("stopping.metric=roc_auc", "3 classes", "macro_f1")),
    ],
)
def test_settings_that_do_not_fit_the_classes(
    overrides: tuple[str, ...], words: tuple[str, ...]
) -> None:
    with refusing(*words):
        make_task(torch.tensor([0, 1, 2]), *overrides)


@pytest.mark.parametrize(
    ("counts", "multi", "metric"),
    [
        ([50, 50], False, "accuracy"),
        ([59, 41], False, "accuracy"),
        ([61, 39], False, "roc_auc"),
        ([3, 97], False, "roc_auc"),
        ([74, 13, 13], False, "accuracy"),
        ([75, 13, 12], False, "macro_f1"),
        ([5, 95], True, "average_precision"),
    ],
)
def test_the_metric_follows_from_the_labels(counts: list[int], multi: bool, metric: str) -> None:
    having = torch.tensor(counts)
    chosen = choose_metric_name(torch.stack((having, 100 - having)), multilabel=multi)
    assert chosen == metric


def test_the_positive_class_is_the_rarer_name_or_the_larger_number() -> None:
    labels = torch.tensor([0, 1, 1, 1])
    tasks = [make_task(labels, names=names) for names in ([], [0, 1], ["fraud", "ok"])]
    assert [task.positive for task in tasks] == [1, 1, 0]


@pytest.mark.parametrize("positive", [0, 1])
def test_the_threshold_is_a_probability_of_the_positive_class(positive: int) -> None:
    logits, _ = draw_logits(500, 2, False, 1)
    heads = OutputHeads((0,), threshold=0.3, positive=positive)
    predicted = NodeClassification(2, False).with_choices(heads).predict(logits)
    is_positive = logits.softmax(dim=1)[:, positive] >= 0.3
    assert torch.equal(predicted == positive, is_positive)
    marks = NodeClassification(2, True).with_choices(heads).predict(logits)
    assert torch.equal(marks, logits.sigmoid() >= 0.3)


def test_warnings_name_what_a_score_hides() -> None:
    nothing = torch.zeros(4, 3, dtype=torch.int64)
    counts = {"train": nothing.clone(), "val": nothing.clone(), "test": nothing.clone()}
    for split, support in (("train", [8, 2, 0]), ("val", [4, 0, 0]), ("test", [7, 2, 1])):
        counts[split][0, 0] = support[0]
        counts[split][1, 0] = sum(support[1:])
        counts[split][2, 1:] = torch.tensor(support[1:])
    warnings, without_accuracy = (
        find_warnings(counts, ["a", "b", "c"], accuracy) for accuracy in (0.7, None)
    )
    assert without_accuracy == warnings[:3]
    assert warnings == [
        "no training node has class c",
        "no validation node has classes b, c",
        "never predicted: classes b, c; task.class_weights=balanced gives rare classes more weight",
        "the test accuracy, 0.7000, is not above 0.7000, the share of the most frequent class",
    ]
    first, second, _ = class_rows(counts["test"], ["a", "b", "c"])
    assert first == {"class": "a", "precision": 0.7, "recall": 1.0, "f1": 14 / 17, "support": 7}
    assert second == {"class": "b", "precision": 0.0, "recall": 0.0, "f1": 0.0, "support": 2}


def draw_scores(num_nodes: int, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Scores in a narrow range, as logits of a rare class are, and whether each is positive."""
    generator = torch.Generator().manual_seed(seed)
    is_positive = torch.rand(num_nodes, generator=generator) < share
    is_positive[:2] = torch.tensor([True, False])
    return torch.randn(num_nodes, generator=generator) / 2 + is_positive - 3.5, is_positive


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1))
def test_few_scores_are_scored_exactly(cells: list[tuple[int, bool]]) -> None:
    """With a bin for each value, ROC AUC is scikit-learn's, ties included."""
    scores = torch.tensor([float(value) for value, _ in cells])
    is_positive = torch.tensor([positive for _, positive in cells])
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
    scores, is_positive = draw_scores(num_nodes, share, 4)
    labels, logits = is_positive.long(), torch.stack((-scores / 2, scores / 2), dim=1)
    masks = {"train_mask": torch.zeros(num_nodes, dtype=torch.bool)}
    masks["val_mask"] = torch.rand(num_nodes, generator=torch.Generator().manual_seed(0)) < 0.5
    masks["val_mask"][:2] = True
    masks["test_mask"] = ~masks["val_mask"]
    masks["test_mask"][:2] = True

    def work(comm: Communicator) -> dict[str, Tensor]:
        own = slice(comm.rank, None, comm.world_size)
        nodes: Any = SimpleNamespace(**{name: mask[own] for name, mask in masks.items()})
        context = TaskContext(
            settings=train_settings(),
            partition=nodes,
            labels=labels[own],
            graph_info=graph_info(num_train=0, num_val=num_nodes // 2, num_test=num_nodes // 2),
            task=NodeClassification(2, False),
            comm=comm,
        )
        return {
            name: histogram.counts
            for name, histogram in sum_histograms(context, logits[own]).items()
        }

    histograms, *others = run_threads(world, work)
    for name, counts in histograms.items():
        assert all(torch.equal(counts, other[name]) for other in others)
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
        scores, is_positive = draw_scores(3_000, 0.03, number)
        scores = scores * (1 + number / 4) + number / 4
        logits = torch.stack((torch.zeros_like(scores), scores), dim=1)
        metric.start()
        value = metric.value(metric.count(logits, is_positive.long()), math.nan)
        if number >= 4:
            assert value == pytest.approx(metrics.roc_auc_score(is_positive, scores), abs=5e-3)
    again = RankingMetric("roc_auc", task.scores, with_loss=False)
    again.load_state(metric.state())
    for ranking in (metric, again):
        ranking.start()
    assert torch.equal(
        metric.count(logits, is_positive.long()), again.count(logits, is_positive.long())
    )


def test_the_threshold_has_the_best_f1_of_its_histogram() -> None:
    scores, is_positive = draw_scores(500, 0.1, 0)
    edges = to_keys(torch.linspace(-6, 0, 61))
    edge = best_f1_edge(edges, count_scores(scores, is_positive, edges))
    best = metrics.f1_score(is_positive, scores >= from_key(edge))
    candidates = [metrics.f1_score(is_positive, scores >= from_key(key)) for key in edges.tolist()]
    assert best == pytest.approx(np.max(candidates))
    assert best_f1_edge(even_bin_edges(8), torch.zeros(2, 8, dtype=torch.int64)) is None


@pytest.mark.parametrize(
    ("num_nodes", "num_wrong", "left", "helps"),
    [
        (40_000, 2, 0, False),  # a gain of .00005
        (40_000, 400, 0, True),  # a gain of .01
        (100, 10, 10, True),  # no gain, but less loss, and few nodes to tell by
        (100, 0, 10, False),  # a loss
    ],
)
def test_all_predictions_are_sent_for_a_gain_that_may_matter(
    num_nodes: int, num_wrong: int, left: int, helps: bool
) -> None:
    """num_wrong, left: nodes whose class is wrong before and after the first step."""

    def logits(wrong: int, sure: float) -> torch.Tensor:
        rows = torch.tensor([[sure, 0.0]]).repeat(num_nodes, 1)
        rows[:wrong] = torch.tensor([0.0, 1.0])
        return rows

    def work(comm: Communicator) -> bool:
        context: Any = SimpleNamespace(
            settings=SimpleNamespace(smoothing=SimpleNamespace(alphas=(1.0, 0.1))),
            partition=SimpleNamespace(val_mask=torch.ones(num_nodes, dtype=torch.bool)),
            labels=torch.zeros(num_nodes, dtype=torch.int64),
            graph_info=SimpleNamespace(num_val=num_nodes),
            task=NodeClassification(2, False),
            comm=comm,
        )
        return first_step_helps(context, [logits(num_wrong, 2.0), logits(left, 4.0)])

    assert run_threads(1, work) == [helps]
