"""The worker of app=train: read a partition, join the group, train, evaluate, report."""

import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from partitioning.graph_data import SEPARATOR, EdgeType
from retexo.comm.collectives import Communicator
from retexo.comm.socket_transport import Streams
from retexo.launch.heartbeat import Progress
from retexo.models.hetero_stage import AnyArchitecture, build_network
from retexo.models.stage import OutputHeads
from retexo.results.checkpoint import open_checkpoint, remove_layers, save_model
from retexo.results.run_log import RunLog
from retexo.rounds.graph_info import GraphInfo, agree_on_graph_info
from retexo.rounds.parameters import check_same_parameters
from retexo.rounds.recovery import Recovery, state_dir
from retexo.settings.run_settings import TrainSettings
from retexo.sites.secure_sums import hide_shares
from retexo.tasks.scores import Scores, choose_and_score, score_nodes
from retexo.trainers.context import Clock, Context, return_freed_memory
from retexo.trainers.label_propagation import LabelPropagation
from retexo.trainers.lazy import infer
from retexo.trainers.registry import Trainer
from retexo.worker.compatibility import copy_parameters
from retexo.worker.graph import Part, find_trainer, load_graph
from retexo.worker.make_context import link_task, make_context
from retexo.worker.measure import MemoryWatch, gather_measurements
from retexo.worker.process import Job, catch_termination, configure, serve

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainJob(Job):
    """A worker's part of app=train."""

    identity: str
    """sha256 (hex) of the run that a saved state has to belong to."""


def main(rank: int, job: TrainJob, parent: Connection, streams: Streams | None) -> None:
    """Run a worker process; it sends the parent JSON, a result or an error with its kind."""
    serve(run, rank, job, parent, streams)


