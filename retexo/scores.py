"""Scores of summary.json by name. What chooses, compares, shows or describes scores reads this.

A score that is a formula of the true and false positives and false negatives of each class needs an
entry here and that formula, `by_class` in retexo/tasks/metrics.py.
"""

from dataclasses import dataclass

from partitioning.errors import InputError
from partitioning.links.score_names import CUTOFFS, LIST_SCORES


@dataclass(frozen=True)
class Score:
    """What is known of a score besides its formula."""

    title: str
    """As sentences have it."""
    label: str = ""
    """As tables of reports have it; empty: it is not in them."""
    stops: bool = False
    """Whether it may be stopping.metric."""
    of_nodes: bool = True
    """Whether nodes have it; otherwise it is of links."""
    less_is_better: bool = False
    validates: bool = False
    """Whether reports show it for validation, too."""


SCORES: dict[str, Score] = {
    "accuracy": Score("accuracy", "accuracy", stops=True, validates=True),
    "micro_f1": Score("micro-F1", "micro F1", stops=True),
    "macro_f1": Score("macro-F1", "macro F1", stops=True),
    "balanced_accuracy": Score("balanced accuracy", "balanced accuracy", stops=True),
    "roc_auc": Score("ROC AUC", "ROC AUC", stops=True),
    "average_precision": Score("average precision", "average precision", stops=True),
    "log_loss": Score("log loss", less_is_better=True),
    "brier": Score("Brier score", less_is_better=True),
    "calibration_error": Score("calibration error", less_is_better=True),
    "positive_calibration_error": Score("positive calibration error", less_is_better=True),
    "r2": Score("R2", "R2", validates=True),
    "mae": Score("MAE", "MAE", less_is_better=True),
    "rmse": Score("RMSE", "RMSE", less_is_better=True),
    "mrr": Score("MRR", "MRR", stops=True, of_nodes=False, validates=True),
    "auc": Score("AUC", "AUC", stops=True, of_nodes=False),
    **{
        f"{name}@{k}": Score(f"{title}@{k}", f"{title}@{k}", stops=True, of_nodes=False)
        for k in CUTOFFS
        for name, title in LIST_SCORES.items()
    },
}
"""By name in summary.json; besides them there are hits@K and those of OGB's evaluators."""
OF_NODES = tuple(name for name, score in SCORES.items() if score.stops and score.of_nodes)
"""Metrics that choose the best round of a node classification."""
OF_LINKS = tuple(name for name, score in SCORES.items() if score.stops and not score.of_nodes)
"""Metrics that choose the best round of a link prediction."""


def check_stopping_metric(metric: str, *, links: bool) -> None:
    """Raise InputError if stopping.metric is for another task; links have no `loss`.

    links: whether the task is link prediction.
    """
    if metric in OF_LINKS and not links:
        raise InputError(
            f"stopping.metric={metric}: only for task=link_prediction; choose one of auto,"
            f" {', '.join(OF_NODES)}, loss"
        )
    if links and metric not in ("auto", *OF_LINKS):
        raise InputError(
            f"stopping.metric={metric}: not for task=link_prediction; choose one of auto,"
            f" {', '.join(OF_LINKS)}"
        )


def title_of(name: str) -> str:
    """Return the name of a score as sentences have it."""
    return SCORES[name].title if name in SCORES else name.replace("_", " ")
