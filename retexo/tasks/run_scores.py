"""The scores that a run reports, of any task."""

from dataclasses import dataclass, field, fields
from typing import Any

Scores = dict[str, dict[str, float]]
"""By split, then by metric; link prediction has no training scores."""


@dataclass(frozen=True)
class RunScores:
    """What a run reports of its predictions."""

    scores: Scores
    classes: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """By split the precision, recall, F1 and support of each class."""
    targets: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """By split the MAE, RMSE, R2 and support of each target."""
    baseline: dict[str, Any] = field(default_factory=dict)
    """Test scores without a network: of the most frequent class, or the mean of each target."""
    standard_error: dict[str, float] = field(default_factory=dict)
    """Standard errors of the test scores that come from histograms."""
    confusion: list[list[int]] = field(default_factory=list)
    """Test nodes by class and predicted class; empty for labels and many classes."""
    calibration: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    """By split, see calibration_rows."""
    score_bins: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    """By split, see summarise_bins; empty for more than two classes."""
    warnings: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return scores by split, and the other fields that are not empty, as in summary.json."""
        others = [field.name for field in fields(self) if field.name != "scores"]
        return {**self.scores, **{name: value for name in others if (value := getattr(self, name))}}
