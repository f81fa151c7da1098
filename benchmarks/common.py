"""Shared code of the benchmarks: arguments, data sets, silent runs, and statistics over runs."""

import argparse
import contextlib
import io
import logging
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from scipy import stats

from partitioning import datasets, node_split
from partitioning.directory.meta import Meta
from partitioning.directory.partition import Partition
from partitioning.directory.read_directory import PartitionDirectory
from partitioning.graph.graph_data import GraphData
from partitioning.node_split import Split
from retexo.apps import partition_data
from retexo.apps import train as train_app
from retexo.apps.find_partitions import find_or_make_partitions
from retexo.comm.collectives import Communicator
from retexo.comm.thread_transport import run_threads
from retexo.comm.traffic_meter import TrafficMeter
from retexo.exchange.cover import minimum_cover
from retexo.models.network import build_network
from retexo.plan import baselines
from retexo.plan.traffic import find_architecture
from retexo.results.run_log import RunLog
from retexo.rounds.graph_info import agree_on_graph_info
from retexo.settings.run_settings import Settings, TrainSettings
from retexo.tasks.scores import choose_and_score
from retexo.trainers.context import Clock, Context
from retexo.trainers.label_propagation import make_smoother
from retexo.trainers.registry import find_trainer
from retexo.worker.graph import make_architecture, read_graph
from retexo.worker.make_context import make_context
from retexo.worker.process import gather_measurements

ROOT = Path(__file__).resolve().parents[1]
MODELS = ("gcn", "sage", "gat")
CORA = ["dataset_name=cora"]
PUBMED_SPLIT = [
    "split=per_class",
    "split.train=1461",
    "split.val=2190",
    "split.test=13144",
]
ARGUMENTS: dict[str, dict[str, Any]] = {
    "seeds": {"type": int, "help": "seeds 0, 1, ... of split, parts and parameters"},
    "pubmed": {"type": Path, "help": "PubMed as an npz of the form of dataset_name=file"},
    "pubmed_seeds": {"type": int, "help": "as --seeds, of PubMed"},
    "models": {"nargs": "+"},
    "options": {"nargs": "*", "help": "further settings for every run"},
    "repeats": {"type": int},
}


def parser(description: str | None, **defaults: Any) -> argparse.ArgumentParser:
    """Return a parser with the given defaults of ARGUMENTS; switch off log messages."""
    be_silent()
    arguments = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in defaults.items():
        arguments.add_argument(f"--{name.replace('_', '-')}", default=default, **ARGUMENTS[name])
    return arguments


def be_silent() -> None:
    """Switch off log messages in this process."""
    logging.disable(logging.INFO)


def machine() -> str:
    return f"torch {torch.__version__}, {platform.machine()}, {torch.get_num_threads()} cores"


def graphs(pubmed: Path | None) -> dict[str, list[str]]:
    """Return by name the settings of Cora and, if its file is given, PubMed (published split)."""
    if pubmed is None:
        return {"cora": CORA}
    return {
        "cora": CORA,
        "pubmed": ["dataset_name=file", f"dataset_file={pubmed.resolve()}", *PUBMED_SPLIT],
    }


def load_graph(settings: Settings) -> tuple[GraphData, Split]:
    """Load the graph that the settings name, with its split."""
    graph = datasets.load_graph(settings)
    split = datasets.recipe(settings.dataset_name).split
    return graph, node_split.draw(graph, settings.split, split)


def dense_features(graph: GraphData) -> np.ndarray:
    """Return the features of a plain graph as [N, F], also where the graph has them sparse."""
    features = graph.features
    return features if isinstance(features, np.ndarray) else features.toarray()


def partition(settings: Settings) -> Meta:
    """Make the partitions that the settings name, without output."""
    with contextlib.redirect_stdout(io.StringIO()):
        return partition_data.run(settings)


def train(settings: Settings, folder: Path | str) -> dict[str, Any]:
    """Train into a new run directory below a folder, without output; return summary.json."""
    with contextlib.redirect_stdout(io.StringIO()):
        return train_app.run(settings, Path(tempfile.mkdtemp(dir=folder)))


