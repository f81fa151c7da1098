"""What a task reads on one worker, whichever trainer trains, and what it reports."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from torch import Tensor

from partitioning.directory.partition import Partition
from retexo.comm.collectives import Communicator
from retexo.rounds.graph_info import GraphInfo
from retexo.settings.run_settings import TrainSettings


@dataclass(eq=False, kw_only=True)
class TaskContext:
    """This worker's labelled nodes or pairs, and the way to the other workers.

    I inner nodes, C classes.
    """

    settings: TrainSettings
    partition: Partition
    """The nodes that have labels, without features; in a heterogeneous graph without edges."""
    labels: Tensor
    """[I] or [I, C], on the device."""
    graph_info: GraphInfo
    task: Any
    """A Task; its objective and its scores know which."""
    comm: Communicator

    @property
    def links(self) -> Mapping[str, Tensor]:
        """Return what the partition has for link prediction, see Partition.links."""
        assert self.partition.links is not None
        return self.partition.links

    @property
    def in_a_split(self) -> Tensor:
        """Training, validation and test nodes, bool [I]."""
        partition = self.partition
        return partition.train_mask | partition.val_mask | partition.test_mask

    @property
    def split_masks(self) -> dict[str, tuple[Tensor, int]]:
        """Return the nodes of each split, bool [I], and how many all workers have."""
        part, info = self.partition, self.graph_info
        return {
            "train": (part.train_mask, info.num_train),
            "val": (part.val_mask, info.num_val),
            "test": (part.test_mask, info.num_test),
        }


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
    score_bins: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    """By split, see summarise_bins; empty for more than two classes."""
    warnings: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return scores by split, and the other fields that are not empty, as in summary.json."""
        others = [field.name for field in fields(self) if field.name != "scores"]
        return {**self.scores, **{name: value for name in others if (value := getattr(self, name))}}
