"""`app=evaluate`: scores of a trained model on the same or another partition of the graph.

`app=predict` takes the same steps: checkpoint, partitions, workers, result.
"""

import logging
import time
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from partitioning.directory.read_directory import PartitionDirectory
from partitioning.errors import InputError
from partitioning.partition_settings import REGRESSION
from partitioning.setting_fields import with_values
from partitioning.sites.site_folders import has_site_tables
from retexo.apps.find_partitions import find_existing, open_partitions, with_found_parts
from retexo.apps.resume import check_unused
from retexo.apps.run_identity import shared_settings, versions
from retexo.apps.summary import baselines_of, print_results
from retexo.exchange.exchange_plan import Use
from retexo.launch import rendezvous, start_workers
from retexo.launch.handshake import RunInfo
from retexo.predict.predictor import dataset_like_training
from retexo.results.atomic_write import write_json
from retexo.results.checkpoint import Checkpoint, open_checkpoint
from retexo.results.run_lock import locks_run_dir
from retexo.settings.app_settings import PredictSettings
from retexo.settings.options import ModelSettings
from retexo.settings.run_settings import Settings
from retexo.worker import infer
from retexo.worker.compatibility import check_fits
from retexo.worker.process import check_machine

logger = logging.getLogger(__name__)


@locks_run_dir
def run(settings: Settings, run_dir: Path) -> dict[str, Any]:
    """Evaluate, and return the content of evaluation.json, which node 0 writes.

    Raises:
        InputError: Before any process is started.
        TrainingError: A worker failed.
    """
    opened = prepare_inference(settings, run_dir, ("evaluation.json",), predict=False)
    result = run_workers(*opened, run_dir, None)
    if settings.node_rank == 0:
        path = run_dir / "evaluation.json"
        write_json(path, result)
        print_results(result, {"written": path}, measure_dv=settings.measure_dv)
    return result


def prepare_inference(
    settings: Settings, run_dir: Path, outputs: tuple[str, ...], *, predict: bool
) -> tuple[Settings, Checkpoint, PartitionDirectory]:
    """Open checkpoint and partitions; InputError if they do not fit or output exists.

    Partitions are made where there are none. Warns where predictions depend on the split.

    Returns:
        The settings, with the checkpoint's model and the graph's as in training; both opened.
    """
    check_unused(run_dir, outputs)
    check_machine(settings)
    assert settings.checkpoint_dir is not None
    checkpoint = open_checkpoint(Path(settings.checkpoint_dir))
    settings = with_model_of(checkpoint, settings, predict=predict)
    settings = with_found_parts(settings)
    makes_partitions = find_existing(settings) is None
    tables = settings.dataset_file if settings.dataset_name == "parts" else None
    encodes = tables is not None and has_site_tables(Path(tables))
    if predict and settings.dataset_name == "file" and makes_partitions:
        encodes = True
        settings = dataset_like_training(checkpoint, settings, settings.given)
        logger.info(
            "as the model was trained: symmetrize=%s, duplicates=%s, features by its pipeline;"
            " split=%s",
            settings.symmetrize,
            settings.duplicates,
            settings.split.kind,
        )
    if encodes and checkpoint.features and "features.spec" not in settings.given:
        settings = with_values(settings, {"features.spec": str(checkpoint.directory)})
    checkpoint.stages()  # a damaged file is found here, before workers are started
    directory, settings = open_partitions(settings)
    use: Use = "predict" if predict else "evaluate"
    check_fits(checkpoint, directory, settings.local_ranks, use=use)
    if checkpoint.heads.alpha < 1 and checkpoint.heads.reach == "computed":
        logger.warning(
            "%s: smoothing starts from the nodes of the split only (smoothing.reach=computed), so "
            "predictions depend on the split of %s; models trained with smoothing.reach=hops"
            " do not",
            checkpoint.directory,
            directory.path,
        )
    return settings, checkpoint, directory


