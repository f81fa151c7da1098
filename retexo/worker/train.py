"""One worker: it owns one partition, trains with its peers, and tells its parent how it went."""

import errno
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from multiprocessing import connection, parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import nn

from partitioning.errors import InputError
from partitioning.storage import Partition, PartitionDirectory
from retexo.cluster.heartbeat import ParentPipe, Progress
from retexo.comm.collectives import Communicator, PeerLost, Summand
from retexo.comm.process_group import Rendezvous, process_group
from retexo.comm.traffic import KINDS, Purpose
from retexo.config.settings import ClusterSettings, TrainSettings
from retexo.errors import Stopped, TrainingError
from retexo.exchange.plan import PlanRequest, Use, global_out_degree, make_plan
from retexo.nn.block import InEdges
from retexo.nn.convolution import Convolution
from retexo.nn.stage import Architecture, build_stage
from retexo.outputs.checkpoint import save_layer, save_model
from retexo.outputs.run_log import RunLog
from retexo.sites.halo_rows import ask_owners
from retexo.trainers import registry
from retexo.trainers.context import PHASES, Clock, Context
from retexo.training.graph_info import GraphInfo, agree_on_graph_info, check_same_parameters
from retexo.training.loop import Totals
from retexo.training.recovery import Recovery, state_dir
from retexo.training.task import NodeClassification, Score, ogb_correct, score

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """What a worker is told when it starts."""

    settings: TrainSettings
    directory: PartitionDirectory
    run_dir: Path
    rendezvous: Rendezvous
    settings_digest: str
    """sha256 (hex) of the settings that have to be the same on every node."""
    identity: str
    """sha256 (hex) of what a state has to be of, to go on from it."""


def main(rank: int, job: Job, parent: Connection) -> None:
    """Entry point of a worker process. What the parent gets is JSON: a result, or an error with its kind."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())  # ends after a round, once that is kept
    timeout = job.settings.cluster.heartbeat_timeout
    serve(parent, timeout, lambda progress: run(rank, job, stop.is_set, progress))


def serve(parent: Connection, heartbeat_timeout: float, work: Callable[[Progress], dict[str, Any]]) -> None:
    """Do a worker's work, and tell its parent where it is and how it went."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the parent ends the workers
    threading.Thread(target=_die_with_parent, daemon=True).start()
    pipe = ParentPipe(parent)
    try:
        pipe.send({"result": work(pipe.start_heartbeat(heartbeat_timeout))})
    except Exception as error:
        kinds = {InputError: "input", TrainingError: "failure", PeerLost: "peer", Stopped: "stopped"}
        kind = kinds.get(type(error), "error")
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            kind = "disk"
        report = {"kind": kind, "message": str(error), "traceback": traceback.format_exc()}
        pipe.send({"error": report})
        sys.exit(1)


def _die_with_parent() -> None:
    """A parent that was killed cannot end its workers; they notice."""
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def run(
    rank: int, job: Job, stop_asked: Callable[[], bool] = lambda: False, progress: Progress | None = None
) -> dict[str, Any]:
    """Load the partition, join the group, train, and return what summary.json says of the run."""
    settings = job.settings
    configure(rank, settings)
    memory = MemoryWatch()
    clock = Clock(progress)
    with clock.phase("load"):
        partition = job.directory.read(rank)
    clock.progress.enter("rendezvous")
    with process_group(job.rendezvous, rank), RunLog(job.run_dir, rank, settings, clock.progress) as log:
        start = time.perf_counter()
        comm = Communicator(rank, partition.num_parts, settings.sleep_time)
        graph_info = agree_on_graph_info(comm, partition, job.directory, job.settings_digest)
        architecture = make_architecture(settings, graph_info)
        stages = [build_stage(architecture, layer, settings.seed) for layer in range(architecture.num_layers)]
        check_same_parameters(comm, stages)
        trainer = registry.find(settings.trainer.name)
        recovery, layer, number = None, 0, 0
        if trainer.RESUMES:
            recovery = Recovery(state_dir(job.run_dir, rank), job.identity, settings.checkpoint.every, stop_asked)
            layer, number = recovery.agree(comm) if settings.resume else (0, 0)
            comm.replay_log = recovery.replay_log
        elif settings.resume and rank == 0:
            logger.warning("trainer=%s keeps no state to go on from: it begins anew", settings.trainer.name)
        log.go_on_from(layer, number)
        with clock.phase("plan"):
            context = make_context(
                settings,
                partition,
                graph_info,
                comm,
                stages[0].conv,
                clock=clock,
                log=log,
                run_dir=job.run_dir,
                use=trainer.USE,
            )
        del partition  # the context has all of it, and may release the features
        context = replace(context, recovery=recovery)
        if rank == 0 and graph_info.num_val == 0 and settings.best_val_model:
            logger.warning("there are no validation nodes: every layer runs to num_rounds and keeps its last round")
        trained = trainer.train(context, [stage.to(context.device) for stage in stages])
        with clock.phase("evaluate"):
            scores = final_scores(context, trained.logits, graph_info)
        seconds = time.perf_counter() - start
        if rank == 0:
            clock.progress.enter("checkpoint")
            described = {"partition_digest": job.directory.digest(), "multilabel": graph_info.multilabel}
            described |= {"trainer": settings.trainer.name, "own_model": trainer.OWN_MODEL}
            save_model(job.run_dir / "checkpoint", architecture, described)
        return {
            **{name: asdict(value) for name, value in scores.items()},
            "rounds": trained.rounds,
            "resumed": {"layer": layer, "round": number} if settings.resume else None,
            **measurements(comm, clock, memory.peaks(), seconds, settings.model.num_layers),
        }


