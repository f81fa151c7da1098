"""What the workers make sure of before they start: that they work on the same run, and how large it is."""

from dataclasses import dataclass

import torch
from torch import Tensor

from partitioning.directory.read import PartitionDirectory
from partitioning.directory.types import Partition
from partitioning.errors import InputError
from retexo.comm.collectives import Communicator
from retexo.comm.traffic import Purpose

SETUP = Purpose("setup")

NO_DIGEST = "0" * 64
"""Where all workers are threads of one process: there is nothing to compare."""


@dataclass(frozen=True)
class GraphInfo:
    """What all workers agree on."""

    num_train: int
    num_val: int
    num_test: int
    num_features: int
    num_classes: int
    multilabel: bool
    part_sizes: tuple[int, ...]
    """Inner nodes by rank."""
    untrained: frozenset[int]
    """Ranks without training nodes."""
    degrees_stored: bool
    """Whether every part knows the out-degrees of its halo nodes."""
    ogb_name: str | None
    """The Open Graph Benchmark's name of the graph, if it is one of its."""

    @property
    def all_nodes_used(self) -> bool:
        """Whether every node is a training, validation or test node."""
        return self.num_train + self.num_val + self.num_test == sum(self.part_sizes)


def agree_on_graph_info(
    comm: Communicator, partition: Partition, directory: PartitionDirectory, settings: str, *, training: bool = True
) -> GraphInfo:
    """Compare digests over all workers and add up what each of them holds: one all-gather of 10 int64."""
    own = [
        _number(directory.digest()),
        _number(settings),
        *(int(mask.sum()) for mask in (partition.train_mask, partition.val_mask, partition.test_mask)),
        partition.features.shape[1],
        num_classes(partition, directory),
        partition.num_inner,
        int(partition.multilabel),
        int(partition.out_degree is not None),
    ]
    everyone = comm.all_gather(torch.tensor(own), SETUP)
    _check_equal(everyone[:, 0], directory.remedy)
    _check_equal(everyone[:, 1], "other settings; start every node with the same command, node_rank apart")
    holders = everyone[:, 7] > 0  # an empty part need not know the width
    widths = ", ".join(map(str, everyone[:, 5].tolist()))
    _check_equal(everyone[:, 5], f"features of another width (by rank: {widths}); make them the same", holders)
    otherwise = "multi-label labels where others have one class a node, or the reverse"
    _check_equal(everyone[:, 8], otherwise, holders)
    meta = directory.meta
    totals = everyone[:, 2:5].sum(dim=0).tolist()
    if training and totals[0] == 0:
        raise InputError("the partitions hold no training nodes; choose another split and partition again")
    return GraphInfo(
        num_train=totals[0],
        num_val=totals[1],
        num_test=totals[2],
        num_features=int(everyone[:, 5].max()),
        num_classes=int(everyone[:, 6].max()),
        multilabel=bool(everyone[:, 8].max()),
        part_sizes=tuple(everyone[:, 7].tolist()),
        untrained=frozenset((everyone[:, 2] == 0).nonzero()[:, 0].tolist()),
        degrees_stored=bool(everyone[:, 9].min()),
        ogb_name=meta.dataset if meta is not None and meta.dataset.startswith("ogbn-") else None,
    )


def num_classes(partition: Partition, directory: PartitionDirectory) -> int:
    if directory.stated_classes is not None:
        return directory.stated_classes
    if partition.multilabel:
        return partition.labels.shape[1]
    return int(partition.labels.max()) + 1 if partition.num_inner else 0


def _number(hex_digest: str) -> int:
    """The first 63 bits."""
    return int(hex_digest[:16], 16) >> 1


def _check_equal(values: Tensor, otherwise: str, among: Tensor | None = None) -> None:
    """InputError unless the values, [W], are equal; among the ranks of a mask, bool [W]."""
    ranks = (torch.ones_like(values) if among is None else among).nonzero()[:, 0]
    differing = ranks[values[ranks] != values[ranks[:1]]].tolist()
    if differing:
        raise InputError(f"rank(s) {', '.join(map(str, differing))} differ from rank {int(ranks[0])}: {otherwise}")
