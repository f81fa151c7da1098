"""Prediction of a changed graph: only the nodes within reach of a change are computed again.

The inputs of every layer at inner and halo nodes are kept from the prediction before. A layer is
computed again at a node if its in-edges, its input or an in-neighbour's input differ by value, and
with GCN's scales if its out-degree or an in-neighbour's differs. A row that comes out as it was
reaches no further. Label propagation goes on in the same way, step by step. Rows are sent exact,
each one only to the partitions that need it and have not its value.

A prediction without a former one computes and sends everything by the same code. Sums are over the
same rows in the same order, so results differ by the rounding of dense products at most.

I inner nodes, H halo nodes, E edges, F row width, C classes, L layers, K steps.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from retexo.arrays import IntArray, repeat_interleave
from retexo.comm.traffic_meter import WHOLE_RUN, MessageTag
from retexo.exchange.changed_rows import ChangedRowsExchange, Held
from retexo.models.block import InEdges, Sources
from retexo.models.conv.gcn import GCN
from retexo.models.matrix import to_dense
from retexo.models.stage import OutputHeads, Stage
from retexo.models.streaming_aggregate import AggregateAccumulator
from retexo.results.prediction_state import KeptPrediction, StateWriter
from retexo.tasks.output_heads import apply_heads
from retexo.trainers.context import Context
from retexo.trainers.layerwise import (
    NODES_PER_STEP,
    LayerInput,
    LayerOutput,
    inputs_by_chunk,
)
from retexo.trainers.lazy import InferenceResult

VALUES_PER_CHUNK = 1 << 22
"""Values that are compared at a time."""


@dataclass
class WorkCounts:
    """Numbers of nodes computed, and of rows and bytes sent, by this worker: one entry per layer,
    then per step of label propagation.
    """

    nodes: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)


class FormerPrediction:
    """The layer inputs and outputs that the former prediction stored, looked up by the present
    numbers of nodes.
    """

    def __init__(self, kept: KeptPrediction | None, nodes: IntArray) -> None:
        """Args:
        kept: None where there is none.
        nodes: int64 [I] the former number of each inner node; -1 for a new one.
        """
        self.kept, self.nodes = kept, nodes
        self.halo = np.zeros(0, np.int64)
        """int64 [H] likewise; set once it is known."""

    def held_rows(self, world_size: int) -> Held:
        """Return which boundary rows the former exchange left at both ends."""
        if self.kept is None:
            return Held.nothing(world_size)
        arrays = self.kept.arrays
        sent = np.split(arrays["sent"], np.cumsum(arrays["sent_counts"])[:-1])
        num_inner = len(arrays["node_ids"])
        return Held(num_inner, tuple(sent), arrays["halo_owner"], arrays["halo_index"])

    @property
    def is_new(self) -> Tensor:
        """Return which inner nodes the former prediction did not have, bool [I]."""
        return torch.from_numpy(self.nodes < 0)

    def take_inner(self, name: str, like: Tensor) -> Tensor:
        """Return the stored rows of inner nodes, [I, F]; 0 for new nodes. like: empty rows [_, F]
        of the same type.
        """
        return self._take_rows(name, self.nodes, like)

    def take_halo(self, name: str, like: Tensor) -> Tensor:
        """Return the stored rows of halo nodes, [H, F]; 0 where none was stored. like: empty rows
        [_, F] of the same type.
        """
        return self._take_rows(f"{name}_halo", self.halo, like)

    def _take_rows(self, name: str, places: IntArray, like: Tensor) -> Tensor:
        """Return stored rows at former positions, [n, F]; 0 where the position is -1."""
        rows = like.new_zeros(len(places), like.shape[1])
        if self.kept is not None:
            known = np.flatnonzero(places >= 0)
            rows[torch.from_numpy(known)] = self.kept.tables[name].take(places[known])
        return rows

    def find_differing(self, name: str, rows: Tensor) -> Tensor:
        """Return which rows [I, F] of inner nodes differ from the stored ones, or are new, bool
        [I].
        """
        return self._find_differing_at(name, self.nodes, rows)

    def find_differing_halo(self, name: str, rows: Tensor) -> Tensor:
        """Return which rows [H, F] of halo nodes differ from the stored ones, or are new,
        bool [H].
        """
        return self._find_differing_at(f"{name}_halo", self.halo, rows)

    def _find_differing_at(self, name: str, places: IntArray, rows: Tensor) -> Tensor:
        """Return which rows differ from the stored ones at former positions, bool [n]; true where
        the position is -1.
        """
        differs = torch.from_numpy(places < 0)
        if self.kept is None or not rows.shape[1]:
            return differs
        known, table = np.flatnonzero(places >= 0), self.kept.tables[name]
        for some in np.array_split(known, 1 + len(known) * rows.shape[1] // VALUES_PER_CHUNK):
            chosen = torch.from_numpy(some)
            differs[chosen] = (rows[chosen] != table.take(places[some])).any(dim=1)
        return differs

    def changed_in_edges(self, edges: InEdges, edge_means: Tensor | None) -> Tensor:
        """Nodes of which an in-edge, its weight or its features differ: bool [I]."""
        changed = self.is_new.clone()
        if self.kept is None:
            return changed
        arrays, kept = self.kept.arrays, np.flatnonzero(self.nodes >= 0)
        was, begin = self.nodes[kept], edges.row_ptr.numpy()
        former_begin, former_src = arrays["row_ptr"], arrays["src"]
        degree = np.diff(begin)[kept]
        is_same = degree == np.diff(former_begin)[was]
        changed[torch.from_numpy(kept[~is_same])] = True
        kept, was, degree = kept[is_same], was[is_same], degree[is_same]
        ends = np.repeat(kept, degree)
        edge, _ = edges.in_edges(torch.from_numpy(kept))
        former_edge = edge.numpy() + np.repeat(former_begin[was] - begin[kept], degree)
        differs = self._local(edges.src[edge].numpy()) != former_src[former_edge]
        for name, data in (("edge_weight", edges.weight), ("edge_feat", edges.edge_feat)):
            if data is not None:
                differs |= _any_column(data[edge].numpy() != arrays[name][former_edge])
        changed[torch.from_numpy(ends[differs])] = True
        for name, data in (("in_degree", edges.in_degree), ("edge_means", edge_means)):
            if data is not None:
                differs = _any_column(data.numpy()[kept] != arrays[name][was])
                changed[torch.from_numpy(kept[differs])] = True
        return changed

    def changed_out_degrees(self, out_degree: Tensor) -> Tensor:
        """Nodes whose out-degree differs, bool [I + H]; out_degree: [I + H]."""
        places = self._local(np.arange(len(out_degree)))
        changed = places < 0
        if self.kept is not None:
            known = np.flatnonzero(~changed)
            former = self.kept.arrays["out_degree"][places[known]]
            changed[known] = out_degree.numpy()[known] != former
        return torch.from_numpy(changed)

    def changed_sources(self, sources: Tensor) -> Tensor:
        """Nodes that became a source of label propagation, or ceased to be one: bool [I]."""
        changed = self.is_new.clone()
        if self.kept is not None:
            known = np.flatnonzero(self.nodes >= 0)
            former = self.kept.arrays["sources"][self.nodes[known]]
            changed[torch.from_numpy(known)] = torch.from_numpy(sources.numpy()[known] != former)
        return changed

    def _local(self, local_ids: IntArray) -> IntArray:
        """The former local ids of nodes; -1 for new ones."""
        num_inner = 0 if self.kept is None else len(self.kept.arrays["node_ids"])
        halo = np.where(self.halo >= 0, self.halo + num_inner, -1)
        return np.concatenate((self.nodes, halo))[local_ids]


def _any_column(differs: Any) -> Any:
    """Return which of n entries have any true value, [n], from [n] or [n, K]."""
    return differs if differs.ndim == 1 else differs.any(axis=1)


class ChangedNodes:
    """Computes the changed nodes of one worker, layer by layer, and writes the new state."""

    def __init__(self, context: Context, former: FormerPrediction, writer: StateWriter) -> None:
        """All workers call it.

        Args:
            context: whose plan sends nothing.
            former: the prediction before.
            writer: of the new state.
        """
        self.context, self.former, self.writer, self.work = context, former, writer, WorkCounts()
        partition, edges, comm = context.partition, context.edges, context.comm
        with context.phase("plan"):
            self._boundary = ChangedRowsExchange.open(
                partition,
                context.graph_info.part_sizes,
                former.nodes,
                former.held_rows(comm.world_size),
                comm,
            )
            former.halo = self._boundary.former_halo
            num_inner = partition.num_inner
            self._dst = repeat_interleave(torch.arange(num_inner), edges.row_ptr.diff())
            changed = former.changed_out_degrees(edges.out_degree)
            inner, halo = torch.split(changed, [num_inner, partition.num_halo])
            self._changed_scales = inner | self._find_reached(inner, halo)
            self._changed_edges = former.changed_in_edges(edges, context.edge_means)
        self._write_structure()

    @property
    def num_boundary_rows(self) -> int:
        """Rows that this worker sends in a layer where all change."""
        return self._boundary.num_rows

    def _write_structure(self) -> None:
        """Write ids, edges, degrees and boundary of this partition to the new state."""
        partition, edges, sent = self.context.partition, self.context.edges, self._boundary.sent
        arrays = {
            "node_ids": partition.node_ids,
            "halo_owner": partition.halo_owner,
            "halo_index": partition.halo_index,
            "sent": np.concatenate(sent),
            "sent_counts": np.array([len(each) for each in sent]),
            "src": edges.src,
            "row_ptr": edges.row_ptr,
            "in_degree": edges.in_degree,
            "out_degree": edges.out_degree,
            "edge_weight": edges.weight,
            "edge_feat": edges.edge_feat,
            "edge_means": self.context.edge_means,
        }
        for name, array in arrays.items():
            if array is not None:
                self.writer.add(name, array)

    @torch.no_grad()
    def run(self, stages: Sequence[Stage], heads: OutputHeads) -> InferenceResult:
        """Run trained stages, then label propagation; see lazy.infer."""
        context, former = self.context, self.former
        given = LayerInput.first(context, stages)
        changed_features = changed = former.find_differing("rows0", given.rows)
        aggregates = _FirstAggregates(context, stages[0], given)
        by_head: list[Tensor] = []
        for layer, stage in enumerate(stages):
            context.clock.progress.set_round(layer)
            name = f"rows{layer}"
            if layer == 0 and context.halo_features is not None:
                halo, halo_changed = self._known_features(context.halo_features)
            else:
                tag = MessageTag("embeddings" if layer else "features", layer)
                halo, halo_changed = self._exchange(name, given.rows, changed, tag)
            self._write_rows(name, given.rows, halo)
            wanted = self._changed_edges | changed | self._find_reached(changed, halo_changed)
            if stage.conv.uses_out_degree:
                wanted |= self._changed_scales
            if "features" in stage.skips:
                wanted |= changed_features
            if "aggregate" in stage.skips:
                wanted |= aggregates.changed
            self.work.nodes.append(int(wanted.sum()))
            with context.phase("embed"):
                sources = Sources.of_halo(halo)
                if layer == 0:
                    aggregates.begin(sources, wanted)
                elif "aggregate" in stage.skips:
                    aggregates.complete(wanted)
                output, scores = self._former_output(stage, layer, given, layer in heads.stages)
                for some, inputs in inputs_by_chunk(
                    context, stage, wanted.nonzero()[:, 0], given, sources
                ):
                    values = stage.outputs(inputs)
                    for table, found in zip((output, scores), values, strict=True):
                        if table is not None:
                            table[some] = found.cpu()
            by_head.append(given.rows if scores is None else scores)  # the former is not read
            if scores is not None:
                self.writer.add_rows(f"logits{layer}", scores)
            if output is not None:
                changed = former.find_differing(f"rows{layer + 1}", output)
                given = given.next_layer(LayerOutput(output, None))
        logits = apply_heads(by_head, heads, self._propagate)
        return InferenceResult(logits, given.rows)

    def _former_output(
        self, stage: Stage, layer: int, given: LayerInput, needs_scores: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return what the former prediction stored of a layer's output: the next layer's input [I,
        D] and the logits [I, C]; None for what nothing reads.
        """
        tables: list[Tensor | None] = []
        needed = {f"rows{layer + 1}": not stage.is_last, f"logits{layer}": needs_scores}
        for (name, is_needed), width in zip(needed.items(), stage.output_widths, strict=True):
            like = given.rows.new_zeros(0, width)
            tables.append(self.former.take_inner(name, like) if is_needed else None)
        return tables[0], tables[1]

    def _exchange(
        self, name: str, rows: Tensor, changed: Tensor, tag: MessageTag
    ) -> tuple[Tensor, Tensor]:
        """Exchange changed rows; the others of halo nodes are taken from the former state.

        Returns:
            The rows of all halo nodes, [H, F], and which changed, bool [H].

        Args:
            name: of the rows in the state.
            rows: [I, F]
            changed: bool [I]
            tag: of the messages.
        """
        with self.context.phase("exchange"):
            received = self._boundary.run(rows, changed, tag)
            halo = self.former.take_halo(name, rows)
            halo[received.halo] = received.values
            halo_changed = torch.zeros(len(halo), dtype=torch.bool)
            halo_changed[received.halo] = True
        self.work.rows.append(received.num_rows_sent)
        self.work.bytes.append(received.num_bytes_sent)
        return halo, halo_changed

    def _known_features(self, halo: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features of halo nodes, which this worker computed itself, [H, F], and which
        of them changed, bool [H]; nothing is sent.
        """
        self.work.rows.append(0)
        self.work.bytes.append(0)
        return halo, self.former.find_differing_halo("rows0", halo)

    def _find_reached(self, changed: Tensor, halo_changed: Tensor) -> Tensor:
        """Return the nodes with an in-edge from a changed node, bool [I]; arguments: bool [I], bool
        [H].
        """
        is_changed = torch.cat((changed, halo_changed))
        reached = torch.zeros_like(changed)
        if bool(is_changed.any()):
            reached[self._dst[is_changed.index_select(0, self.context.edges.src)]] = True
        return reached

    def _write_rows(self, name: str, rows: Tensor, halo: Tensor) -> None:
        """Write the rows of inner nodes, and those of halo nodes, to the new state."""
        self.writer.add_rows(name, rows)
        self.writer.add_rows(f"{name}_halo", halo)

    def _propagate(self, start: Tensor, steps: int) -> Iterator[Tensor]:
        """Yield the logits `start`, then the result of each step of label propagation, [I, C] each;
        only changed nodes are computed again.
        """
        context, former = self.context, self.former
        gcn = GCN(start.shape[1], start.shape[1], dropout=0.0)
        sources = torch.ones(len(start), dtype=torch.bool)
        if context.settings.smoothing.hops == 0 and context.graph_info.num_in_split:
            sources = context.in_a_split
        changed_sources = former.changed_sources(sources)
        self.writer.add("sources", sources)
        base = self._changed_edges | self._changed_scales | changed_sources
        rows = start
        yield rows
        for step in range(steps):
            name = f"power{step}"
            changed = former.find_differing(name, rows)
            sent = torch.where(sources[:, None], rows, 0)
            is_sent = changed_sources | (changed & sources)
            tag = MessageTag("predictions", WHOLE_RUN)
            halo, halo_changed = self._exchange(name, sent, is_sent, tag)
            self._write_rows(name, rows, halo)
            wanted = base | changed | self._find_reached(is_sent, halo_changed)
            nodes = wanted.nonzero()[:, 0]
            self.work.nodes.append(len(nodes))
            after = former.take_inner(f"power{step + 1}", rows)
            with context.phase("aggregate"):
                for some in _split_nodes(nodes, NODES_PER_STEP):
                    accumulator = AggregateAccumulator(
                        gcn, context.edges, some, sent, None, torch.device("cpu")
                    )
                    accumulator.add(Sources.of_halo(halo))
                    after[some] = to_dense(accumulator.inputs().matrices[0])
            alone = (wanted & ~sources).nonzero()[:, 0]
            scale = gcn.self_loop_scale(
                context.edges.in_degree[alone], context.edges.out_degree[alone]
            )
            after[alone] += scale[:, None] * rows[alone]
            rows = after
            yield rows
        self.writer.add_rows(f"power{steps}", rows)


class _FirstAggregates:
    """The first layer's aggregates, which skip connections of later layers read."""

    def __init__(self, context: Context, stage: Stage, given: LayerInput) -> None:
        self._context, self._stage, self._given = context, stage, given
        self._sources: Sources | None = None
        self.changed = torch.zeros(len(given.rows), dtype=torch.bool)
        """bool [I]"""
        self._known = self.changed

    def begin(self, sources: Sources, wanted: Tensor) -> None:
        """Begin with the first layer, which computes the aggregates of wanted nodes, bool [I];
        sources: its halo rows.
        """
        if self._given.aggregate is not None:
            self._sources = sources
        self.changed = self._known = wanted

    def complete(self, wanted: Tensor) -> None:
        """Compute the aggregates of wanted nodes, bool [I], that are not known yet."""
        assert self._sources is not None
        missing = (wanted & ~self._known).nonzero()[:, 0]
        # The inputs fill LayerInput.aggregate.
        for _ in inputs_by_chunk(self._context, self._stage, missing, self._given, self._sources):
            pass
        self._known = self._known | wanted


def _split_nodes(nodes: Tensor, size: int) -> Sequence[Tensor]:
    """Split nodes into pieces of at most `size`; none without nodes."""
    return torch.split(nodes, size) if len(nodes) else ()
