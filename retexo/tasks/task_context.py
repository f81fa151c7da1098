"""What a task reads on one worker, whichever trainer trains."""

from dataclasses import dataclass
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