class Trace(RunLog):
    """Of each round of all layers: the validation metric, and the bytes that all workers sent."""

    def __init__(self, settings: TrainSettings, meters: Mapping[int, TrafficMeter]) -> None:
        super().__init__(Path(), 1, settings)
        self._meters = meters
        self.rounds: list[tuple[float, int]] = []

    def round(
        self,
        layer: int,
        number: int,
        train_loss: float | None,
        val_metric: float | None = None,
        val_loss: float | None = None,
    ) -> None:
        if val_metric is not None:
            self.rounds.append((val_metric, sum(meter.total for meter in self._meters.values())))


def train_in_threads(
    settings: Settings, inspect: Callable[..., dict[str, Any]] = lambda make, settings, stages: {}
) -> dict[str, Any]:
    """Train with worker threads of this process.

    Return accuracy, rounds and bytes as in summary.json, the `trace` of rank 0, and what `inspect`
    returns there; all threads call it with a function that makes a context from settings, these
    settings, and the trained stages.

    Many short runs take a third of the time. Threads share one random generator for dropout, and
    in a trace the others may be behind by a message.
    """
    directory = find_or_make_partitions(settings)
    parts = [read_graph(directory, part) for part in range(directory.num_parts)]
    lock, built = threading.Lock(), threading.Barrier(len(parts))
    seed, trainer = settings.seed, find_trainer(settings)
    torch.manual_seed(seed)
    meters: dict[int, TrafficMeter] = {}

    def work(comm: Communicator) -> dict[str, Any]:
        start = time.perf_counter()
        part, meters[comm.rank] = parts[comm.rank], comm.meter
        trace = Trace(settings, meters)
        info = agree_on_graph_info(comm, part, directory)
        with lock:  # they are drawn from one generator, too
            stages = build_network(make_architecture(part, settings, info), seed)
        built.wait()

        def make(settings: TrainSettings) -> Context:
            return make_context(
                settings,
                part,
                info,
                comm,
                stages[0].conv,
                clock=Clock(),
                log=trace,
                use=trainer.USE,
            )

        context = make(settings)
        trained = trainer.train(context, [stage.to(context.device) for stage in stages])
        if settings.model.grows:
            context = context.with_num_layers(len(trained.rounds))
        _, scores = choose_and_score(context, stages, trained.logits, make_smoother(context))
        measured = gather_measurements(
            comm, Clock(), (0, 0), time.perf_counter() - start, settings.model.depth
        )
        return {
            **scores.to_json(),
            "metric": context.task.make_round_metric().name,
            "rounds": trained.rounds,
            "trace": trace.rounds,
            **measured,
            **inspect(make, settings, stages),
        }

    return run_threads(len(parts), work)[0]


def read_partitions(settings: Settings) -> tuple[PartitionDirectory, list[Partition]]:
    """Read the partitions that the settings name; make them first if needed."""
    with contextlib.redirect_stdout(io.StringIO()):
        directory = find_or_make_partitions(settings)
    return directory, [directory.read_part(part) for part in range(directory.num_parts)]


def centralized_bytes(
    settings: Settings, directory: PartitionDirectory, partitions: Sequence[Partition]
) -> int:
    """Return the bytes of sending all partitions to the worker with the largest."""
    architecture = find_architecture(settings, directory, partitions)
    return baselines.centralized_bytes(partitions, architecture.num_classes)


def count_cover_rows(partitions: Sequence[Partition]) -> int:
    """Return the rows of one exchange where partial sums replace rows if that saves rows.

    This is the smallest vertex cover of the cut edges, summed over the pairs of partitions. A halo
    node has one owner; a destination has a sum from each owner of its sources.
    """
    covers = 0
    for part in partitions:
        edges = part.edges
        cut = edges.src >= part.num_inner
        halo = (edges.src[cut] - part.num_inner).numpy()
        sums = edges.halo_owner.numpy()[halo] * part.num_inner + edges.dst[cut].numpy()
        rows, left = np.unique(halo, return_inverse=True)
        keys, right = np.unique(sums, return_inverse=True)
        weights = np.ones(len(rows), np.int64), np.ones(len(keys), np.int64)
        covers += minimum_cover(left, right, *weights).weight
    return covers


