"""`app=train`: train a GNN over a partition directory, one worker a partition."""

import logging
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from retexo.apps import resume
from retexo.apps.find_partitions import open_local, with_parts_found
from retexo.apps.run_identity import settings_digest, shared_settings, versions
from retexo.apps.summary import baselines_of, byte_rows, link_rows, print_rows
from retexo.errors import TrainingError
from retexo.launch import start_workers
from retexo.results.atomic_write import write_json
from retexo.results.run_lock import locks_run_dir
from retexo.results.run_log import check_logger
from retexo.settings.cluster_settings import ClusterSettings
from retexo.settings.run_settings import Settings
from retexo.trainers.registry import check
from retexo.worker.process import choose_device, num_threads
from retexo.worker.train import TrainJob, main

logger = logging.getLogger(__name__)


@locks_run_dir
def run(settings: Settings, run_dir: Path) -> dict[str, Any]:
    """Train, and return what summary.json of the run directory says; node 0 writes it.

    Raises InputError before anything is started, TrainingError when a worker fails.
    """
    check(settings.train)
    settings = with_parts_found(settings)
    shared = shared_settings(settings)
    source = settings.train.resume
    is_new_job = settings.is_multirun_job and source is None
    done = resume.finished("auto" if is_new_job else source, run_dir, shared)
    if done is not None:
        logger.info("%s: this run is done already", run_dir)
        return done
    if is_new_job:
        settings = resume.continue_job(settings, run_dir)
        source = settings.train.resume
    resume.check_place(source, run_dir, settings.train.cluster.local_ranks)
    choose_device(settings.train.cluster.device, 0)
    check_logger(settings.train.logger)
    directory = open_local(settings)
    cluster = settings.train.cluster
    same = {
        "partitions": directory.content_digest(cluster.local_ranks),
        "threads": num_threads(cluster),
        **{name: versions()[name] for name in ("retexo", "torch")},
    }
    resume.check_same(source, run_dir, same, shared)
    with start_workers.connect_nodes(cluster, shared, directory.digest()) as node:
        run_dir.mkdir(parents=True, exist_ok=True)
        kept = settings.train.checkpoint.keep
        identity = (
            resume.prepare(source, run_dir, cluster.local_ranks, same, shared) if kept else ""
        )
        job = TrainJob(
            settings.train, directory, run_dir, node.rendezvous, settings_digest(settings), identity
        )
        if cluster.local_index(cluster.local_ranks.start) == 0:
            write_json(run_dir / "config.json", {"run_id": node.run_id, **settings.resolved})
        summary = {
            **baselines_of(directory),
            "status": "running",
            "run_id": node.run_id,
            "versions": versions(),
            "settings": settings.resolved,
            "partition_digest": directory.digest(),
        }
        _write_summary(cluster, run_dir, summary)
        try:
            results = start_workers.run_workers(cluster.local_ranks, main, job, node)
        except BaseException as error:
            with suppress(TrainingError):  # of a full disk the first error is enough
                _write_summary(
                    cluster, run_dir, {**summary, "status": "failed", "error": _reason(error)}
                )
            raise
    result = results[cluster.local_ranks.start]
    result["seconds"]["total"] = time.time() - settings.started
    summary = {**summary, "status": "done", **result}
    _write_summary(cluster, run_dir, summary)
    if cluster.node_rank != 0 and kept:
        resume.note_done(run_dir, summary)
    shutil.rmtree(run_dir / "state", ignore_errors=True)  # nodes may share a directory
    if cluster.node_rank == 0:
        _print_table(settings, summary, run_dir)
    else:
        scored = ", ".join(
            f"{name} {value:.4f}" for name, value in list(result.get("test", {}).items())[:1]
        )
        print(f"node {cluster.node_rank}: done, test {scored}; node 0 has the results")
    return summary


def _class_rows(summary: dict[str, Any]) -> dict[str, str]:
    val, test = summary["val"], summary["test"]
    return {
        "accuracy (validation, test)": f"{val['accuracy']:.4f}, {test['accuracy']:.4f}",
        "F1 on test (micro, macro)": f"{test['micro_f1']:.4f}, {test['macro_f1']:.4f}",
    }


def _resumed_row(resumed: dict[str, Any] | None) -> dict[str, str]:
    """From where the run went on; nothing of one that began anew."""
    if resumed is None or resumed["layer"] == resumed["round"] == 0:
        return {}
    return {"went on from": "layer {layer}, round {round} of {run_dir}".format(**resumed)}


def _reason(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"terminated ({start_workers.name_of_signal(error)})"
    return str(error) or type(error).__name__


def _write_summary(cluster: ClusterSettings, run_dir: Path, summary: dict[str, Any]) -> None:
    """Node 0 writes what is written once."""
    if cluster.node_rank == 0:
        write_json(run_dir / "summary.json", summary)


def _print_table(settings: Settings, summary: dict[str, Any], run_dir: Path) -> None:
    seconds, counted = summary["seconds"], summary["bytes"]
    rows = {
        "model, trainer": f"{settings.train.model.name}, {settings.train.trainer.name}",
        **(link_rows(summary) if settings.train.task.links else _class_rows(summary)),
        "rounds per layer": ", ".join(map(str, summary["rounds"])),
        **_resumed_row(summary["resumed"]),
        "seconds (training, total)": f"{seconds['train']:.2f}, {seconds['total']:.2f}",
        "bytes sent": f"{counted['total']:,}",
        "results": str(run_dir),
    }
    print_rows(rows | (byte_rows(counted) if settings.train.measure_dv else {}))
