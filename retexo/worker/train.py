"""Worker of app=train: read a partition, join the group, train, evaluate, report."""

import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from partitioning.directory.partition import Partition
from partitioning.graph.graph_data import EdgeType
from partitioning.links.score_names import FILTER
from partitioning.setting_fields import with_values
from retexo.comm.collectives import Communicator
from retexo.comm.socket_transport import Streams
from retexo.launch.heartbeat import Progress
from retexo.models.network import Architecture, build_network
from retexo.models.stage import OutputHeads, Stage
from retexo.results.checkpoint import name_relation, open_checkpoint, remove_layers, save_model
from retexo.results.run_log import RunLog
from retexo.rounds.graph_info import GraphInfo, agree_on_graph_info
from retexo.rounds.objective import choose_precision
from retexo.rounds.parameters import check_same_parameters
from retexo.rounds.recovery import Recovery, state_dir
from retexo.settings.run_settings import TrainSettings
from retexo.sites.secure_sums import hide_shares
from retexo.tasks.scores import choose_and_score, score_nodes
from retexo.tasks.task_context import Scores
from retexo.trainers.context import Clock, Context, return_freed_memory
from retexo.trainers.label_propagation import make_smoother
from retexo.trainers.lazy import infer
from retexo.trainers.registry import find_trainer
from retexo.trainers.trainer import Trainer
from retexo.worker.compatibility import copy_parameters
from retexo.worker.graph import (
    make_architecture,
    read_graph,
    weighted_relations,
    with_weights_of,
)
from retexo.worker.make_context import link_task, make_context
from retexo.worker.process import (
    Job,
    MemoryWatch,
    catch_termination,
    choose_device,
    configure,
    gather_measurements,
    serve,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainJob(Job):
    """A worker's part of app=train."""

    identity: str
    """sha256 (hex) of the run that a saved state has to belong to."""


def run(
    rank: int,
    job: TrainJob,
    streams: Streams | None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Load the partition, join the group, train, and return what summary.json says of the run.

    Worker 0 writes the model and metrics.jsonl; every worker its states and, at sites, what it
    disclosed.
    """
    settings = job.settings
    configure(rank, settings)
    memory, clock = MemoryWatch(), Clock(progress)
    with clock.phase("load"):
        part = read_graph(job.directory, rank, task=settings.task, verifies=True)
    clock.progress.enter("rendezvous")
    with (
        job.connected(rank, streams) as disclosure,
        RunLog(job.run_dir, rank, settings, clock.progress) as log,
    ):
        start, comm = time.perf_counter(), disclosure.comm
        clock.progress.count_bytes = lambda: comm.meter.total
        network = _agree_on_network(job, comm, part)
        settings = with_values(
            settings, {"compute.precision": choose_precision(settings, network.graph_info)}
        )
        trainer = find_trainer(settings)
        recovery, resumed = _open_recovery(job, settings.compute.precision, comm, trainer, log)
        with clock.phase("plan"):
            context = make_context(
                settings,
                part,
                network.graph_info,
                comm,
                network.stages[0].conv,
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
        whole_part = part if settings.split.inductive else None
        del part  # the context has all of it, and may release the features
        _warn_before_training(context, network)
        stages = [stage.to(context.device) for stage in network.stages]
        trained = trainer.train(context, stages)
        if settings.model.grows:
            context = context.with_num_layers(len(trained.rounds))
        with clock.phase("evaluate"):
            heads, scores = choose_and_score(
                context, stages, trained.logits, make_smoother(context)
            )
        transductive = {}
        if whole_part is not None:
            scored = _score_whole_graph(context, whole_part, network.graph_info, stages, heads)
            transductive = {"transductive": {name: scored[name] for name in ("val", "test")}}
        seconds = time.perf_counter() - start
        depth = max(heads.stages) + 1 if settings.model.grows else settings.model.depth
        if rank == 0:
            clock.progress.enter("checkpoint")
            _save_model(job, network, depth, trainer, heads, context.task.describe())
            for warning in scores.warnings:
                logger.warning("%s", warning)
            if _may_gain_by_depth(settings, heads, network.graph_info):
                logger.info(
                    "the last layer alone predicts validation nodes best; num_layers=auto tries"
                    " more layers"
                )
        resident, private = (
            sum(peaks_of_worker)
            for peaks_of_worker in zip(memory.peaks(), trained.memory, strict=True)
        )
        grown = {"num_layers": depth} if settings.model.grows else {}
        kept = {"input_dropout": 0.0} if network.keeps_all_columns else {}
        rounded = {"precision": "bf16"} if settings.compute.precision == "bf16" else {}
        return {
            **scores.to_json(),
            **transductive,
            "chosen": {**context.task.choices(heads), **grown, **kept, **rounded},
            "rounds": trained.rounds,
            "val_by_layer": [*trained.val_by_layer],
            "resumed": resumed,
            **gather_measurements(comm, clock, (resident, private), seconds, settings.model.depth),
        }


main = partial(serve, run)
"""Entry of a worker process."""


@dataclass(frozen=True, eq=False)
class Network:
    """What is trained, the same on every worker."""

    graph_info: GraphInfo
    architecture: Architecture
    stages: list[Stage]
    weighted: list[EdgeType]
    """The relations whose edges have weights."""

    @property
    def keeps_all_columns(self) -> bool:
        """Whether the number of columns, not a setting, keeps features from dropout."""
        model, width = self.architecture.model, self.architecture.num_features
        rate = model.features_dropout(width)
        return width > 0 and model.input_dropout is None and rate < model.dropout


def _agree_on_network(job: TrainJob, comm: Communicator, part: Partition) -> Network:
    """Agree on the sizes of the graph, and build the network with the same initial parameters.

    TrainingError if they differ, InputError if the run of `init` does not fit. From here on sums
    hide shares if gradient.secure.
    """
    settings = job.settings
    device = choose_device(settings.device, settings.local_index(comm.rank))
    graph_info = agree_on_graph_info(
        comm,
        part,
        job.directory,
        task=link_task(settings),
        fast_bf16=device.type == "cpu" and torch.cpu.get_capabilities().get("avx512_bf16", False),
    )
    if settings.init is not None:
        initial = open_checkpoint(Path(settings.init), "init")
        graph_info = with_weights_of(initial, settings, graph_info)
    weighted = weighted_relations(part, graph_info)
    architecture = make_architecture(part, settings, graph_info)
    stages = build_network(architecture, settings.seed)
    if settings.init is not None:
        copy_parameters(settings.init, initial, architecture, stages)
    check_same_parameters(comm, stages)
    if settings.gradient.secure:
        hide_shares(comm, graph_info.num_ranks_by_split, job.rendezvous.identity)
    return Network(graph_info, architecture, stages, weighted)


def _warn_before_training(context: Context, network: Network) -> None:
    """Let rank 0 say what the graph decides over the settings."""
    if context.comm.rank != 0:
        return
    if network.graph_info.num_val == 0 and context.settings.best_val_model:
        logger.warning(
            "no validation nodes: every layer keeps its last round, and the last head predicts%s",
            "; num_layers=auto trains two layers" if context.settings.model.grows else "",
        )
    if network.keeps_all_columns:
        logger.info(
            "model.input_dropout=0, as the features have only %d columns",
            network.architecture.num_features,
        )
    if context.settings.compute.precision == "bf16":
        logger.info("compute.precision=bf16: dense products round their inputs")


def _score_whole_graph(
    context: Context,
    part: Partition,
    info: GraphInfo,
    stages: Sequence[Any],
    heads: OutputHeads,
) -> Scores:
    """Score a network that was trained without held-out nodes, now with all of their edges.

    All workers call it; it makes new exchange plans.
    """
    settings = context.settings
    steps = heads.steps if heads.alpha < 1 else 0
    settings = replace(settings, smoothing=replace(settings.smoothing, steps=steps))
    with context.phase("plan"):
        inductive_context = make_context(
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
    logits = infer(inductive_context, layers, heads).logits
    with context.phase("evaluate"):
        return score_nodes(inductive_context, logits, heads).scores


def _may_gain_by_depth(settings: TrainSettings, heads: OutputHeads, info: GraphInfo) -> bool:
    """Return whether validation chose the last of a given number of lazily trained layers."""
    depth = settings.model.depth
    chooses = settings.classifiers == "validation" and info.num_val and not settings.task.links
    is_lazy = settings.trainer.name == "lazy" and not settings.model.grows and depth > 1
    return bool(chooses and is_lazy and heads.stages == (depth - 1,))


def _open_recovery(
    job: TrainJob, precision: str, comm: Communicator, trainer: Trainer, log: RunLog
) -> tuple[Recovery | None, dict[str, Any] | None]:
    """Open the saved states of a trainer that resumes; all workers call it.

    With them SIGTERM no longer ends this worker, and its messages outside the rounds are recorded
    or replayed. Rounds that run again are removed from `log`. A state of another precision of
    products counts as one of another run.

    Returns:
        The states, or None where none are saved; what summary.json says of the layer and round that
        a resumed run continues from (0, 0 without a state), None without settings.resume.
    """
    settings, recovery, layer, number = job.settings, None, 0, 0
    if settings.checkpoint.keep and trainer.RESUMES:
        # From here on a worker asked to stop saves its round first; before, it ends at once.
        recovery = Recovery(
            state_dir(job.run_dir, comm.rank),
            f"{job.identity} {precision}",
            settings.checkpoint.every,
            catch_termination(),
            rank=comm.rank,
            world_size=comm.world_size,
        )
        layer, number = recovery.agree(comm) if settings.resume else (0, 0)
        comm.replay_log = recovery.replay_log
    elif settings.checkpoint.keep and settings.resume and comm.rank == 0:
        logger.warning(
            "trainer=%s saves no state to resume from: it starts from the beginning",
            settings.trainer.name,
        )
    log.resume_from(layer, number)
    if settings.resume is None:
        return recovery, None
    source = job.run_dir if settings.resume == "auto" else settings.resume
    resumed = {"layer": layer, "round": number, "run_dir": str(source)}
    if comm.rank == 0:
        logger.info("resumes at layer %d, round %d of the run in %s", *resumed.values())
    return recovery, resumed


def _save_model(
    job: TrainJob,
    network: Network,
    depth: int,
    trainer: Trainer,
    heads: OutputHeads,
    of_task: dict[str, Any],
) -> None:
    """Write the checkpoint's description beside the layers, which are already there.

    Rank 0 alone calls it. TrainingError if that fails.

    depth: the number of layers that are kept; files of further ones are removed.
    """
    directory = job.directory
    weighted = [*map(name_relation, network.weighted)]
    links: dict[str, Any] = directory.meta.links if directory.meta else {}
    spectral = {"spectral_filter": {name: links.get(name, 0) for name in FILTER}} if links else {}
    about = {
        "partition_digest": directory.digest(),
        **of_task,
        "trainer": job.settings.trainer.name,
        "own_model": trainer.OWN_MODEL,
        "class_names": directory.class_names,
        "features": directory.feature_pipelines,
        "graph": {**directory.graph_settings, "weighted": weighted, **spectral},
        "answer": asdict(heads),
        "exchange_precision": job.settings.exchange.precision[:depth],
    }
    model = replace(job.settings.model, num_layers=depth)
    remove_layers(job.run_dir / "checkpoint", depth)
    save_model(job.run_dir / "checkpoint", replace(network.architecture, model=model), about)
