"""Checkpoint of a trained network: everything that inference needs, as safetensors and JSON.

RUN_DIR/checkpoint/
    model.json            version, architecture, task, partition digest, checksums of the layers
    layer0.safetensors    parameters of the first stage: convolution, norm, head
    layer1.safetensors    ...
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import nn

from partitioning.errors import InputError, first_line
from partitioning.files.file_io import (
    UNREADABLE,
    check_unchanged,
    file_checksum,
    read_json,
    reading,
)
from partitioning.graph.graph_data import PLAIN_RELATION, SEPARATOR, EdgeType
from partitioning.graph.schema import VERSION as VERSION_OF_STATES
from partitioning.partition_settings import task_of_edges
from retexo.models.network import Architecture, build_network
from retexo.models.stage import OutputHeads, Stage, TargetScale
from retexo.results.atomic_write import atomic_write, write_json
from retexo.settings.communication_settings import ExchangeSettings
from retexo.settings.options import ModelSettings

VERSION = 1


def name_relation(relation: EdgeType) -> str:
    """Return the name of a relation in model.json."""
    return "node__edge__node" if relation == PLAIN_RELATION else SEPARATOR.join(relation)


def save_layer(directory: Path, layer: int, stage: nn.Module) -> None:
    """Write the parameters of a trained stage atomically; TrainingError if that fails.

    The folder is created where missing.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: tensor.contiguous().cpu().clone() for name, tensor in stage.state_dict().items()
    }
    with atomic_write(directory / f"layer{layer}.safetensors") as unfinished:
        unfinished.write_bytes(save(tensors))


def remove_layers(directory: Path, num_layers: int) -> None:
    """Remove the layers from `num_layers` on, which the final network does not read."""
    for path in directory.glob("layer*.safetensors"):
        if int(path.stem.removeprefix("layer")) >= num_layers:
            path.unlink()


def save_model(directory: Path, architecture: Architecture, described: dict[str, Any]) -> None:
    """Write model.json, which completes a checkpoint, after all layers.

    TrainingError if that fails.

    Args:
        directory: The checkpoint folder.
        architecture: Architecture of the network.
        described: Fields of model.json besides version, architecture and checksums.
    """
    checksums = {
        path.name: file_checksum(path) for path in sorted(directory.glob("layer*.safetensors"))
    }
    content = {
        "version": VERSION,
        "architecture": architecture.to_json(),
        **described,
        "checksums": checksums,
    }
    write_json(directory / "model.json", content, checksum=True)


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint."""

    directory: Path
    architecture: Architecture
    multilabel: bool
    """False also for other tasks."""
    partition_digest: str
    """Digest of the partitions it was trained on."""
    heads: OutputHeads
    exchange: ExchangeSettings
    """Encoding of the boundary rows it was trained on."""
    trainer: str | None = None
    """Trainer; None if model.json does not name it."""
    class_names: list[Any] = field(default_factory=list)
    """Class names of the data set; empty for classes 0 ... C-1."""
    features: dict[str, Any] = field(default_factory=dict)
    """Feature pipelines of the partitions that it was trained on (partitioning/features/)."""
    targets: TargetScale | None = None
    """Scale of the targets of a regression; None for other tasks. Their names are class_names."""
    graph: dict[str, Any] = field(default_factory=dict)
    """Settings of these partitions that a graph to predict needs as well, such as symmetrize; and
    `weighted`, the relations whose edges had weights."""
    checksums: dict[str, str] = field(default_factory=dict)
    """sha256 of the layers' files, by name."""

    @property
    def weighted(self) -> frozenset[EdgeType]:
        """Return the relations that it was trained on with weights."""
        stored = self.graph.get("weighted", [])
        relations = self.architecture.schema.relations
        return frozenset(relation for relation in relations if name_relation(relation) in stored)

    @property
    def label_kind(self) -> str:
        """Return the kind of labels: multiclass, multilabel or regression."""
        if self.targets is not None:
            return "regression"
        return "multilabel" if self.multilabel else "multiclass"

    @property
    def model(self) -> ModelSettings:
        return self.architecture.model

    @property
    def scorer(self) -> str:
        """Return the name of the scorer in link prediction; empty for tasks of nodes."""
        return self.architecture.scorer

    @property
    def task_settings(self) -> dict[str, Any]:
        """The settings of the task that the network depends on."""
        if self.scorer:
            return {"scorer": self.scorer, "dim": self.architecture.num_classes}
        return {} if self.architecture.schema.is_plain else {"scorer": self.architecture.head}

    @property
    def task_name(self) -> str:
        """Return node_classification, node_regression or link_prediction."""
        if self.scorer:
            return "link_prediction"
        return "node_classification" if self.targets is None else "node_regression"

    @property
    def task(self) -> str:
        """Return the value of the setting `task`: edge_... where edges have the labels."""
        of_edges = self.graph.get("labels.of") == "edges"
        return task_of_edges(self.task_name) if of_edges else self.task_name

    def stages(self) -> list[Stage]:
        """Return new stages with the trained parameters, in evaluation mode.

        InputError for a missing or damaged file, or parameters that are NaN or infinite.
        """
        with torch.device("meta"):  # the parameters come from the files
            stages = build_network(self.architecture, seed=0)
        for layer, stage in enumerate(stages):
            path = self.directory / f"layer{layer}.safetensors"
            _load_layer(stage.eval(), path, self.checksums.get(path.name))
        return stages


