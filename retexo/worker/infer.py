"""A trained network over the partitions of a graph: the worker of app=evaluate and app=predict.

Predictions never cross the network: each worker writes those of its own part.
"""

import time
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from partitioning.directory.read import PartitionDirectory
from partitioning.directory.types import Partition
from partitioning.errors import InputError
from retexo.cluster.heartbeat import Progress
from retexo.comm.collectives import Communicator
from retexo.comm.process_group import Rendezvous, process_group
from retexo.config.settings import PredictSettings, TrainSettings
from retexo.exchange.plan import Use
from retexo.nn.stage import Stage
from retexo.outputs.checkpoint import Checkpoint
from retexo.outputs.predictions import Predictions, write_part
from retexo.outputs.run_log import RunLog
from retexo.trainers import lazy
from retexo.trainers.context import Clock, Context
from retexo.training.graph_info import GraphInfo, agree_on_graph_info, check_same_parameters, num_classes
from retexo.worker import train as worker

LOADED_DIFFERENTLY = "workers read other parameters; copy the same checkpoint to every node"


@dataclass(frozen=True)
class Job:
    """What a worker is told when it starts."""

    settings: TrainSettings
    """Its model is the checkpoint's."""
    directory: PartitionDirectory
    checkpoint: Checkpoint
    run_dir: Path
    rendezvous: Rendezvous
    settings_digest: str
    predict: PredictSettings | None
    """How predictions are written; None: only scores are wanted, and rows that these need are sent."""


def main(rank: int, job: Job, parent: Connection) -> None:
    """Entry point of a worker process, as retexo.worker.train.main."""
    worker.serve(parent, job.settings.cluster.heartbeat_timeout, lambda progress: run(rank, job, progress))


def run(rank: int, job: Job, progress: Progress | None = None) -> dict[str, Any]:
    """Load the partition and the model, join the group, infer; scores, bytes and times as in summary.json."""
    worker.configure(rank, job.settings)
    memory = worker.MemoryWatch()
    clock = Clock(progress)
    with clock.phase("load"):
        partition = job.directory.read(rank)
        stages = job.checkpoint.stages()
    clock.progress.enter("rendezvous")
    with process_group(job.rendezvous, rank):
        start = time.perf_counter()
        comm = Communicator(rank, partition.num_parts, job.settings.sleep_time)
        graph_info = agree_on_graph_info(comm, partition, job.directory, job.settings_digest, training=False)
        check_same_parameters(comm, stages, LOADED_DIFFERENTLY)
        use: Use = "evaluate" if job.predict is None else "predict"
        context = make_context(job.settings, job.checkpoint, partition, graph_info, comm, stages, use=use, clock=clock)
        inferred = lazy.infer(context, [stage.to(context.device) for stage in stages])
        with clock.phase("evaluate"):
            scores = worker.final_scores(context, inferred.logits, graph_info)
        if job.predict is not None:
            found = Predictions.of(partition.node_ids, inferred.logits, inferred.embeddings, graph_info.multilabel)
            write_part(job.run_dir, rank, found, job.predict.format, embeddings=job.predict.embeddings)
        seconds = time.perf_counter() - start
        measured = worker.measurements(comm, clock, memory.peaks(), seconds, len(stages))
    measured["seconds"] = {"inference": seconds, "phase": measured["seconds"]["phase"]}
    nodes = {
        "train": graph_info.num_train,
        "val": graph_info.num_val,
        "test": graph_info.num_test,
        "all": sum(graph_info.part_sizes),
    }
    return {**{name: asdict(value) for name, value in scores.items()}, "nodes": nodes, **measured}


def make_context(
    settings: TrainSettings,
    checkpoint: Checkpoint,
    partition: Partition,
    graph_info: GraphInfo,
    comm: Communicator,
    stages: list[Stage],
    *,
    use: Use,
    clock: Clock,
) -> Context:
    """As the trainer's, for a trained model: classes are the model's, also where fewer occur in the labels."""
    graph_info = replace(graph_info, num_classes=checkpoint.architecture.num_classes)
    silent = RunLog(Path(), 1, settings)
    with clock.phase("plan"):
        return worker.make_context(
            settings, partition, graph_info, comm, stages[0].conv, clock=clock, log=silent, run_dir=Path(), use=use
        )


@dataclass(frozen=True)
class Shape:
    """What a partition directory says of its graph, or parts of it."""

    num_features: int
    num_classes: int
    multilabel: bool
    exact: bool
    """Whether num_classes is known; else it is the largest label that occurs, plus one."""

    @classmethod
    def of(cls, directory: PartitionDirectory, parts: range) -> "Shape | None":
        """From meta.json; where there is none from these parts, which are read; None if these are empty."""
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
    """InputError where the model is none for this graph. To predict, fewer classes may occur than were trained."""
    if shape is None:
        return
    model, found = checkpoint.architecture, f"{directory.path}: its"
    trained = f"the model of {checkpoint.directory}"
    if shape.num_features != model.num_features:
        raise InputError(f"{found} features are {shape.num_features} wide, {trained} takes {model.num_features}")
    if shape.multilabel != checkpoint.multilabel:
        kinds = {True: "multi-label", False: "one class a node"}
        raise InputError(f"{found} labels are {kinds[shape.multilabel]}, {trained} is {kinds[checkpoint.multilabel]}")
    fewer = not shape.multilabel and (use == "predict" or not shape.exact)
    if shape.num_classes > model.num_classes or (shape.num_classes < model.num_classes and not fewer):
        raise InputError(f"{found} labels have {shape.num_classes} classes, {trained} has {model.num_classes}")
