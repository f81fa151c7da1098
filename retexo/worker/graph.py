"""A worker's part of a graph: reading it, its architecture, and whether a model fits it."""

import logging
from dataclasses import replace

import torch

from partitioning.directory.partition import Partition
from partitioning.directory.read_directory import PartitionDirectory
from partitioning.errors import InputError
from partitioning.graph.graph_data import PLAIN_RELATION, EdgeType
from retexo.comm.collectives import Communicator
from retexo.exchange.exchange_plan import Use
from retexo.models.network import Architecture, hidden_convolution
from retexo.models.stage import Stage
from retexo.results.checkpoint import Checkpoint
from retexo.rounds.graph_info import GraphInfo, agree_on_graph_info
from retexo.settings.objective_settings import TaskSettings
from retexo.settings.run_settings import TrainSettings
from retexo.tasks.node_classification import NodeClassification
from retexo.tasks.node_regression import NodeRegression
from retexo.trainers.context import Clock, Context
from retexo.worker.compatibility import describe_missing_weights, renumber_classes
from retexo.worker.make_context import (
    NodeTask,
    link_task,
    make_context,
    schema_of,
)

log = logging.getLogger(__name__)


def weighted_relations(part: Partition, info: GraphInfo) -> list[EdgeType]:
    """Return the relations whose edges have weights, of a plain graph in any partition."""
    return [
        edge_type
        for edge_type, edges in part.relations.items()
        if info.weighted or edges.edge_weight is not None
    ]


def with_weights_of(checkpoint: Checkpoint, settings: TrainSettings, info: GraphInfo) -> GraphInfo:
    """Return the graph's sizes, weighted if a model with attention was trained on weights.

    It reads weights, which are ones where the graph has none.
    """
    is_attention = hidden_convolution(settings.model).attention_heads > 0
    is_weighted = is_attention and PLAIN_RELATION in checkpoint.weighted
    return replace(info, weighted=info.weighted or is_weighted)


def make_architecture(part: Partition, settings: TrainSettings, info: GraphInfo) -> Architecture:
    """Return the network that is trained on a graph; InputError as `schema_of`."""
    conv = hidden_convolution(settings.model)
    num_read = info.num_edge_features + (info.weighted and conv.attention_heads > 0)
    return Architecture(
        settings.model,
        schema_of(part, info),
        info.num_classes,
        settings.link_scorer,
        part.num_relations if conv.reads_relations else num_read,
        settings.edge_head,
    )


def _check_same_inputs(
    part: Partition, checkpoint: Checkpoint, settings: TrainSettings, info: GraphInfo
) -> None:
    """Raise InputError unless the types, relations and features are those of training."""
    trained, actual = checkpoint.architecture, make_architecture(part, settings, info)
    model = f"the model of {checkpoint.directory}"
    if actual.schema != trained.schema:
        raise InputError(
            f"{model} is for {trained.schema.description}; this graph has "
            f"{actual.schema.description}; give it the same types, features and relations"
        )
    if actual.num_edge_features != trained.num_edge_features:
        raise InputError(
            f"{model} reads {trained.num_edge_features} features of an edge (for attention a "
            f"weight is one), this graph has {actual.num_edge_features}; give it the same"
        )


def without_ledger(part: Partition) -> Partition:
    """Return a site's part for a dry run.

    Requests of other sites are neither recorded nor limited.
    """
    nodes = {
        name: nodes
        if (halo := nodes.unresolved_halo) is None
        else replace(nodes, unresolved_halo=replace(halo, ledger=None))
        for name, nodes in part.nodes.items()
    }
    return replace(part, nodes=nodes)


def prepare_links(part: Partition, task: TaskSettings) -> Partition:
    """For links, return the part with all nodes as training nodes; others unchanged.

    With task.cut_edges=skip, training pairs are those whose second node is in the part, too.
    """
    if not task.links:
        return part
    assert part.links is not None
    train = part.links["train"]
    if task.cut_edges == "skip":
        first, end = part.first_id, part.first_id + part.num_inner
        train = train[(train[:, 1] >= first) & (train[:, 1] < end)]
    mask = torch.ones(part.num_inner, dtype=torch.bool)
    return replace(part, links={**part.links, "train": train}, train_mask=mask)


def read_graph(
    directory: PartitionDirectory,
    rank: int,
    trained: Checkpoint | None = None,
    task: TaskSettings | None = None,
    *,
    verifies: bool = False,
) -> Partition:
    """Return this worker's part; with a checkpoint its classes are numbered as in training.

    Nodes of classes that the checkpoint lacks lose label and split.

    Args:
        task: For links all nodes are training nodes (`prepare_links`); None changes nothing.
        verifies: whether InputError is raised where a file is not the one that meta.json describes.
            The parent checked the files before, but they may have been replaced since. A mapped
            array keeps the file that it was opened from, so the check comes after reading.
    """
    part = directory.read_part(rank)
    if verifies and directory.meta is not None:
        directory.verify([rank])
    part = part if trained is None else renumber_classes(part, directory, trained)
    return part if task is None else prepare_links(part, task)


def task_of_checkpoint(checkpoint: Checkpoint) -> NodeTask:
    """Return the task of a model for nodes, with what validation chose."""
    names = checkpoint.class_names
    task: NodeTask = NodeClassification(
        checkpoint.architecture.num_classes, checkpoint.multilabel, class_names=names
    )
    if checkpoint.targets is not None:
        task = NodeRegression(checkpoint.targets, names)
    return task.with_choices(checkpoint.heads)


def make_inference_context(
    settings: TrainSettings,
    checkpoint: Checkpoint,
    part: Partition,
    directory: PartitionDirectory | None,
    comm: Communicator,
    stages: list[Stage],
    *,
    use: Use,
    clock: Clock,
) -> Context:
    """Make the context for a trained model, with the model's number of classes.

    All workers call it. Worker 0 warns of relations that lost their weights.

    Where rows are rounded, scores are computed in the two phases of training, because other partial
    sums are rounded differently.

    Args:
        directory: None for a graph in memory.

    Raises:
        InputError: the graph does not fit the model.
    """
    heads, task = checkpoint.heads, link_task(settings)
    graph_info = agree_on_graph_info(comm, part, directory, training=False, task=task)
    graph_info = replace(graph_info, num_classes=checkpoint.architecture.num_classes)
    known = weighted_relations(part, graph_info)
    missing = [edge_type for edge_type in checkpoint.weighted if edge_type not in known]
    if missing and comm.rank == 0:
        model = f"the model of {checkpoint.directory}"
        log.warning("%s", describe_missing_weights(missing, model))
    graph_info = with_weights_of(checkpoint, settings, graph_info)
    use = "train" if use == "evaluate" and settings.exchange.rounded else use
    steps = heads.steps if heads.alpha < 1 or use == "train" else 0
    smoothing = replace(settings.smoothing, steps=steps, reach=heads.reach)
    settings = replace(settings, smoothing=smoothing)
    _check_same_inputs(part, checkpoint, settings, graph_info)
    with clock.phase("plan"):
        return make_context(
            settings,
            part,
            graph_info,
            comm,
            stages[0].conv,
            clock=clock,
            use=use,
            trained=task_of_checkpoint(checkpoint),
        )
