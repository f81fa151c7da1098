"""Makes a trainer's context from a partition: exchange plans, degrees, device, checkpoint.

Inductive training (split.inductive) hides validation and test nodes: no message comes from a hidden
node. The edges that leave it are dropped, and degrees count what is left. A training node is then
computed as if hidden nodes did not exist; a hidden node as if it alone had just joined, with its
edges from the others.

I inner nodes, H halo nodes of a type, F features.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from partitioning.directory.partition import Partition
from partitioning.errors import InputError
from partitioning.graph.graph_data import PLAIN_RELATION
from retexo.comm.collectives import Communicator
from retexo.comm.traffic_meter import SETUP
from retexo.exchange.coding.values import value_bytes
from retexo.exchange.exchange_plan import (
    PlanOptions,
    Use,
    compute_global_out_degree,
    request_halo_flags,
)
from retexo.models.block import Sources
from retexo.models.convolution import Convolution
from retexo.models.network import Schema
from retexo.results.checkpoint import save_layer
from retexo.results.run_log import RunLog
from retexo.rounds.graph_info import GraphInfo
from retexo.rounds.recovery import Recovery
from retexo.settings.run_settings import TrainSettings
from retexo.sites.resolve_halo import resolve_halo
from retexo.tasks.link_prediction import LinkPrediction
from retexo.tasks.node_classification import NodeClassification
from retexo.tasks.node_regression import NodeRegression
from retexo.trainers.context import Clock, Context, NodeType, edge_means
from retexo.trainers.layerwise import PRECISIONS
from retexo.trainers.link_objective import make_link_objective
from retexo.trainers.out_edges import OutEdges, build_in_edges, find_required_layers
from retexo.trainers.registry import refuse_edge_data
from retexo.worker.process import choose_device

NodeTask = NodeClassification | NodeRegression


def make_context(
    settings: TrainSettings,
    part: Partition,
    graph_info: GraphInfo,
    comm: Communicator,
    conv: Convolution,
    *,
    clock: Clock,
    log: RunLog | None = None,
    run_dir: Path = Path(),
    dtype: torch.dtype = torch.float32,
    use: Use = "train",
    recovery: Recovery | None = None,
    class_names: Sequence[Any] = (),
    trained: NodeTask | None = None,
    hides_held_out: bool = False,
) -> Context:
    """Make the exchange plans and everything else that a trainer needs; all workers call it.

    Args:
        settings: of the run.
        part: this worker's partition.
        graph_info: sizes of the whole graph.
        comm: to the other workers.
        conv: a convolution of the kind that all layers have.
        clock: measures the phases.
        log: None to report nothing.
        run_dir: where rank 0 saves layers.
        dtype: of the computation.
        use: of the exchange plans.
        recovery: where rounds are saved.
        class_names: of the directory or the checkpoint.
        trained: the task of a trained model; None to make it by the settings, as always for links.
        hides_held_out: whether validation and test nodes are hidden (split.inductive).

    Raises:
        InputError: the model cannot use the graph's labels or edge data, or no features reach the
            labelled type.
    """
    halo_features = part.target_nodes.halo_features
    part, schema, types = _make_types(
        settings, part, graph_info, comm, conv, dtype, use, hides_held_out
    )
    device = choose_device(settings.device, settings.local_index(comm.rank))
    kind = NodeRegression if settings.task.regression else NodeClassification
    task = (
        link_task(settings)
        or trained
        or kind.of(settings, part, graph_info, comm, class_names)  # from all workers' labels
    )

    def save(layer: int, stage: nn.Module) -> None:
        """Write a layer to run_dir/checkpoint; nothing on workers other than worker 0."""
        if comm.rank == 0:
            clock.progress.enter("checkpoint")
            save_layer(run_dir / "checkpoint", layer, stage)

    is_trained_on_links = trained is None and use == "train" and settings.task.links
    return Context(
        settings=settings,
        partition=part.without_features(),
        labels=task.make_targets(part.labels, dtype).to(device),
        graph_info=graph_info,
        task=task,
        comm=comm,
        schema=schema,
        types=types,
        device=device,
        log=log or RunLog(Path(), 1, settings),
        save_layer=save,
        recovery=recovery,
        clock=clock,
        known={} if halo_features is None else {0: Sources.of_halo(halo_features.to(dtype))},
        make_objective=make_link_objective if is_trained_on_links else None,
    )


def link_task(settings: TrainSettings) -> LinkPrediction | None:
    """Return the task of link prediction.

    Returns None for tasks of nodes, which are made from the labels.
    """
    return (
        LinkPrediction(settings.task.dim, settings.stopping.metric) if settings.task.links else None
    )


# --- edges, degrees and exchange plans by type ----------


def _make_types(
    settings: TrainSettings,
    part: Partition,
    graph_info: GraphInfo,
    comm: Communicator,
    conv: Convolution,
    dtype: torch.dtype,
    use: Use,
    hides_held_out: bool,
) -> tuple[Partition, Schema, dict[str, NodeType]]:
    """Make degrees and exchange plans; return the part, its schema and its types.

    All workers call it. The part of a heterogeneous graph has no relations any more.
    """
    if part.is_plain:
        refuse_edge_data(settings, conv, graph_info)
    sizes = _count_nodes_by_rank(part, graph_info, comm)
    part = resolve_halo_by_type(part, sizes, comm, settings.sites.max_rows_shared)
    if hides_held_out:
        part = hide_held_out(part, sizes, comm)
        graph_info = replace(graph_info, degrees_stored=True)
    schema, means, hops = schema_of(part, graph_info), None, settings.smoothing.hops
    if part.is_plain:
        part, edges, means = _make_plain_edges(settings, part, graph_info, comm, conv, dtype)
        out_edges = {schema.target: edges}
    else:
        out_edges = {name: OutEdges.of_type(part, name, dtype) for name in part.nodes}
        part = replace(part, relations={})  # they are in `out_edges`
    options = {
        name: PlanOptions(
            num_layers=settings.model.depth + (hops if part.is_plain else 0),
            part_sizes=of_type,
            all_nodes=part.is_plain and (graph_info.all_nodes_used or settings.task.links),
            linear=conv.linear_aggregation and not settings.model.lookahead,
            all_halo_rows=settings.exchange.mode == "plain",
            use=use,
        )
        for name, of_type in zip(out_edges, sizes.values(), strict=True)
    }
    if graph_info.weighted:
        vector_bytes = _vector_bytes(settings, part.features)
        options = {
            name: replace(option, vector_bytes=vector_bytes) for name, option in options.items()
        }
    everywhere = hops > 0 and not part.is_plain
    required = find_required_layers(
        part, schema.target, out_edges, options, comm, starts_everywhere=everywhere
    )
    types = {
        name: NodeType(
            features=(nodes.features if nodes.num_inner else torch.empty(0, width)).to(dtype),
            required_layers=required[name],
            out_edges=out_edges[name],
            plan=out_edges[name].make_plan(required, options[name], comm),
            edge_means=means,
        )
        for (name, width), nodes in zip(schema.widths.items(), part.nodes.values(), strict=True)
    }
    return part, schema, types


def _count_nodes_by_rank(
    part: Partition, graph_info: GraphInfo, comm: Communicator
) -> dict[str, tuple[int, ...]]:
    """Return the number of inner nodes of each rank, by type; all workers call it."""
    if part.is_plain:
        return {part.target: graph_info.part_sizes}
    num_inner = torch.tensor([nodes.num_inner for nodes in part.nodes.values()])
    by_rank = comm.all_gather(num_inner, SETUP)
    return {name: tuple(by_rank[:, place].tolist()) for place, name in enumerate(part.nodes)}


def schema_of(part: Partition, info: GraphInfo) -> Schema:
    """Return the node types and relations of the graph, the same on every worker.

    Raises InputError where no features reach the labelled type.
    """
    if part.is_plain:  # a part without nodes does not know the width
        return Schema.of_plain_graph(info.num_features)
    widths = {name: nodes.features.shape[1] for name, nodes in part.nodes.items()}
    schema = Schema(part.target, widths, tuple(part.relations))
    if not (widths[part.target] or schema.target_relations(0)):
        raise InputError(
            f"{part.target}: neither this type nor a type with a relation to it has features; "
            "give some: features=..."
        )
    return schema


def resolve_halo_by_type(
    part: Partition,
    part_sizes: Mapping[str, tuple[int, ...]],
    comm: Communicator,
    max_rows_shared: float | None,
) -> Partition:
    """Return a site's part with its halo nodes found at their owners; others unchanged.

    All workers call it. It records what other sites ask for (retexo.sites.ledger), and raises
    InputError or PeerLost as `resolve_halo`.

    part_sizes: by type, inner nodes by rank.
    """
    if any(nodes.unresolved_halo is None for nodes in part.nodes.values()):
        return part
    with comm.without_replay_log():  # its keys are drawn anew
        nodes = {
            name: resolve_halo(nodes, part_sizes[name], comm, max_rows_shared)
            for name, nodes in part.nodes.items()
        }
    return replace(part, nodes=nodes)


def _make_plain_edges(
    settings: TrainSettings,
    part: Partition,
    graph_info: GraphInfo,
    comm: Communicator,
    conv: Convolution,
    dtype: torch.dtype,
) -> tuple[Partition, OutEdges, Tensor | None]:
    """Bring the edges of a plain graph into the form that all workers have; all workers call it.

    Returns:
        The part with weights of edges where any part has them, and with features of edges if the
        convolution reads them; the edges with degrees in the whole graph (stored everywhere,
        exchanged if used, else zeros); the means of features that were removed, else None.
    """
    edges, nodes, means = part.relations[PLAIN_RELATION], part.target_nodes, None
    if graph_info.weighted and edges.edge_weight is None:
        edges = replace(edges, edge_weight=torch.ones(len(edges.src)))
    if graph_info.num_edge_features and edges.edge_feat is None:  # without edges
        edges = replace(edges, edge_feat=torch.empty(0, graph_info.num_edge_features))
    part = replace(part, relations={PLAIN_RELATION: edges})
    local, out_degree = part.edges, nodes.out_degree
    if not graph_info.degrees_stored:
        out_degree = torch.zeros(nodes.num_inner + nodes.num_halo)
        if conv.uses_out_degree or settings.smoothing.steps > 0:
            out_degree = compute_global_out_degree(local, graph_info.part_sizes, comm)
    assert out_degree is not None
    in_degree = local.sum_at(local.dst, nodes.num_inner)
    in_edges = build_in_edges(local, conv, in_degree, out_degree, dtype, part.num_relations)
    if not conv.attention_heads:
        means = edge_means(local, in_degree, dtype)
        part = replace(part, relations={PLAIN_RELATION: replace(edges, edge_feat=None)})
    return part, OutEdges.of_plain_graph(part.edges, in_edges), means


def _vector_bytes(settings: TrainSettings, features: Tensor) -> tuple[int, int]:
    """Estimate the mean bytes of a row over the layers, before and after the rounds.

    See PlanOptions.vector_bytes. Of the features, [I, F], only nonzero values count.
    """
    hidden = settings.model.hidden_dim
    first = int(torch.count_nonzero(features)) // max(1, len(features))
    precisions = [PRECISIONS[name] for name in settings.exchange.precision]
    widths = [first, *[hidden] * (len(precisions) - 1)]
    train, infer = (
        sum(
            value_bytes(min(width, most), torch.float32, precision)
            for width, precision in zip(widths, precisions, strict=True)
        )
        for most in (max(first, hidden), hidden)
    )
    return train, infer


def hide_held_out(
    part: Partition, sizes: Mapping[str, tuple[int, ...]], comm: Communicator
) -> Partition:
    """Return a partition without the edges that leave held-out nodes.

    The out-degrees of a plain graph then count the edges between visible nodes. All workers call
    it. `sizes`: the numbers of inner nodes, by type and rank.
    """
    hidden, target, nodes = part.val_mask | part.test_mask, part.target, part.target_nodes
    everything = torch.ones(nodes.num_halo, dtype=torch.bool)
    flags = request_halo_flags(nodes, everything, hidden, sizes[target], comm)
    everywhere = torch.cat((hidden, flags))
    relations = {
        edge_type: edges.keep(~everywhere[edges.src.long()]) if edge_type[0] == target else edges
        for edge_type, edges in part.relations.items()
    }
    part = replace(part, relations=relations)
    if not part.is_plain:
        return part
    visible = part.edges.keep(~hidden[part.edges.dst.long()])
    out_degree = compute_global_out_degree(visible, sizes[target], comm)
    return replace(part, nodes={target: replace(nodes, out_degree=out_degree)})
