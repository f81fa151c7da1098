"""Check whether settings or a trained model fit a graph; number its classes as in training."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from partitioning.directory.partition import Partition
from partitioning.directory.read_directory import PartitionDirectory
from partitioning.errors import InputError, join_names
from partitioning.graph.graph_data import PLAIN_RELATION, SEPARATOR, EdgeType
from retexo.exchange.exchange_plan import Use
from retexo.models.network import Architecture, hidden_convolution, models_that
from retexo.results.checkpoint import Checkpoint
from retexo.rounds.graph_info import count_classes
from retexo.settings.run_settings import TrainSettings
from retexo.tasks.node_classification import check_objective
from retexo.trainers import registry

log = logging.getLogger(__name__)

KINDS = {
    "multiclass": "one class per node",
    "multilabel": "multi-label",
    "regression": "numbers (task=node_regression)",
}


@dataclass(frozen=True)
class Shape:
    """Width of the features and the kind of labels in a partition directory."""

    num_features: int
    num_classes: int
    label_kind: str
    exact: bool
    """Whether num_classes is known; otherwise it is the largest label that occurs, plus one."""

    @classmethod
    def of(cls, directory: PartitionDirectory, parts: range) -> "Shape | None":
        """Read it from meta.json, or without one from these partitions; None if they are empty."""
        meta = directory.meta
        if meta is not None:
            return cls(meta.num_features, meta.num_classes, meta.task, True)
        read = (directory.read_part(part) for part in parts)
        nonempty = [partition for partition in read if partition.num_inner]
        if not nonempty:
            return None
        return cls(
            num_features=max(partition.features.shape[1] for partition in nonempty),
            num_classes=max(count_classes(partition, directory) for partition in nonempty),
            label_kind=nonempty[0].label_kind,
            exact=False,
        )


def check_fits(
    checkpoint: Checkpoint, directory: PartitionDirectory, parts: range, *, use: Use
) -> None:
    """Raise InputError where the model does not fit; to predict, fewer classes may occur here.

    parts: those on this machine; where all are empty, nothing is compared.
    """
    shape = Shape.of(directory, parts)
    if shape is None:
        return
    model, its = checkpoint.architecture, f"{directory.path}: its"
    trained = f"the model of {checkpoint.directory}"
    _check_same_encoding(checkpoint, directory)
    if shape.num_features != model.num_features:
        raise InputError(
            f"{its} features are {shape.num_features} wide, {trained} takes {model.num_features}"
        )
    if checkpoint.scorer:
        return  # link prediction reads no labels
    if use == "predict" and shape.exact and not shape.num_classes:
        return  # a graph without labels
    if shape.label_kind != checkpoint.label_kind:
        raise InputError(
            f"{its} labels are {KINDS[shape.label_kind]}, {trained} is "
            f"{KINDS[checkpoint.label_kind]}"
        )
    if shape.label_kind == "regression":
        _check_same_targets(checkpoint, directory, shape.num_classes)
        return
    here, there = directory.class_names, checkpoint.class_names
    if (here and there) or _are_numbers(here or there):
        return  # renumber_classes finds each class by its name
    may_be_fewer = shape.label_kind == "multiclass" and (use == "predict" or not shape.exact)
    if shape.num_classes > model.num_classes or (
        shape.num_classes < model.num_classes and not may_be_fewer
    ):
        raise InputError(
            f"{its} labels have {shape.num_classes} classes, {trained} has {model.num_classes}"
        )


def describe_missing_weights(relations: Sequence[EdgeType], model: str) -> str:
    """Say that edges count as 1 which have no weights, where a model was trained on weights."""
    is_plain = relations[0] == PLAIN_RELATION
    typed = "" if is_plain else f" of {', '.join(map(SEPARATOR.join, relations))}"
    return (
        f"the graph's edges{typed} have no weights, or all are 1, and {model} was trained on"
        " weights: each edge weighs 1"
    )


def check_continues(checkpoint: Checkpoint, directory: PartitionDirectory, parts: range) -> None:
    """Raise InputError where a model cannot go on training on a graph (init=RUN)."""
    check_fits(checkpoint, directory, parts, use="train")
    here, there = list(directory.class_names), list(checkpoint.class_names)
    if here != there and not checkpoint.scorer:
        raise InputError(
            f"{directory.path}: its classes are {here or 'without names'}, those of"
            f" {checkpoint.directory} {there or 'without names'}; a model goes on training on the"
            " same classes only: leave init out"
        )


def copy_parameters(
    init: str, checkpoint: Checkpoint, architecture: Architecture, stages: Sequence[Any]
) -> None:
    """Copy the trained parameters of a run into the layers of a network.

    Raises:
        InputError: the run's network has another architecture, or its files are damaged.
    """
    here, there = architecture.to_json(), checkpoint.architecture.to_json()
    differing = sorted(name for name in {*here, *there} if here.get(name) != there.get(name))
    if differing:
        name = differing[0]
        raise InputError(
            f"init={init}: its network has {name}={there.get(name)}, this one"
            f" {name}={here.get(name)}; leave init out to train a new one"
        )
    for stage, trained in zip(stages, checkpoint.stages(), strict=True):
        stage.load_state_dict(trained.state_dict())


def _check_same_targets(
    checkpoint: Checkpoint, directory: PartitionDirectory, num_targets: int
) -> None:
    here, there = (
        list(names) or [f"{count} without names"]
        for names, count in (
            (directory.class_names, num_targets),
            (checkpoint.class_names, checkpoint.architecture.num_classes),
        )
    )
    if here != there:
        raise InputError(
            f"{directory.path}: its targets are {', '.join(here)}; the model of"
            f" {checkpoint.directory} predicts {', '.join(there)}; partition again with"
            f" columns.label=[{','.join(there)}]"
        )


def _encoded_columns(pipeline: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return the columns that a pipeline changes; not a matrix that it leaves as it is."""
    columns: list[dict[str, Any]] = [] if pipeline is None else pipeline["columns"]
    return [
        column for column in columns if column["role"] != "matrix" or column["scale_by"] != "none"
    ]


