"""`app=train`: train a GNN over a partition directory, one worker a partition."""

import hashlib
import json
import logging
import platform
import shutil
import time
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from partitioning.errors import InputError
from partitioning.sites import SiteFolders, find_sites
from partitioning.storage import MissingPartitions, PartitionDirectory, find
from retexo.apps import resume
from retexo.apps.partition_data import check_dataset_name, directory_of, requested
from retexo.cluster import launch
from retexo.config.schema import keys, without
from retexo.config.settings import ClusterSettings, Settings
from retexo.errors import TrainingError
from retexo.outputs.files import write_json
from retexo.outputs.run_log import check_logger
from retexo.trainers import registry
from retexo.worker.train import Job, choose_device, main, num_threads

logger = logging.getLogger(__name__)

PER_NODE = keys(lambda setting: setting.per_node)
OF_A_PARTITIONER = {key.split(".")[0] for key in keys(lambda setting: setting.of_partitioner)}


def run(settings: Settings, run_dir: Path) -> dict[str, Any]:
    """Train, and return what summary.json of the run directory says; node 0 writes it.

    Raises InputError before anything is started, TrainingError when a worker fails.
    """
    registry.check(settings.train)
    going_on = settings.train.resume
    done = resume.finished(going_on, run_dir)
    if done is not None:
        logger.info("resume=auto: the run in %s is done", run_dir)
        return done
    resume.check_place(going_on, run_dir)
    choose_device(settings.train.cluster.device, 0)
    check_logger(settings.train.logger)
    launch.warm_up()
    directory = open_directory(settings)
    cluster = settings.train.cluster
    for rank in cluster.local_ranks:
        directory.verify(rank)
    shared = shared_settings(settings)
    same = {
        "partitions": directory.content_digest(cluster.local_ranks),
        "threads": num_threads(cluster),
        **{name: versions()[name] for name in ("retexo", "torch")},
    }
    resume.check_same(going_on, run_dir, same, shared)
    with launch.meet(cluster, shared, directory.digest()) as node:
        run_dir.mkdir(parents=True, exist_ok=True)
        identity = resume.prepare(going_on, run_dir, cluster.local_ranks, same, shared)
        job = Job(settings.train, directory, run_dir, node.rendezvous, settings_digest(settings), identity)
        if cluster.local_index(cluster.local_ranks.start) == 0:
            write_json(run_dir / "config.json", {"run_id": node.run_id, **settings.resolved})
        about = {"run_id": node.run_id, "versions": versions(), "settings": settings.resolved}
        summary = {"status": "running", **about}
        summary["partition_digest"] = directory.digest()
        _write_summary(cluster, run_dir, summary)
        try:
            results = launch.run_workers(cluster.local_ranks, main, job, node)
        except BaseException as error:
            with suppress(TrainingError):  # of a full disk the first error is enough
                _write_summary(cluster, run_dir, {**summary, "status": "failed", "error": _reason(error)})
            raise
    result = results[cluster.local_ranks.start]
    result["seconds"]["total"] = time.time() - psutil.Process().create_time()
    summary = {**summary, "status": "done", **result}
    _write_summary(cluster, run_dir, summary)
    shutil.rmtree(run_dir / "state", ignore_errors=True)  # nodes may share a directory
    if cluster.node_rank == 0:
        _print_table(settings, summary, run_dir)
    return summary


