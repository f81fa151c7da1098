"""A worker's part of a graph, plain or heterogeneous: what of a run depends on which of the two it is."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from partitioning.directory.hetero_files import HeteroDirectory
from partitioning.directory.partition import HeteroPartition, Partition, PartNodes
from partitioning.directory.read_directory import PartitionDirectory
from partitioning.errors import InputError
from retexo.comm.collectives import Communicator
from retexo.exchange.exchange_plan import Use
from retexo.hetero import context as hetero_context
from retexo.hetero import registry as hetero_registry
from retexo.hetero import smoothing
from retexo.hetero.lazy import infer_hetero
from retexo.models.conv_registry import CONVOLUTIONS, check_model, default_model_settings
from retexo.models.convolution import Convolution
from retexo.models.hetero_stage import AnyArchitecture, HeteroArchitecture
from retexo.models.stage import Answer, Architecture, Stage
from retexo.results.checkpoint import Checkpoint
from retexo.results.run_log import RunLog
from retexo.rounds.graph_info import GraphInfo
from retexo.settings.run_settings import TaskSettings, TrainSettings
from retexo.trainers import answer, registry
from retexo.trainers.answer import InferenceResult, Powers
from retexo.trainers.context import Clock, Context, RunContext
from retexo.worker.compatibility import as_trained
from retexo.worker.context import layer_saver, make_context
from retexo.worker.process import choose_device


def is_relational(settings: TrainSettings) -> bool:
    """Whether the model is for heterogeneous graphs."""
    return check_model(settings.model).relational


def find_trainer(settings: TrainSettings) -> registry.Trainer:
    """By the settings' trainer and model; InputError where there is none."""
    find = hetero_registry.find if is_relational(settings) else registry.find
    return find(settings.trainer.name)


def check(settings: TrainSettings) -> None:
    """InputError for settings that the chosen model or the chosen trainer cannot have."""
    (hetero_registry if is_relational(settings) else registry).check(settings)


def check_directory(settings: TrainSettings, directory: PartitionDirectory) -> None:
    """InputError for a model of plain graphs on a heterogeneous one, the reverse, and what the trainer cannot read."""
    links = directory.meta is not None and bool(directory.meta.links)
    if settings.task.links != links:
        known_as = {True: "link_prediction", False: "node_classification"}
        raise InputError(
            f"{directory.path}: {'pairs' if links else 'no pairs'} of nodes are split there; choose "
            f"task={known_as[links]}, or partition with task={known_as[not links]}"
        )
    if check_model(settings.model).reads_relations and not (
        directory.meta and directory.meta.links.get("relations")
    ):
        raise InputError(
            f"model={settings.model.name}: {directory.path} has no relations; choose another model, or "
            "partition a heterogeneous graph with task=link_prediction task.relation="
        )
    relational, hetero = is_relational(settings), isinstance(directory, HeteroDirectory)
    if relational != hetero:
        kinds = {name: check_model(default_model_settings(name, 1, 1)) for name in CONVOLUTIONS}
        known = (
            name
            for name, each in kinds.items()
            if each.relational == hetero and not each.reads_relations
        )
        kind = {True: "a heterogeneous graph", False: "a plain graph, without types"}[hetero]
        names = ", ".join(f"node_classification_{name}" for name in known)
        raise InputError(
            f"model={settings.model.name}: {directory.path} is {kind}; choose --config-name one of {names}"
        )
    of_trainer = getattr(find_trainer(settings), "check_directory", None)
    if of_trainer is not None:
        of_trainer(settings, directory)


@dataclass(eq=False)
class PlainGraph:
    """One type of nodes."""

    part: Partition

    @property
    def partition(self) -> Partition:
        """The nodes that have labels."""
        return self.part

    def architecture(self, settings: TrainSettings, info: GraphInfo) -> AnyArchitecture:
        return Architecture.of(
            settings.model,
            info.num_features,
            info.num_classes,
            info.num_edge_features,
            info.weighted,
            settings.task.scorer if settings.task.links else "",
            self.part.num_relations,
        )

    def make_context(
        self,
        settings: TrainSettings,
        info: GraphInfo,
        comm: Communicator,
        conv: Convolution,
        **given: Any,
    ) -> RunContext:
        """given: see make_context."""
        return make_context(settings, self.part, info, comm, conv, **given)

    def check_fits(self, checkpoint: Checkpoint, settings: TrainSettings, info: GraphInfo) -> None:
        """InputError where the features of edges are not those that the model reads."""
        trained, found = checkpoint.architecture, self.architecture(settings, info)
        assert isinstance(found, Architecture)
        if (
            isinstance(trained, Architecture)
            and found.num_edge_features != trained.num_edge_features
        ):
            raise InputError(
                f"the model of {checkpoint.directory} reads {trained.num_edge_features} features of an edge (for "
                f"attention a weight is one), this graph has {found.num_edge_features}; give it the same"
            )

    @staticmethod
    def powers(context: Any) -> Powers:
        return partial(answer.propagate, context)

    @staticmethod
    def infer(context: Any, stages: list[Stage], chosen: Answer) -> InferenceResult:
        return answer.infer(context, stages, chosen)


