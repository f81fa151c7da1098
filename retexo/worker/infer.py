"""Worker of app=evaluate and app=predict: a trained network over one partition of a graph.

Predictions never cross the network: each worker writes those of its own partition.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from retexo.comm.socket_transport import Streams
from retexo.errors import TrainingError
from retexo.exchange.exchange_plan import Use
from retexo.launch.heartbeat import Progress
from retexo.models.stage import Stage
from retexo.results.checkpoint import Checkpoint
from retexo.results.predictions import Predictions, write_part
from retexo.rounds.parameters import check_same_parameters
from retexo.settings.app_settings import PredictSettings
from retexo.sites.secure_sums import hide_shares
from retexo.tasks.ranking import score_links
from retexo.tasks.scores import score_nodes
from retexo.trainers.context import Clock, Context
from retexo.trainers.lazy import InferenceResult, infer
from retexo.worker.graph import make_inference_context, read_graph
from retexo.worker.link_predictions import write_links
from retexo.worker.process import Job, MemoryWatch, configure, gather_measurements, serve

LOADED_DIFFERENTLY = "read other parameters than rank 0; copy the same checkpoint to every node"


@dataclass(frozen=True)
class InferJob(Job):
    """A worker's part of app=evaluate and app=predict; its settings have the checkpoint's model."""

    checkpoint: Checkpoint
    predict: PredictSettings | None
    """How predictions are written; None for scores only, which need fewer rows."""


def run(
    rank: int, job: InferJob, streams: Streams | None, progress: Progress | None = None
) -> dict[str, Any]:
    """Load the partition and the model, join the group, infer; return the result's fields.

    Writes predictions to the run directory if they are asked for. TrainingError if one is not
    finite, or workers read other parameters; InputError where the graph does not fit the model.
    """
    configure(rank, job.settings)
    memory = MemoryWatch()
    clock = Clock(progress)
    with clock.phase("load"):
        part = read_graph(job.directory, rank, job.checkpoint, job.settings.task, verifies=True)
        stages = job.checkpoint.stages()
    clock.progress.enter("rendezvous")
    with job.connected(rank, streams) as disclosure:
        start = time.perf_counter()
        comm = disclosure.comm
        check_same_parameters(comm, stages, LOADED_DIFFERENTLY)
        use: Use = "evaluate" if job.predict is None else "predict"
        context = make_inference_context(
            job.settings, job.checkpoint, part, job.directory, comm, stages, use=use, clock=clock
        )
        graph_info = context.graph_info
        if job.settings.gradient.secure:
            hide_shares(comm, graph_info.num_ranks_by_split, job.rendezvous.identity)
        disclosure.num_nodes_disclosed = context.num_nodes_disclosed
        disclosure.num_aggregates = context.num_aggregates_disclosed
        stages = [stage.to(context.device) for stage in stages]
        inferred = infer(context, stages, job.checkpoint.heads)
        with clock.phase("evaluate"):
            scores = _score(context, stages, inferred, job)
        found_names = None if job.predict is None else job.directory.node_names(rank)
        names = None if found_names is None else found_names.tolist()
        if job.predict is not None and job.settings.task.links:
            write_links(context, stages, inferred, job, names)
        elif job.predict is not None:
            if not bool(inferred.logits.isfinite().all()):
                raise TrainingError(
                    "some predictions are NaN or infinite; look for very large values in the"
                    " features"
                )
            predictions = Predictions.of(
                part.node_ids.numpy() if names is None else np.array(names, dtype=object),
                inferred.logits,
                inferred.embeddings,
                context.task.predict(inferred.logits),
                job.checkpoint.class_names,
            )
            known = predictions.known_columns(
                read_graph(job.directory, rank).labels,  # also of untrained classes
                job.directory.class_names,
                {"train": part.train_mask, "val": part.val_mask, "test": part.test_mask},
            )
            known |= job.directory.ends_of_edges(rank)
            write_part(
                *(job.run_dir, rank, predictions, job.predict.format, known),
                embeddings=job.predict.embeddings,
            )
        seconds = time.perf_counter() - start
        measured = gather_measurements(comm, clock, memory.peaks(), seconds, len(stages))
    measured["seconds"] = {"inference": seconds, "phase": measured["seconds"]["phase"]}
    num_nodes = {
        "train": graph_info.num_train,
        "val": graph_info.num_val,
        "test": graph_info.num_test,
        "all": sum(graph_info.part_sizes),
    }
    return {**scores, "nodes": num_nodes, **measured}


main = partial(serve, run)
"""Entry of a worker process."""


def _score(
    context: Context, stages: list[Stage], inferred: InferenceResult, job: InferJob
) -> Mapping[str, Any]:
    """Return the scores as in summary.json; {} for predicted links: ranking would send more.

    All workers call it.
    """
    if not job.settings.task.links:
        return score_nodes(context, inferred.logits, job.checkpoint.heads).to_json()
    if job.predict is not None:
        return {}
    return score_links(context, stages, inferred.by_head, job.checkpoint.heads, {})
