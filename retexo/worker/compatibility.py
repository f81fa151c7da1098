"""Whether a trained model fits a graph."""

from dataclasses import dataclass

from partitioning.directory.read import PartitionDirectory
from partitioning.errors import InputError
from retexo.exchange.plan import Use
from retexo.outputs.checkpoint import Checkpoint
from retexo.training.graph_info import num_classes


@dataclass(frozen=True)
class Shape:
    """Widths and labels of the graph in a partition directory."""

    num_features: int
    num_classes: int
    multilabel: bool
    exact: bool
    """Whether num_classes is known; else it is the largest label that occurs, plus one."""

    @classmethod
    def of(cls, directory: PartitionDirectory, parts: range) -> "Shape | None":
        """From meta.json; without one from these parts, which are read; None if they are all empty."""
        meta = directory.meta
        if meta is not None:
            return cls(meta.num_features, meta.num_classes, meta.task == "multilabel", True)
        held = [partition for partition in map(directory.read, parts) if partition.num_inner]
        if not held:
            return None
        return cls(
            num_features=max(partition.features.shape[1] for partition in held),
            num_classes=max(num_classes(partition, directory) for partition in held),
            multilabel=any(partition.multilabel for partition in held),
            exact=False,
        )


def check_fits(checkpoint: Checkpoint, shape: Shape | None, directory: PartitionDirectory, *, use: Use) -> None:
    """InputError where the model does not fit this graph. To predict, fewer classes may occur than were trained."""
    if shape is None:
        return
    model, found = checkpoint.architecture, f"{directory.path}: its"
    trained = f"the model of {checkpoint.directory}"
    if shape.num_features != model.num_features:
        raise InputError(f"{found} features are {shape.num_features} wide, {trained} takes {model.num_features}")
    if shape.multilabel != checkpoint.multilabel:
        kinds = {True: "multi-label", False: "one class per node"}
        raise InputError(f"{found} labels are {kinds[shape.multilabel]}, {trained} is {kinds[checkpoint.multilabel]}")
    fewer = not shape.multilabel and (use == "predict" or not shape.exact)
    if shape.num_classes > model.num_classes or (shape.num_classes < model.num_classes and not fewer):
        raise InputError(f"{found} labels have {shape.num_classes} classes, {trained} has {model.num_classes}")