def configure(rank: int, settings: TrainSettings) -> None:
    """Logging, threads and randomness of a worker process."""
    logging.basicConfig(format=f"[%(asctime)s][%(levelname)s][rank {rank}] %(message)s", level=logging.INFO)
    torch.set_num_threads(num_threads(settings.cluster))
    torch.manual_seed(settings.seed * 1_000_003 + rank)  # dropout: another mask on every worker


def num_threads(cluster: ClusterSettings) -> int:
    """Of a worker."""
    return cluster.threads_of(len(psutil.Process().cpu_affinity() or [0]))


def choose_device(name: str, local_rank: int) -> torch.device:
    """The device of a worker; workers of a node share its GPUs in turn."""
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("device=cuda: torch sees no GPU here; use device=auto or device=cpu")
    if name == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", local_rank % torch.cuda.device_count())


def make_architecture(settings: TrainSettings, graph_info: GraphInfo) -> Architecture:
    return Architecture(
        **asdict(settings.model), num_features=graph_info.num_features, num_classes=graph_info.num_classes
    )


def make_context(
    settings: TrainSettings,
    partition: Partition,
    graph_info: GraphInfo,
    comm: Communicator,
    conv: Convolution,
    *,
    clock: Clock,
    log: RunLog,
    run_dir: Path,
    dtype: torch.dtype = torch.float32,
    use: Use = "train",
) -> Context:
    """Make the exchange plan and everything else that a trainer needs; conv is of the kind that all layers have."""
    device = choose_device(settings.cluster.device, settings.cluster.local_index(comm.rank))
    plan_request = PlanRequest(
        num_layers=settings.model.num_layers,
        part_sizes=graph_info.part_sizes,
        all_nodes=graph_info.all_nodes_used,
        sums=conv.sums_neighbours,
        plain=settings.exchange.mode == "plain",
        use=use,
    )
    if partition.asked_halo is not None:
        with comm.without_replay_log():  # its keys are drawn anew
            partition = ask_owners(partition, graph_info.part_sizes, comm)
    plan = make_plan(partition, plan_request, comm)
    out_degree = partition.out_degree
    if not graph_info.degrees_stored:
        nodes = partition.num_inner + partition.num_halo
        out_degree = (
            global_out_degree(partition, graph_info.part_sizes, comm) if conv.scales_sources else torch.zeros(nodes)
        )
    assert out_degree is not None
    labels = partition.labels.to(dtype) if partition.multilabel else partition.labels
    features = partition.features if partition.num_inner else torch.empty(0, graph_info.num_features)

    def save(layer: int, stage: nn.Module) -> None:
        if comm.rank == 0:
            clock.progress.enter("checkpoint")
            save_layer(run_dir / "checkpoint", layer, stage)

    return Context(
        settings=settings,
        partition=replace(partition, features=partition.features[:0].clone()),
        features=features.to(dtype),
        labels=labels.to(device),
        edges=InEdges.build(partition.src, partition.dst, partition.in_degree, out_degree, dtype),
        plan=plan,
        plan_request=plan_request,
        totals=Totals(graph_info.num_train, graph_info.num_val, graph_info.num_test, graph_info.untrained),
        num_features=graph_info.num_features,
        task=NodeClassification(graph_info.num_classes, graph_info.multilabel),
        comm=comm,
        device=device,
        log=log,
        save_layer=save,
        clock=clock,
    )