@dataclass(eq=False)
class HeteroGraph:
    """Several types of nodes."""

    part: HeteroPartition

    @property
    def partition(self) -> Partition:
        return hetero_context.of_target(self.part)

    def architecture(self, settings: TrainSettings, info: GraphInfo) -> AnyArchitecture:
        return HeteroArchitecture(
            settings.model, hetero_context.schema_of(self.part), info.num_classes
        )

    def make_context(
        self,
        settings: TrainSettings,
        info: GraphInfo,
        comm: Communicator,
        conv: Convolution,
        *,
        clock: Clock,
        run_dir: Path = Path(),
        log: RunLog | None = None,
        use: Use = "train",
        **given: Any,
    ) -> RunContext:
        """given: see make_hetero_context."""
        return hetero_context.make_hetero_context(
            settings,
            self.part,
            info,
            comm,
            partial_sums=conv.linear_aggregation,
            device=choose_device(settings.cluster.device, settings.cluster.local_index(comm.rank)),
            save_layer=layer_saver(run_dir, comm, clock),
            clock=clock,
            log=log or RunLog(Path(), 1, settings),
            use=use,
            **given,
        )

    def check_fits(self, checkpoint: Checkpoint, settings: TrainSettings, info: GraphInfo) -> None:
        """InputError where types, their widths or relations are not those of training."""
        trained, found = checkpoint.architecture, hetero_context.schema_of(self.part)
        if isinstance(trained, HeteroArchitecture) and found != trained.schema:
            raise InputError(
                f"the model of {checkpoint.directory} is for {trained.schema.described}; this graph has "
                f"{found.described}; give it the same types, features and relations"
            )

    @staticmethod
    def powers(context: Any) -> Powers:
        return partial(smoothing.propagate, context)

    @staticmethod
    def infer(context: Any, stages: list[Stage], chosen: Answer) -> InferenceResult:
        return infer_hetero(context, stages, chosen)


Graph = PlainGraph | HeteroGraph


Part = Partition | HeteroPartition


def read_part(directory: PartitionDirectory, rank: int) -> Part:
    return (
        directory.read_hetero(rank)
        if isinstance(directory, HeteroDirectory)
        else directory.read(rank)
    )


def without_ledger(part: Part) -> Part:
    """The part of a site for a dry run: what others ask it for is not noted, and not limited."""
    if isinstance(part, HeteroPartition):
        return replace(part, nodes={name: _unnoted(each) for name, each in part.nodes.items()})
    return _unnoted(part)


Asked = TypeVar("Asked", Partition, PartNodes)


def _unnoted(nodes: Asked) -> Asked:
    halo = nodes.unresolved_halo
    return nodes if halo is None else replace(nodes, unresolved_halo=replace(halo, ledger=None))


def graph_of(part: Part, task: TaskSettings | None = None) -> Graph:
    """task: None for classes of nodes."""
    if isinstance(part, HeteroPartition):
        return HeteroGraph(part)
    return PlainGraph(part if task is None or not task.links else _of_links(part, task))


def _of_links(part: Partition, task: TaskSettings) -> Partition:
    """With all nodes as such that rounds need; pairs that do not train are left out."""
    assert part.links is not None
    train = part.links["train"]
    if task.cut_edges == "skip":
        train = train[
            (train[:, 1] >= part.first_id) & (train[:, 1] < part.first_id + part.num_inner)
        ]
    mask = torch.ones(part.num_inner, dtype=torch.bool)
    return replace(part, links={**part.links, "train": train}, train_mask=mask)


def read_graph(
    directory: PartitionDirectory,
    rank: int,
    trained: Checkpoint | None = None,
    task: TaskSettings | None = None,
) -> Graph:
    """This worker's part; with a checkpoint its classes are numbered as in training."""
    part = read_part(directory, rank)
    return graph_of(part if trained is None else as_trained(part, directory, trained), task)


def load_graph(
    directory: PartitionDirectory,
    rank: int,
    trained: Checkpoint | None = None,
    task: TaskSettings | None = None,
) -> Graph:
    """As read_graph; InputError where a file is no longer the one that meta.json describes.

    The parent checked the files before, but they may have been replaced since. A mapped array keeps the file that it
    was opened from, so the check comes after reading.
    """
    graph = read_graph(directory, rank, trained, task)
    if directory.meta is not None:
        directory.verify([rank])
    return graph


def make_inference_context(
    settings: TrainSettings,
    checkpoint: Checkpoint,
    graph: Graph,
    graph_info: GraphInfo,
    comm: Communicator,
    stages: list[Stage],
    *,
    use: Use,
    clock: Clock,
) -> RunContext:
    """The context for a trained model: the number of classes is the model's, also where fewer occur in the labels.

    Where rows are rounded, scores are made in the two waves of training: other sums of rows are rounded otherwise.
    """
    answered = checkpoint.answer
    graph_info = replace(graph_info, num_classes=checkpoint.architecture.num_classes)
    use = "train" if use == "evaluate" and settings.exchange.rounded else use
    steps = answered.steps if answered.alpha < 1 or use == "train" else 0
    smoothing_now = replace(settings.smoothing, steps=steps, reach=answered.reach)
    settings = replace(settings, smoothing=smoothing_now)
    graph.check_fits(checkpoint, settings, graph_info)
    with clock.phase("plan"):
        context = graph.make_context(
            settings, graph_info, comm, stages[0].conv, clock=clock, use=use
        )
    if isinstance(context, Context):
        context.make_objective = None  # nothing trains, so no ends are sent
    return context
