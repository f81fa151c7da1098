"""What the rounds of training need of a task."""

from abc import ABC, abstractmethod
from typing import Protocol

import torch
from torch import Tensor

from partitioning.directory.partition import Partition


class RoundMetric(ABC):
    """Validation metric of one layer's rounds, from counts that are summed over workers."""

    name: str
    num_counts: int
    """K, how many counts a worker sends."""
    with_loss: bool
    """Whether workers send their validation loss, too."""

    @abstractmethod
    def value(self, counts: Tensor, loss: float) -> float:
        """Return the metric; more is better.

        It may also choose how the next round counts, the same way on every worker.

        Args:
            counts: int64 [K], summed over all workers.
            loss: mean validation loss; NaN without `with_loss`.
        """

    def state(self) -> Tensor:
        """Return what the next round's counts depend on, int64 [n]; it is saved with the round."""
        return torch.empty(0, dtype=torch.int64)

    def load_state(self, saved: Tensor) -> None:  # noqa: B027
        """Restore what `state` returned."""


class Task(Protocol):
    """A task whose seeds are not nodes; of others the labels tell what the start needs."""

    num_classes: int
    """C, the width of a head."""

    @staticmethod
    def count_seeds(partition: Partition) -> list[int]:
        """Return seeds of a partition for training, validation and test: pairs of nodes."""