def run_watched(
    command: Sequence[str],
    environment: dict[str, str],
    *,
    pss: bool = True,
    cwd: Path | None = None,
) -> dict[str, Any]:
    """Run a command; return its `status`, the lines of its `errors`, and `seconds`.

    Also over all its processes, sampled every 0.3 s: `rss`, the sum of peaks; `anonymous` and
    `pss`, the peak of the total, in bytes; `cpu` in seconds. Sampling pss is slow for large
    processes.
    """
    peaks: dict[int, int] = {}
    busy: dict[int, float] = {}
    together = dict.fromkeys(("anonymous", "pss"), 0)
    start = time.perf_counter()
    with tempfile.TemporaryFile("w+", encoding="utf-8") as errors:
        environment = {**os.environ, **environment}
        process = psutil.Popen(
            command, stdout=subprocess.DEVNULL, stderr=errors, env=environment, cwd=cwd
        )
        while process.poll() is None:
            now = dict.fromkeys(together, 0)
            for member in _tree(process):
                with contextlib.suppress(psutil.Error):
                    memory = member.memory_full_info() if pss else member.memory_info()
                    times = member.cpu_times()
                    peaks[member.pid] = max(peaks.get(member.pid, 0), memory.rss)
                    busy[member.pid] = times.user + times.system
                    now["anonymous"] += memory.rss - memory.shared
                    now["pss"] += getattr(memory, "pss", 0)
            together = {name: max(together[name], now[name]) for name in together}
            with contextlib.suppress(psutil.TimeoutExpired):
                process.wait(0.3)
        seconds = time.perf_counter() - start
        errors.seek(0)
        said = [line for line in errors.read().splitlines() if line.strip()]
    return {
        "status": process.returncode,
        "errors": said,
        "seconds": seconds,
        "rss": sum(peaks.values()),
        "cpu": sum(busy.values()),
        **together,
    }


def run_main(*arguments: str, tree: Path = ROOT, cwd: Path | None = None) -> dict[str, Any]:
    """Run main.py of a checkout with run_watched, without pss. On failure exit with its output."""
    command = [sys.executable, str(tree / "main.py"), *arguments]
    watched = run_watched(command, {"PYTHONPATH": str(tree)}, pss=False, cwd=cwd)
    if watched["status"]:
        raise SystemExit(
            "\n".join([f"{' '.join(command)}: ended with {watched['status']}", *watched["errors"]])
        )
    return watched


def _tree(process: psutil.Popen) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return [process, *process.children(recursive=True)]
    return []


# --- figures of several runs, from their summary.json ----------


def accuracies(summaries: Sequence[dict[str, Any]], split: str) -> np.ndarray:
    """Return the accuracies on train, val or test nodes, [runs]."""
    return np.array([summary[split]["accuracy"] for summary in summaries])


def interval(values: list[float]) -> str:
    """Return the mean and its 95 % confidence interval (Student's t)."""
    if len(values) < 2:
        return f"{np.mean(values):.4f}" if values else "-"
    half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
    return f"{np.mean(values):.4f} +- {half:.4f}"


def with_spread(values: np.ndarray) -> str:
    """Return mean and sample standard deviation."""
    return f"{values.mean():.4f} +- {values.std(ddof=1) if len(values) > 1 else float('nan'):.4f}"


def megabytes(summaries: Sequence[dict[str, Any]], *kinds: str) -> float:
    """Return the mean bytes of some kinds (None: all), in MB (1e6)."""
    by_kind = [summary["bytes"]["by_kind"] for summary in summaries]
    return float(np.mean([sum(sent[kind] for kind in kinds or sent) for sent in by_kind])) / 1e6
