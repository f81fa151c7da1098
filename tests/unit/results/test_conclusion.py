"""The sentences at the end of a run, and their standard errors."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics

from retexo.results.conclusion import conclude, standard_error
from retexo.tasks import score_histogram
from retexo.tasks.round_metrics import RANKING
from retexo.tasks.score_histogram import count_scores, even_bin_edges, refine_edges


def summary_of(truth: np.ndarray, predicted: np.ndarray, metric: str, value: float) -> Any:
    """The fields of summary.json that the sentences read."""
    recalls = metrics.recall_score(truth, predicted, average=None)
    rows = [
        {"class": each, "recall": recall, "support": int((truth == each).sum())}
        for each, recall in enumerate(recalls)
    ]
    return {
        "test": {metric: value},
        "chosen": {"metric": metric},
        "classes": {"test": rows},
        "confusion": metrics.confusion_matrix(truth, predicted).tolist(),
    }


SCORES = {
    "accuracy": metrics.accuracy_score,
    "balanced_accuracy": metrics.balanced_accuracy_score,
    "macro_f1": lambda truth, predicted: metrics.f1_score(truth, predicted, average="macro"),
    "roc_auc": metrics.roc_auc_score,
    "average_precision": metrics.average_precision_score,
}


def standard_error_of_ranking(scores: np.ndarray, truth: np.ndarray, score: Any) -> float:
    edges = even_bin_edges(64)
    for _ in range(4):
        counts = count_scores(torch.from_numpy(scores), torch.from_numpy(truth > 0), edges)
        edges = refine_edges(edges, counts)
    return score_histogram.standard_error(score, counts)


@pytest.mark.parametrize("name", SCORES)
def test_a_standard_error_is_the_deviation_over_other_test_nodes(name: str) -> None:
    """Of 600 nodes, a fifth of them positive, drawn 200 times."""
    rng = np.random.default_rng(0)
    values, errors = [], []
    for _ in range(200):
        truth = (rng.random(600) < 0.2).astype(int)
        scores = rng.normal(size=600) + 1.2 * truth
        ranked = name in ("roc_auc", "average_precision")
        value = SCORES[name](truth, scores if ranked else (scores > 1).astype(int))
        values.append(value)
        if len(errors) < 20:
            summary = summary_of(truth, (scores > 1).astype(int), name, value)
            errors.append(
                standard_error_of_ranking(scores, truth, RANKING[name])
                if ranked
                else standard_error(summary, name)
            )
    assert np.mean(errors) == pytest.approx(np.std(values), rel=0.15)


def finished(**changes: Any) -> dict[str, Any]:
    summary = {
        "train": {"accuracy": 0.99},
        "test": {"accuracy": 0.8},
        "chosen": {"metric": "accuracy"},
        "classes": {"test": [{"class": "a", "support": 60}, {"class": "b", "support": 40}]},
        "baseline": {"class": "a", "accuracy": 0.6},
        "rounds": [7, 20],
        "bytes": {"total": 1500, "by_kind": {"setup": 500, "features": 1000}, "by_peer": [[], []]},
        "settings": {"num_rounds": [20], "stopping": {"patience": 5}, "seed": 1},
    }
    return {**summary, **changes}


def test_the_sentences_of_a_run() -> None:
    assert conclude(finished(), "runs/1") == [
        "Accuracy on test is 0.8000 (standard error 0.0400); always predicting a, the most frequent"
        " class, has 0.6000.",
        "The 2 workers sent 1.5 kB: features 67%, setup 33%.",
        "Layer 1 had no more rounds left: a larger num_rounds may help.",
        "On training nodes it is 0.9900: more dropout or weight_decay may help.",
        "Other seeds differ, too: seeds=[0,1,2] shows by how much.",
        "Curves, classes and bytes: app=report report.runs=runs/1",
    ]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"test": {"accuracy": 0.65}},
            "not clearly above the 0.6000 of always predicting a, the most",
        ),
        ({"test": {"accuracy": None}}, "There are no test nodes to judge it by."),
        ({"chosen": {"metric": "loss"}}, "Accuracy on test is 0.8000"),
        (
            {
                "chosen": {"metric": "mrr"},
                "test": {"mrr": 0.5, "ranked": 100},
                "baselines": {"cosine": {"mrr": 0.1}, "Adamic-Adar": {"mrr": 0.3}},
            },
            "MRR on test is 0.5000 (standard error 0.0500); Adamic-Adar without training has",
        ),
        (
            {
                "chosen": {"metric": "loss"},
                "targets": {"test": [{"support": 100}]},
                "test": {"r2": 0.5},
                "baseline": {"r2": -0.01},
            },
            "R2 on test is 0.5000 (standard error 0.0707); the mean of the training nodes has",
        ),
    ],
)
def test_the_score_of_other_runs(changes: dict[str, Any], sentence: str) -> None:
    assert sentence in conclude(finished(**changes), "run")[0]