def _reason(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return "terminated (SIGTERM)"
    return str(error) or type(error).__name__


def open_directory(settings: Settings) -> PartitionDirectory:
    """Find the partitions: our own layout, then the public Retexo code's, then partition_dir itself as DGL makes it."""
    partition = settings.partition
    if partition.dataset.name == "parts":
        return open_sites(settings)
    named = directory_of(partition)
    base = Path(partition.dir)
    candidates = [named, base / partition.dataset.name, base]
    try:
        directory = find(candidates, partition.num_partitions)
    except MissingPartitions as error:
        raise _not_found(named, partition.dataset.name) from error
    if directory.meta is not None:
        _check_same_data(settings, directory)
    return directory


def open_sites(settings: Settings) -> SiteFolders:
    """The site folders of this machine, for dataset_name=parts: no partitioner has a say in what they hold."""
    for name in sorted(settings.given):
        if name.split(".")[0] in OF_A_PARTITIONER:
            raise InputError(
                f"{name}: has no meaning with dataset_name=parts, where each site's folder is its part; leave it out"
            )
    if settings.partition.dataset.file is None:
        raise InputError("dataset_name=parts needs dataset_file=FOLDER: this site's, with site.json and part.npz")
    return find_sites(Path(settings.partition.dataset.file), settings.partition.num_partitions)


def _not_found(named: Path, dataset: str) -> InputError:
    """The error for partitions that are not there; it names those that are, or the nearest data set."""
    others = sorted(path.name for path in named.parent.glob(f"{dataset}-*-*-*"))
    if not others:
        check_dataset_name(dataset)
    there = f"{named.parent} has {', '.join(others)}. " if others else ""
    return InputError(
        f"no partition directory at {named}. {there}Make it with app=partition_data and the same dataset_name, "
        "partition_method, part_obj, num_partitions and partition_dir"
    )


def _check_same_data(settings: Settings, directory: PartitionDirectory) -> None:
    """What concerns the data is in meta.json; a setting on the command line may not say anything else."""
    assert directory.meta is not None
    wanted, made = requested(settings.partition), directory.meta.request
    for name in sorted(settings.given & wanted.keys()):
        here, there = wanted[name], made.get(name)
        if name == "split" and settings.partition.dataset.split.kind == "default":
            continue
        if isinstance(here, dict) and here["sha256"] is None:  # the data itself need not be where training is
            continue
        if here != there:
            raise InputError(
                f"{name}={_shown(here)}: {directory.path} was made with {name}={_shown(there)}; leave it out, "
                "or partition again (app=partition_data overwrite=true)"
            )


def _shown(value: Any) -> str:
    return f"{value['name']} (sha256 {str(value['sha256'])[:8]})" if isinstance(value, dict) else str(value)


def settings_digest(settings: Settings) -> str:
    """sha256 (hex) of the settings that have to be the same on every node."""
    said = [shared_settings(settings), versions()["retexo"], settings.train.resume is not None]
    return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()


def shared_settings(settings: Settings) -> dict[str, Any]:
    """Those that have to be the same on every node, and when a run is resumed."""
    return without(settings.resolved, PER_NODE)


def versions() -> dict[str, str]:
    """Of Python and the main packages."""
    names = ("retexo", "torch", "dgl", "numpy", "hydra-core")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


def _write_summary(cluster: ClusterSettings, run_dir: Path, summary: dict[str, Any]) -> None:
    """Node 0 writes what is written once."""
    if cluster.node_rank == 0:
        write_json(run_dir / "summary.json", summary)


def _print_table(settings: Settings, summary: dict[str, Any], run_dir: Path) -> None:
    seconds, counted = summary["seconds"], summary["bytes"]
    rows = {
        "model, trainer": f"{settings.train.model.name}, {settings.train.trainer.name}",
        "accuracy (validation, test)": f"{summary['val']['accuracy']:.4f}, {summary['test']['accuracy']:.4f}",
        "F1 on test (micro, macro)": f"{summary['test']['micro_f1']:.4f}, {summary['test']['macro_f1']:.4f}",
        "rounds a layer": ", ".join(map(str, summary["rounds"])),
        "seconds (training, total)": f"{seconds['train']:.2f}, {seconds['total']:.2f}",
        "bytes sent": f"{counted['total']:,}",
        "results": str(run_dir),
    }
    if settings.train.measure_dv:
        rows |= byte_rows(counted)
    for name, value in rows.items():
        print(f"{name:<28} {value}")


def byte_rows(counted: dict[str, Any]) -> dict[str, str]:
    """The table of measure_dv: bytes by kind, by layer and by sender."""
    return {
        **{f"  bytes of {kind}": f"{sent:,}" for kind, sent in counted["by_kind"].items()},
        **{f"  bytes of layer {layer}": f"{sent:,}" for layer, sent in enumerate(counted["by_layer"])},
        **{f"  bytes sent by rank {rank}": f"{sum(sent):,}" for rank, sent in enumerate(counted["by_peer"])},
    }