def _check_same_encoding(checkpoint: Checkpoint, directory: PartitionDirectory) -> None:
    """Raise InputError unless columns, settings that change edges, and encoding are training's.

    A setting that the directory does not state is taken as the same.
    """
    theirs, here = checkpoint.features, directory.feature_pipelines
    settings = {**checkpoint.graph, **directory.graph_settings}
    differing = [name for name, value in checkpoint.graph.items() if settings[name] != value]
    for table in theirs if "features" not in differing else ():
        columns = {column["name"] for column in _encoded_columns(here.get(table))}
        names = [column["name"] for column in _encoded_columns(theirs[table])]
        missing = [name for name in names if name not in columns]
        if missing:
            raise InputError(
                f"{directory.path}: lacks {join_names(missing, '`')} in {table}, columns on which"
                f" the model of {checkpoint.directory} was trained; give a graph that has them,"
                f" partitioned with features.spec={checkpoint.directory.parent}"
            )
    if differing:
        name = differing[0]
        raise InputError(
            f"{directory.path}: made with {name}={settings[name]}; the model of"
            f" {checkpoint.directory} was trained with {name}={checkpoint.graph[name]}; partition"
            " again with that"
        )
    encoded = [
        name
        for name in theirs.keys() | here.keys()
        if _encoded_columns(theirs.get(name)) != _encoded_columns(here.get(name))
    ]
    if encoded:
        raise InputError(
            f"{directory.path}: its features ({', '.join(sorted(encoded))}) were encoded by another"
            f" pipeline than those of {checkpoint.directory}; partition it again with"
            f" features.spec={checkpoint.directory.parent}"
        )


def _are_numbers(names: Sequence[Any]) -> bool:
    """Return whether classes have names, integers. Classes without names are 0 ... C-1."""
    return bool(names) and all(isinstance(name, int) for name in names)


def renumber_classes(
    partition: Partition, directory: PartitionDirectory, checkpoint: Checkpoint
) -> Partition:
    """Return the partition with its classes numbered as in training, by their names.

    Nodes of other classes lose their label and leave all splits, with a warning. Classes without
    names count as 0 ... C-1 where the other side's names are integers; where those are texts, and
    for other labels than multiclass, the partition stays as it is.
    """
    here: list[Any] = list(directory.class_names)
    there: list[Any] = list(checkpoint.class_names)
    if here == there or partition.label_kind != "multiclass":
        return partition
    if not there and _are_numbers(here):
        there = list(range(checkpoint.architecture.num_classes))
    if not here and _are_numbers(there):
        here = list(range(int(partition.labels.max()) + 1)) if len(partition.labels) else [0]
    if not (here and there):
        return partition
    place = torch.tensor([*(there.index(name) if name in there else -1 for name in here), -1])
    labels = place[partition.labels]
    unknown = (labels < 0) & (partition.labels >= 0)
    if bool(unknown.any()):
        log.warning(
            "%d nodes have classes that were not trained; they are not scored", int(unknown.sum())
        )
    masks = {
        name: getattr(partition, name) & ~unknown
        for name in ("train_mask", "val_mask", "test_mask")
    }
    return replace(partition, labels=labels, **masks)


