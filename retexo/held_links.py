"""Scores links between nodes of a graph in memory, by the functions that rank them in training.

N nodes, n pairs, q nodes, D width of embeddings.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from partitioning.directory.partition import Partition
from partitioning.graph_data import GraphData
from retexo.comm.collectives import Communicator
from retexo.comm.thread_transport import ThreadGroup, ThreadTransport
from retexo.held_graph import HeldPlainGraph, to_tensor
from retexo.models.stage import OutputHeads, Stage
from retexo.partitioned_run import compose_train
from retexo.rounds.graph_info import GraphInfo
from retexo.settings.communication_settings import ExchangeSettings
from retexo.tasks.link_prediction import LinkPrediction
from retexo.tasks.ranking import EmbeddedNodes, KnownEdges, find_top_destinations
from retexo.tasks.task_context import TaskContext


@dataclass(eq=False)
class HeldLinks:
    """The nodes of a graph with what they are scored by."""

    held: HeldPlainGraph
    stages: Sequence[Stage]
    heads: OutputHeads
    _embedded: EmbeddedNodes = field(init=False)
    _known: KnownEdges = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    """Messages of one call at a time pass between the only worker and itself."""

    def __post_init__(self) -> None:
        context = _context(self.held, self.stages)
        self._embedded = EmbeddedNodes.of(
            context, self.stages, self.held.outputs.by_head, [self.heads]
        )
        self._known = KnownEdges(self._embedded)

    def score(self, pairs: Tensor) -> Tensor:
        """Score pairs of nodes, int64 [n, 2]; return float [n]."""
        with self._lock:
            return self._embedded.score_by_source(pairs)

    def find_top(self, nodes: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Find the most likely new destinations of nodes, int64 [q].

        Returns:
            Scores and destinations, [q, count] each, best first; -inf where there are no more.
        """
        with self._lock:
            return find_top_destinations(self._embedded, self._known, nodes, count)


def _context(held: HeldPlainGraph, stages: Sequence[Stage]) -> TaskContext:
    """The context of the only worker."""
    graph, links = held.read.graph, held.read.links
    assert isinstance(graph, GraphData)
    assert links is not None
    width = stages[-1].output_widths[1]
    settings = compose_train("num_partitions=1", "device=cpu", "task=link_prediction")
    settings = replace(
        settings,
        exchange=ExchangeSettings("exact", ("fp32",) * len(stages)),
        task=replace(settings.task, dim=width),
    )
    arrays = {name: torch.from_numpy(array) for name, array in links.arrays.items()}
    info = GraphInfo(
        num_train=graph.num_nodes,
        num_val=0,
        num_test=0,
        num_features=held.features.shape[1],
        num_classes=width,
        multilabel=False,
        part_sizes=(graph.num_nodes,),
        untrained_ranks=frozenset(),
        degrees_stored=True,
        ogb_name=None,
        num_candidates=len(arrays["candidates"]),
    )
    return TaskContext(
        settings=settings,
        partition=_make_partition(held, graph, arrays),
        labels=torch.zeros(0),
        graph_info=info,
        task=LinkPrediction(width),
        comm=Communicator(ThreadTransport(0, ThreadGroup(1))),
    )


def _make_partition(held: HeldPlainGraph, graph: GraphData, links: dict[str, Any]) -> Partition:
    """Return the whole graph as the only partition, with the arrays `links` of link prediction."""
    count, none = graph.num_nodes, torch.zeros(0, dtype=torch.int64)
    everything = torch.ones(count, dtype=torch.bool)
    return Partition(
        rank=0,
        num_parts=1,
        num_inner=count,
        num_halo=0,
        src=held.edges.held.src,
        dst=held.edges.dst.int(),
        features=held.features[:0],
        labels=to_tensor(graph.labels),
        train_mask=everything,
        val_mask=~everything,
        test_mask=~everything,
        node_ids=to_tensor(graph.node_ids),
        halo_owner=none,
        halo_index=none,
        in_degree=held.edges.held.in_degree,
        out_degree=held.edges.held.out_degree,
        self_loops=0,
        links=links,
    )