def open_checkpoint(path: Path, setting: str = "checkpoint_dir") -> Checkpoint:
    """Read model.json of a run directory's checkpoint, or of a checkpoint folder; not its weights.

    Args:
        path: The folder.
        setting: The setting that names the path, for messages.

    Raises:
        InputError: there is none, it is damaged or of another version, or its trainer stores no
            network.
    """
    for directory in (path, path / "checkpoint"):
        if (directory / "model.json").is_file():
            break
    else:
        raise InputError(
            f"{setting}={path}: has no checkpoint/model.json; give the run directory of a"
            " finished app=train"
        )
    content = _read_content(directory)
    if content.get("own_model"):
        raise InputError(
            f"{setting}={path}: trainer={content.get('trainer')} keeps no network"
            ", only scores in summary.json; train by another trainer"
        )
    try:
        architecture = Architecture.from_json(content["architecture"])
        targets = content.get("targets")  # of a regression
        return Checkpoint(
            directory,
            architecture,
            content["multilabel"],
            content["partition_digest"],
            OutputHeads.from_json(content["answer"]),
            ExchangeSettings(
                precision=content.get("exchange_precision") or ["fp32"] * architecture.model.depth
            ),
            content.get("trainer"),
            content.get("class_names", []),
            content.get("features", {}),
            targets and TargetScale.from_json(targets),
            content.get("graph", {}),
            content["checksums"],
        )
    except UNREADABLE as error:  # of another version, or a convolution that is not registered here
        raise InputError(
            f"{directory / 'model.json'}: {first_line(error)}; use the retexo that trained it, or"
            " train again"
        ) from error


def _read_content(directory: Path) -> dict[str, Any]:
    """Read model.json; InputError if it cannot be read, was changed, or has other versions."""
    path = directory / "model.json"
    content = read_json(path)
    if content.get("version") != VERSION:
        raise InputError(
            f"{path}: version {content.get('version')}, this program reads version {VERSION}; use"
            " the retexo that trained it, or train again"
        )
    check_unchanged(content, path, "copy it again, or train again")
    for state in content.get("features", {}).values():
        if state.get("version") != VERSION_OF_STATES:
            raise InputError(
                f"{path}: its feature pipeline has version {state.get('version')!r}, this program"
                f" reads version {VERSION_OF_STATES}; use the retexo that trained it, or train"
                " again"
            )
    return content


def _load_layer(stage: nn.Module, path: Path, checksum: str | None) -> None:
    """Load the parameters of a stage that has none yet; InputError for a wrong or damaged file."""
    if not path.is_file():
        raise InputError(
            f"{path}: missing, so {path.parent} is not a complete checkpoint; copy all of it"
        )
    if file_checksum(path) != checksum:
        raise InputError(
            f"{path}: its checksum is not the one in model.json: damaged, or of another run; copy"
            " it again"
        )
    with reading(path, "safetensors file"):
        tensors = load_file(path)
    stated = stage.state_dict()
    copies = {name: tensor.to(stated[name].dtype, copy=True) for name, tensor in tensors.items()}
    stage.load_state_dict(copies, assign=True)
    if not all(bool(parameter.isfinite().all()) for parameter in stage.parameters()):
        raise InputError(
            f"{path}: holds parameters that are NaN or infinite; train with a lower learning_rate"
        )