def check_directory(settings: TrainSettings, directory: PartitionDirectory) -> None:
    """Raise InputError for a directory that the task, the model or the trainer cannot use."""
    _check_task(settings, directory)
    _check_kind_of_graph(settings, directory)
    if settings.model.lookahead and directory.sites and not settings.sites.share_aggregates:
        raise InputError(
            "model.lookahead=1: the sites would send aggregates of boundary nodes, which sum up "
            "rows of nodes that no other site needs, and with one in-neighbour are its row; "
            "set sites.share_aggregates=true at every site to allow that, or model.lookahead=0"
        )
    check_inductive(settings, directory)
    registry.find_trainer(settings).check_directory(settings, directory)


def _check_task(settings: TrainSettings, directory: PartitionDirectory) -> None:
    """Raise InputError if the directory does not fit the task, the objective or the model.

    It has another task or kind of labels, classes that `objective` cannot be used for, or no
    relations for a model that reads them.
    """
    has_pairs = directory.meta is not None and bool(directory.meta.links)
    name = settings.task.name
    labels_task = _task_of_labels(directory)
    if settings.task.links != has_pairs:
        other = "link_prediction" if has_pairs else labels_task or "node_classification"
        raise InputError(
            f"{directory.path}: {'pairs' if has_pairs else 'no pairs'} of nodes are split there;"
            f" choose task={other}, or partition with task={name}"
        )
    if not has_pairs and labels_task not in (None, name):
        assert labels_task is not None
        kind = "numbers" if labels_task.endswith("_regression") else "classes"
        owner = "edges" if labels_task.startswith("edge_") else "nodes"
        raise InputError(
            f"{directory.path}: its labels are {kind} of {owner}; choose task={labels_task}, or"
            f" partition with task={name}"
        )
    if directory.meta is not None and not (settings.task.links or settings.task.regression):
        is_multilabel = directory.meta.task == "multilabel"
        check_objective(settings, directory.meta.num_classes, multilabel=is_multilabel)
    if hidden_convolution(settings.model).reads_relations and not (
        directory.meta and directory.meta.links.get("relations")
    ):
        raise InputError(
            f"model={settings.model.name}: {directory.path} has no relations; choose another model,"
            " or partition a heterogeneous graph with task=link_prediction task.relation="
        )


def _task_of_labels(directory: PartitionDirectory) -> str | None:
    """Return the task that the labels of a directory, of nodes or edges, are for.

    None if it has no labels, or does not say.
    """
    if directory.stated_task is None or not directory.stated_classes:
        return None
    owner = "edge" if directory.graph_settings.get("labels.of") == "edges" else "node"
    return f"{owner}_{'regression' if directory.stated_task == 'regression' else 'classification'}"


def _check_kind_of_graph(settings: TrainSettings, directory: PartitionDirectory) -> None:
    """Raise InputError if the model and the directory are for different kinds of graphs."""
    heterogeneous = not directory.is_plain
    if hidden_convolution(settings.model).relational == heterogeneous:
        return
    models = models_that(lambda conv: conv.relational == heterogeneous and not conv.reads_relations)
    fitting = [f"node_classification_{name}" for name in models]
    kind = "a heterogeneous graph" if heterogeneous else "a plain graph, without types"
    raise InputError(
        f"model={settings.model.name}: {directory.path} is {kind}; choose --config-name one of "
        f"{', '.join(fitting)}"
    )


FREE_KINDS = ("given", "random")
"""Kinds of features that do not depend on edges."""


def check_inductive(settings: TrainSettings, directory: PartitionDirectory) -> None:
    """Raise InputError where held-out nodes cannot be hidden."""
    if not settings.split.inductive:
        return
    where = "split.inductive=true"
    if settings.task.links:
        raise InputError(f"{where}: held-out pairs of links are always hidden; leave it out")
    if not registry.find_trainer(settings).INDUCTIVE:
        raise InputError(
            f"{where}: trainer={settings.trainer.name} has no such training; choose one of"
            f" {registry.names_with(lambda trainer: trainer.INDUCTIVE)}"
        )
    if directory.sites:
        raise InputError(f"{where}: not supported between sites; leave it out")
    if directory.graph_settings.get("labels.of") == "edges":
        raise InputError(
            f"{where}: task.message_edges says which labelled edges carry messages; leave it out"
        )
    kinds = directory.graph_settings.get("features", [])
    kinds_of_features = kinds.values() if isinstance(kinds, dict) else [kinds]
    for kinds_of_type in kinds_of_features:
        for kind in [kinds_of_type] if isinstance(kinds_of_type, str) else kinds_of_type:
            if kind not in FREE_KINDS:
                raise InputError(
                    f"{where}: features={kind} of {directory.path} were made with the edges of all"
                    " nodes; partition with features=given or random"
                )
