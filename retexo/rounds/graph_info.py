"""Start-up agreement of all workers: the sizes of the whole graph."""

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from partitioning.directory.meta import Meta
from partitioning.directory.partition import Partition
from partitioning.directory.read_directory import PartitionDirectory
from partitioning.errors import InputError
from partitioning.graph.graph_data import PLAIN_RELATION
from retexo.comm.collectives import Communicator
from retexo.comm.traffic_meter import SETUP
from retexo.rounds.task import Task

LABEL_KINDS = ("multiclass", "multilabel", "regression")


@dataclass(frozen=True)
class GraphInfo:
    """Properties of the whole graph, known to all workers."""

    num_train: int
    """Training nodes, or pairs where links are predicted; likewise the next two."""
    num_val: int
    num_test: int
    num_features: int
    num_classes: int
    """C; where links are predicted, the width of the embeddings."""
    multilabel: bool
    part_sizes: tuple[int, ...]
    """Inner nodes by rank."""
    untrained_ranks: frozenset[int]
    """Ranks without training nodes."""
    degrees_stored: bool
    """Whether every partition stores the out-degrees of its halo nodes."""
    ogb_name: str | None
    """The graph's name in the Open Graph Benchmark; None where that has not one class per node."""
    weighted: bool = False
    """Whether any partition has edge weights."""
    fast_bf16: bool = False
    """Whether all workers compute on processors that have instructions for bfloat16 products."""
    num_edge_features: int = 0
    """K"""
    evaluator: str = ""
    """Metric of OGB's link splits: hits@K or mrr."""
    num_candidates: int = 0
    """For links: number of possible destination nodes; 0 if every node is one."""
    num_ranks_by_split: tuple[int, ...] = (0, 0, 0)
    """Number of ranks with training, validation and test nodes."""
    regression: bool = False
    """Whether labels are numbers; num_classes is then the number of targets."""

    @property
    def id_bounds(self) -> Tensor:
        """Return the first global id of each rank's inner nodes, then their number, [W + 1]."""
        return torch.tensor([0, *itertools.accumulate(self.part_sizes)])

    @property
    def num_in_split(self) -> int:
        """Number of training, validation and test nodes."""
        return self.num_train + self.num_val + self.num_test

    @property
    def all_nodes_used(self) -> bool:
        """Whether every node is a training, validation or test node."""
        return self.num_in_split == sum(self.part_sizes)


def agree_on_graph_info(
    comm: Communicator,
    partition: Partition,
    directory: PartitionDirectory | None,
    *,
    training: bool = True,
    task: Task | None = None,
    fast_bf16: bool = False,
) -> GraphInfo:
    """Sum the counts of all workers and compare widths, with one all-gather of 8 int64.

    Args:
        directory: the partition directory; None for a graph in memory.
        training: whether training nodes are needed.
        task: None for node classification.
        fast_bf16: whether this worker's products are faster in bfloat16.
    Raises:
        InputError: if the features or labels of workers differ in form, naming their ranks, or no
            worker has the training nodes that are needed.
    """
    masks = (partition.train_mask, partition.val_mask, partition.test_mask)
    edges = partition.relations.get(PLAIN_RELATION)
    edge_feat = None if edges is None else edges.edge_feat
    own = [
        *([int(mask.sum()) for mask in masks] if task is None else task.count_seeds(partition)),
        partition.features.shape[1],
        count_classes(partition, directory),
        partition.num_inner,
        LABEL_KINDS.index(partition.label_kind),
        int(partition.target_nodes.out_degree is not None)
        + 2 * (edges is not None and edges.edge_weight is not None)
        + 4 * fast_bf16
        + 8 * (0 if edge_feat is None else edge_feat.shape[1]),
    ]
    everyone = comm.all_gather(torch.tensor(own), SETUP)
    nonempty = everyone[:, 5] > 0  # an empty partition need not know the width
    widths, edge_widths = everyone[:, 3], everyone[:, 7] >> 3
    kinds = [LABEL_KINDS[kind] for kind in everyone[:, 6].tolist()]
    for name, values, entries, remedy in (
        ("features of another width", widths, widths.tolist(), "make them the same"),
        ("labels of another kind", everyone[:, 6], kinds, "use one"),
        ("edge features of another width", edge_widths, edge_widths.tolist(), "make them the same"),
    ):
        by_rank = ", ".join(map(str, entries))
        _check_equal(values, f"{name} (by rank: {by_rank}); {remedy}", nonempty)
    kind = LABEL_KINDS[int(everyone[:, 6].max())] if task is None else ""
    meta = None if directory is None else directory.meta
    totals = everyone[:, :3].sum(dim=0).tolist()
    if training and totals[0] == 0:
        raise InputError(
            "the partitions hold no training nodes; choose another split and partition again"
        )
    return GraphInfo(
        num_train=totals[0],
        num_val=totals[1],
        num_test=totals[2],
        num_features=int(everyone[:, 3].max()),
        num_classes=int(everyone[:, 4].max()) if task is None else task.num_classes,
        multilabel=kind == "multilabel",
        regression=kind == "regression",
        part_sizes=tuple(everyone[:, 5].tolist()),
        untrained_ranks=frozenset((everyone[:, 0] == 0).nonzero()[:, 0].tolist()),
        degrees_stored=bool((everyone[:, 7] & 1).min()),
        weighted=bool((everyone[:, 7] & 2).any()),
        fast_bf16=bool((everyone[:, 7] & 4).all()),
        num_edge_features=int(edge_widths.max()),
        num_ranks_by_split=tuple((everyone[:, :3] > 0).sum(dim=0).tolist()),
        num_candidates=0 if meta is None else meta.links.get("rows", {}).get("candidates", 0),
        evaluator="" if meta is None else str(meta.links.get("evaluator", "")),
        ogb_name=_name_in_ogb(meta),
    )


def _name_in_ogb(meta: Meta | None) -> str | None:
    """Return the data set's name if OGB's evaluator counts its correct nodes, else None."""
    if meta is None or meta.task != "multiclass" or not meta.dataset.startswith("ogbn-"):
        return None
    return meta.dataset


def count_classes(partition: Partition, directory: PartitionDirectory | None) -> int:
    """Return the directory's number of classes or targets, or infer it from the labels.

    Then it is the number of columns, or the largest label + 1; 0 without nodes.
    """
    if directory is not None and directory.stated_classes is not None:
        return directory.stated_classes
    if partition.labels.ndim == 2:
        return partition.labels.shape[1]
    return int(partition.labels.max()) + 1 if partition.num_inner else 0


def _check_equal(values: Tensor, message: str, mask: Tensor) -> None:
    """Raise InputError unless the values, [W], are equal on the ranks in a mask, bool [W]."""
    ranks = mask.nonzero()[:, 0]
    differing = ranks[values[ranks] != values[ranks[:1]]].tolist()
    if differing:
        raise InputError(
            f"rank(s) {', '.join(map(str, differing))} differ from rank {int(ranks[0])}: {message}"
        )
