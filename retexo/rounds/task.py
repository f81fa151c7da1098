"""What the rounds of training need of a task."""

from typing import Protocol

from torch import Tensor

from partitioning.directory.partition import Partition


class Task(Protocol):
    """A task (retexo.tasks); its loss and its counts are computed by its objective."""

    num_classes: int
    """C, the width of a head."""

    @staticmethod
    def count_seeds(partition: Partition) -> list[int]:
        """Seeds of a partition for training, validation and test: nodes, or pairs of nodes."""

    @staticmethod
    def metric(counts: Tensor) -> float:
        """The metric that chooses the best round; more is better.

        counts: int64 [3], summed over all workers.
        """