def run(
    rank: int,
    job: TrainJob,
    streams: Streams | None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Load the partition, join the group, train, and return what summary.json says of the run."""
    settings = job.settings
    configure(rank, settings)
    memory, clock = MemoryWatch(), Clock(progress)
    with clock.phase("load"):
        graph = load_graph(job.directory, rank, task=settings.task)
    clock.progress.enter("rendezvous")
    with (
        job.connected(rank, streams) as transport,
        RunLog(job.run_dir, rank, settings, clock.progress) as log,
        job.disclose(job.communicator(transport)) as disclosure,
    ):
        start = time.perf_counter()
        comm = disclosure.comm
        clock.progress.count_bytes = lambda: comm.meter.total
        graph_info = agree_on_graph_info(
            comm, graph.partition, job.directory, task=link_task(settings)
        )
        if settings.init is not None:
            initial = open_checkpoint(Path(settings.init), "init")
            graph_info = graph.with_weights_of(initial, settings, graph_info)
        weighted = graph.weighted_relations(graph_info)
        architecture = graph.architecture(settings, graph_info)
        stages = build_network(architecture, settings.seed)
        if settings.init is not None:
            copy_parameters(settings.init, architecture, stages)
        check_same_parameters(comm, stages)
        if settings.gradient.secure:
            hide_shares(comm, graph_info.num_ranks_by_split, job.rendezvous.identity)
        trainer = find_trainer(settings)
        recovery, (layer, number) = _open_recovery(job, comm, trainer)
        log.resume_from(layer, number)
        resumed = None
        if settings.resume is not None:
            source = job.run_dir if settings.resume == "auto" else settings.resume
            resumed = {"layer": layer, "round": number, "run_dir": str(source)}
            if rank == 0:
                logger.info("resumes at layer %d, round %d of the run in %s", *resumed.values())
        with clock.phase("plan"):
            context = make_context(
                settings,
                graph.part,
                graph_info,
                comm,
                stages[0].conv,
                clock=clock,
                log=log,
                run_dir=job.run_dir,
                use=trainer.USE,
                recovery=recovery,
                class_names=job.directory.class_names,
                hides_held_out=settings.split.inductive,
            )
        return_freed_memory()
        context.directory = job.directory.dgl_folder
        disclosure.num_nodes_disclosed = context.num_nodes_disclosed
        disclosure.num_aggregates = context.num_aggregates_disclosed
        whole = graph.part if settings.split.inductive else None
        del graph  # the context has all of it, and may release the features
        if rank == 0 and graph_info.num_val == 0 and settings.best_val_model:
            logger.warning(
                "no validation nodes: every layer keeps its last round, and the last head"
                " predicts%s",
                "; num_layers=auto trains two layers" if settings.model.grows else "",
            )
        kept = _keeps_all_columns(architecture)
        if rank == 0 and kept:
            logger.info(
                "model.input_dropout=0, as the features have only %d columns",
                architecture.num_features,
            )
        trained = trainer.train(context, [stage.to(context.device) for stage in stages])
        if settings.model.grows:
            context = context.with_num_layers(len(trained.rounds))
        with clock.phase("evaluate"):
            heads, scores = choose_and_score(
                context, stages, trained.logits, LabelPropagation(context)
            )
        transductive = {}
        if whole is not None:
            scored = _score_whole_graph(context, whole, graph_info, stages, heads)
            transductive = {"transductive": {name: scored[name] for name in ("val", "test")}}
        seconds = time.perf_counter() - start
        depth = max(heads.stages) + 1 if settings.model.grows else settings.model.depth
        grown = {"num_layers": depth} if settings.model.grows else {}
        if rank == 0:
            clock.progress.enter("checkpoint")
            model = replace(settings.model, num_layers=depth)
            architecture = replace(architecture, model=model)
            _save_model(job, architecture, trainer, heads, weighted, context.task.describe())
        resident, private = (sum(each) for each in zip(memory.peaks(), trained.memory, strict=True))
        for warning in scores.warnings if rank == 0 else ():
            logger.warning("%s", warning)
        if rank == 0 and _may_gain_by_depth(settings, heads, graph_info):
            logger.info(
                "the last layer alone predicts validation nodes best;"
                " num_layers=auto tries more layers"
            )
        return {
            **scores.to_json(),
            **transductive,
            "chosen": {
                **context.task.choices(heads),
                **grown,
                **({"input_dropout": 0.0} if kept else {}),
            },
            "rounds": trained.rounds,
            "resumed": resumed,
            **gather_measurements(comm, clock, (resident, private), seconds, settings.model.depth),
        }


def _score_whole_graph(
    context: Context,
    part: Part,
    info: GraphInfo,
    stages: Sequence[Any],
    heads: OutputHeads,
) -> Scores:
    """The scores of a network that was trained without held-out nodes, with all of their edges."""
    settings = context.settings
    steps = heads.steps if heads.alpha < 1 else 0
    settings = replace(settings, smoothing=replace(settings.smoothing, steps=steps))
    with context.phase("plan"):
        whole = make_context(
            settings,
            part,
            info,
            context.comm,
            stages[0].conv,
            clock=context.clock,
            use="train" if settings.exchange.rounded else "evaluate",
            trained=context.task.with_choices(heads),
        )
    layers = [stage.to(context.device).eval() for stage in stages[: settings.model.depth]]
    logits = infer(whole, layers, heads).logits
    with context.phase("evaluate"):
        return score_nodes(whole, logits, heads).scores


def _keeps_all_columns(architecture: AnyArchitecture) -> bool:
    """Whether the number of columns, not a setting, keeps the (target's) features from dropout."""
    model, width = architecture.model, architecture.num_features
    return (
        width > 0 and model.input_dropout is None and model.features_dropout(width) < model.dropout
    )


def _may_gain_by_depth(settings: TrainSettings, heads: OutputHeads, info: GraphInfo) -> bool:
    """Whether validation chose the last of a given number of lazily trained layers."""
    depth = settings.model.depth
    chooses = settings.output_heads == "validation" and info.num_val and not settings.task.links
    given = settings.trainer.name == "lazy" and not settings.model.grows and depth > 1
    return bool(chooses and given and heads.stages == (depth - 1,))


def _open_recovery(
    job: TrainJob, comm: Communicator, trainer: Trainer
) -> tuple[Recovery | None, tuple[int, int]]:
    """Open the saved states of a trainer that resumes.

    Returns:
        The states, or None where none are saved; the layer and round that the run continues from.
    """
    settings = job.settings
    if not settings.checkpoint.keep:
        return None, (0, 0)
    if not trainer.RESUMES:
        if settings.resume and comm.rank == 0:
            logger.warning(
                "trainer=%s saves no state to resume from: it starts from the beginning",
                settings.trainer.name,
            )
        return None, (0, 0)
    directory = state_dir(job.run_dir, comm.rank)
    # From here on a worker that is asked to stop saves its round first. Before, it ends at once.
    recovery = Recovery(
        directory,
        job.identity,
        settings.checkpoint.every,
        catch_termination(),
        rank=comm.rank,
        world_size=comm.world_size,
    )
    first = recovery.agree(comm) if settings.resume else (0, 0)
    comm.replay_log = recovery.replay_log
    return recovery, first


def _save_model(
    job: TrainJob,
    architecture: AnyArchitecture,
    trainer: Trainer,
    heads: OutputHeads,
    weighted: Sequence[EdgeType],
    of_task: dict[str, Any],
) -> None:
    """Write the checkpoint's description beside the layers, which are already there."""
    about = {"partition_digest": job.directory.digest(), **of_task}
    about |= {"trainer": job.settings.trainer.name, "own_model": trainer.OWN_MODEL}
    about |= {"class_names": job.directory.class_names}
    graph = {**job.directory.graph_settings, "weighted": [*map(SEPARATOR.join, weighted)]}
    about |= {"features": job.directory.feature_pipelines, "graph": graph}
    num_layers = architecture.model.depth
    precision = job.settings.exchange.precision[:num_layers]
    about |= {"answer": asdict(heads), "exchange_precision": precision}
    remove_layers(job.run_dir / "checkpoint", num_layers)
    save_model(job.run_dir / "checkpoint", architecture, about)