def with_model_of(checkpoint: Checkpoint, settings: Settings, *, predict: bool) -> Settings:
    """Return settings with the checkpoint's model and, unless given, its precision of rows.

    A prediction sends its rows in predict.precision.

    Raises:
        InputError: The command line names another model, trainer or task, or two precisions.
    """
    trainer = settings.trainer.name
    if settings.given & {"trainer", "trainer.name"} and checkpoint.trainer not in (None, trainer):
        raise InputError(
            f"trainer={trainer}: the model of {checkpoint.directory} was trained by "
            f"trainer={checkpoint.trainer}; leave it out"
        )
    name, trained = settings.task.name, checkpoint.task_name
    if name != checkpoint.task and (
        settings.given & {"task", "task.name"}
        or (settings.task.node_task != trained and trained != REGRESSION)
        or (settings.task.of_edges and checkpoint.task == trained)
    ):
        raise InputError(
            f"task={name}: the model of {checkpoint.directory} is for"
            f" task={checkpoint.task}; set that task"
        )
    has, requested = by_setting(checkpoint.model), by_setting(settings.model)
    task = replace(settings.task, scorer=settings.link_scorer or settings.edge_head)
    for key, value in checkpoint.task_settings.items():
        has[f"task.{key}"], requested[f"task.{key}"] = value, getattr(task, key)
    for key in sorted(settings.given & requested.keys()):
        if requested[key] != has.get(key):
            raise InputError(
                f"{key}={requested[key]}: the model of {checkpoint.directory} has"
                f" {key}={has.get(key)}; leave it out"
            )
    exchange = settings.exchange
    named = settings.given & {"exchange", "exchange.precision"}
    if named and predict and "predict.precision" in settings.given:
        raise InputError(
            f"predict.precision={settings.predict.precision}: {', '.join(sorted(named))} sets the"
            " precision of rows, too; leave one of them out"
        )
    if not named:
        exchange = replace(checkpoint.exchange, mode=exchange.mode)
        exchange = exchange.at_prediction(settings.predict.precision) if predict else exchange
    if predict and exchange.precision != checkpoint.exchange.precision:
        logger.info(
            "boundary rows have the precision %s, in training they had %s (predict.precision)",
            ", ".join(exchange.precision),
            ", ".join(checkpoint.exchange.precision),
        )
    task = replace(task, name=checkpoint.task, **checkpoint.task_settings)
    model = checkpoint.model
    return replace(settings, exchange=exchange, task=task, model=model, **model.sizes)


def by_setting(model: ModelSettings) -> dict[str, Any]:
    """Return the model settings by dotted name, and `model` for model.name."""
    own = {f"model.{field.name}": getattr(model, field.name) for field in fields(model)}
    return own | model.sizes | {"model": model.name}


def run_workers(
    settings: Settings,
    checkpoint: Checkpoint,
    directory: PartitionDirectory,
    run_dir: Path,
    predict: PredictSettings | None,
) -> dict[str, Any]:
    """Connect to the other nodes, run inference on this node's partitions, and return the content
    of the result file, which the caller writes. Makes `run_dir`; workers write predictions there.
    Raises as `connect_nodes` and `start_workers.run_workers`.

    predict: how predictions are written; None for scores only.
    """
    run_info = RunInfo(shared_settings(settings), directory.digest(), directory.remedy)
    with rendezvous.connect_nodes(settings, run_info) as node:
        job = infer.InferJob(
            settings=settings,
            directory=directory,
            checkpoint=checkpoint,
            run_dir=run_dir,
            rendezvous=node.rendezvous,
            predict=predict,
        )
        run_dir.mkdir(parents=True, exist_ok=True)
        results = start_workers.run_workers(settings.local_ranks, infer.main, job, node)
    result: dict[str, Any] = results[settings.local_ranks.start]
    result["seconds"]["total"] = time.time() - settings.started
    return {
        "run_id": node.run_id,
        "checkpoint": str(checkpoint.directory),
        "partitions": str(directory.path),
        "same_partitions": directory.digest() == checkpoint.partition_digest,
        **({} if predict else baselines_of(directory)),
        **result,
        "versions": versions(),
        "settings": settings.stored,
    }