def final_scores(context: Context, logits: torch.Tensor, graph_info: GraphInfo) -> dict[str, Score]:
    """Scores of the whole graph, for OGB's own graphs with the test accuracy of its evaluator; logits [I, C]."""
    scores = evaluate(context, logits)
    if graph_info.ogb_name is not None:
        scores["test"] = ogb_test_score(context, logits, scores["test"], graph_info.ogb_name)
    return scores


def evaluate(context: Context, logits: torch.Tensor) -> dict[str, Score]:
    """Scores of the whole graph's training, validation and test nodes from this worker's logits [I, C]."""
    partition, totals = context.partition, context.totals
    masks = {"train": partition.train_mask, "val": partition.val_mask, "test": partition.test_mask}
    counts = torch.stack([context.task.counts(logits[mask], partition.labels[mask]) for mask in masks.values()])
    context.comm.all_reduce([Summand(counts.view(-1))], Purpose("metrics"))
    return {
        name: score(counts[place], getattr(totals, name), context.task.multilabel) for place, name in enumerate(masks)
    }


def ogb_test_score(context: Context, logits: torch.Tensor, counted: Score, name: str) -> Score:
    """The test score with the accuracy of the Open Graph Benchmark's evaluator."""
    mask = context.partition.test_mask
    correct = torch.tensor([ogb_correct(name, logits[mask], context.partition.labels[mask])])
    context.comm.all_reduce([Summand(correct)], Purpose("metrics"))
    return replace(counted, accuracy=int(correct) / max(1, context.totals.test))


def measurements(
    comm: Communicator, clock: Clock, peaks: tuple[int, int], seconds: float, num_layers: int
) -> dict[str, Any]:
    """Times, memory and bytes of all workers, at rank 0; the last messages of a run. peaks: resident and private."""
    phases = torch.tensor([clock.seconds[name] for name in PHASES], dtype=torch.float64)
    slowest = comm.gather(phases, Purpose("metrics"))
    memory = comm.gather(torch.tensor(peaks), Purpose("metrics"))
    phase = dict(zip(PHASES, slowest.amax(dim=0).tolist(), strict=True)) if len(slowest) else {}
    return {
        "seconds": {"train": seconds, "phase": phase},
        "peak_memory_bytes": memory[:, 0].tolist(),
        "peak_private_bytes": memory[:, 1].tolist(),
        "bytes": traffic_summary(comm, num_layers),
    }


def traffic_summary(comm: Communicator, num_layers: int) -> dict[str, Any] | None:
    """At rank 0 the bytes that all workers sent, the sending of this account included; None elsewhere."""
    table = comm.gather_traffic(num_layers)
    if not len(table):
        return None
    by_layer = table.sum(dim=(0, 1, 3)).tolist()
    by_kind = table.sum(dim=(0, 2, 3)).tolist()
    return {
        "total": int(table.sum()),
        "by_kind": dict(zip(KINDS, by_kind, strict=True)),
        "by_layer": by_layer[:-1],
        "outside_layers": by_layer[-1],
        "by_layer_and_kind": [dict(zip(KINDS, row, strict=True)) for row in table.sum(dim=(0, 3)).T.tolist()],
        "by_peer": table.sum(dim=(1, 2)).tolist(),
    }


class MemoryWatch:
    """Peak memory of this process, resident and anonymous, in bytes; the kernel keeps only the former's peak."""

    INTERVAL = 0.1  # seconds

    def __init__(self) -> None:
        self.private = 0
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            self.sample()
            time.sleep(self.INTERVAL)

    def sample(self) -> None:
        self.private = max(self.private, status_bytes("RssAnon"))

    def peaks(self) -> tuple[int, int]:
        """Resident and private."""
        self.sample()
        return status_bytes("VmHWM"), self.private


def status_bytes(field: str) -> int:
    """A field of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return 0
