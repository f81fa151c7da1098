"""Common steps of `app=evaluate` and `app=predict`: checkpoint, partitions, workers, results."""

import logging
import time
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from partitioning.directory.read_directory import PartitionDirectory
from partitioning.errors import InputError
from partitioning.partition_settings import REGRESSION, FeatureSettings
from partitioning.site_folders import has_site_tables
from retexo.apps.find_partitions import (
    has_partitions,
    open_local,
    with_found_parts,
    with_settings_of,
)
from retexo.apps.resume import check_unused
from retexo.apps.run_identity import shared_settings, versions
from retexo.apps.summary import (
    MAX_CLASS_ROWS,
    baselines_of,
    byte_rows,
    format_values,
    link_rows,
    print_rows,
)
from retexo.launch import start_workers
from retexo.launch.handshake import RunInfo
from retexo.predictor import dataset_like_training
from retexo.results.checkpoint import Checkpoint, open_checkpoint
from retexo.settings.app_settings import PredictSettings
from retexo.settings.flatten import nest
from retexo.settings.run_settings import ModelSettings, Settings
from retexo.worker import infer
from retexo.worker.compatibility import Shape, check_fits
from retexo.worker.process import check_machine

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prepared:
    """Checked input of a run."""

    settings: Settings
    """Settings with the checkpoint's model."""
    checkpoint: Checkpoint
    directory: PartitionDirectory


def prepare(
    settings: Settings, run_dir: Path, outputs: tuple[str, ...], *, predict: bool
) -> Prepared:
    """Open checkpoint and partitions; InputError if they do not fit or output exists."""
    check_unused(run_dir, outputs)
    check_machine(settings.train.cluster)
    assert settings.checkpoint_dir is not None
    checkpoint = open_checkpoint(Path(settings.checkpoint_dir))
    settings = with_model_of(checkpoint, settings, predict=predict)
    settings = with_found_parts(settings)
    makes_partitions = settings.partition.overwrite or not has_partitions(settings)
    if predict and settings.partition.dataset.name == "file" and makes_partitions:
        settings = with_training_graph(checkpoint, settings)
    if settings.partition.dataset.name == "parts":
        settings = _with_site_pipeline(checkpoint, settings)
    checkpoint.stages()  # a damaged file is found here, before workers are started
    directory = open_local(settings)
    settings = with_settings_of(directory, settings)
    shape = Shape.of(directory, settings.train.cluster.local_ranks)
    check_fits(checkpoint, shape, directory, use="predict" if predict else "evaluate")
    if checkpoint.heads.alpha < 1 and checkpoint.heads.reach == "computed":
        logger.warning(
            "%s: smoothing starts from the nodes of the split only (smoothing.reach=computed), so "
            "predictions depend on the split of %s; models trained with smoothing.reach=hops"
            " do not",
            checkpoint.directory,
            directory.path,
        )
    return Prepared(settings, checkpoint, directory)


def with_model_of(checkpoint: Checkpoint, settings: Settings, *, predict: bool) -> Settings:
    """Return settings with the checkpoint's model and, unless given, its precision of rows.

    A prediction sends its rows in predict.precision.

    Raises:
        InputError: The command line names another model, trainer or task, or two precisions.
    """
    trainer = settings.train.trainer.name
    if settings.given & {"trainer", "trainer.name"} and checkpoint.trainer not in (None, trainer):
        raise InputError(
            f"trainer={trainer}: the model of {checkpoint.directory} was trained by "
            f"trainer={checkpoint.trainer}; leave it out"
        )
    has, wanted = by_setting(checkpoint.model), by_setting(settings.train.model)
    for key in sorted(settings.given & wanted.keys()):
        if wanted[key] != has.get(key):
            raise InputError(
                f"{key}={wanted[key]}: the model of {checkpoint.directory} has"
                f" {key}={has.get(key)}; leave it out"
            )
    settings = _with_task_of(checkpoint, settings)
    exchange = settings.train.exchange
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
    del has["model"]  # the group's short name for model.name
    resolved = {**settings.resolved, **nest(has), "exchange": asdict(exchange)}
    task = settings.train.task
    if checkpoint.scorer:
        task = replace(task, scorer=checkpoint.scorer, dim=checkpoint.architecture.num_classes)
    train = replace(settings.train, model=checkpoint.model, exchange=exchange, task=task)
    return replace(settings, train=train, resolved=resolved)


def _with_task_of(checkpoint: Checkpoint, settings: Settings) -> Settings:
    """Settings with the checkpoint's task; InputError where the command line names another one."""
    task, trained = settings.train.task, checkpoint.task_name
    if task.name == trained:
        return settings
    if trained == "node_regression" and not settings.given & {"task", "task._target_"}:
        dataset = replace(settings.partition.dataset, task=REGRESSION)
        partition = replace(settings.partition, dataset=dataset)
        train = replace(settings.train, task=replace(task, learns=REGRESSION))
        return replace(settings, train=train, partition=partition)
    raise InputError(
        f"task={task.name}: the model of {checkpoint.directory} is for task={trained}; set that"
        " task"
    )


def with_training_graph(checkpoint: Checkpoint, settings: Settings) -> Settings:
    """Return app=predict's settings to partition a graph: as in training, without a split.

    What the command line gives stays.
    """
    dataset = dataset_like_training(checkpoint, settings.partition.dataset, settings.given)
    spec = replace(settings, partition=replace(settings.partition, dataset=dataset))
    dataset = replace(dataset, features=_with_stored_pipeline(checkpoint, spec))
    logger.info(
        "as the model was trained: symmetrize=%s, duplicates=%s, features by its pipeline;"
        " split=%s",
        dataset.symmetrize,
        dataset.duplicates,
        dataset.split.kind,
    )
    return replace(settings, partition=replace(settings.partition, dataset=dataset))


def _with_stored_pipeline(checkpoint: Checkpoint, settings: Settings) -> FeatureSettings:
    """Return the feature settings with the checkpoint's pipeline, unless one is set."""
    features = settings.partition.dataset.features
    if not checkpoint.features or "features.spec" in settings.given:
        return features
    return replace(features, spec=str(checkpoint.directory))


def _with_site_pipeline(checkpoint: Checkpoint, settings: Settings) -> Settings:
    """The settings by which sites encode their tables, if they have any, as in training."""
    dataset = settings.partition.dataset
    if dataset.file is None or not has_site_tables(Path(dataset.file)):
        return settings
    dataset = replace(dataset, features=_with_stored_pipeline(checkpoint, settings))
    return replace(settings, partition=replace(settings.partition, dataset=dataset))


def by_setting(model: ModelSettings) -> dict[str, Any]:
    """Return the model settings by dotted name, and `model` for model.name."""
    common = {
        each.metadata["setting"].key: getattr(model, each.name)
        for each in fields(model)
        if each.name != "options"
    }
    own = {f"model.{key}": value for key, value in model.options.items()}
    return {"model": model.name, **common, **own}


def run_workers(
    prepared: Prepared, run_dir: Path, predict: PredictSettings | None
) -> dict[str, Any]:
    """Run inference on this node's partitions; return the content of the result file."""
    settings, cluster = prepared.settings, prepared.settings.train.cluster
    directory = prepared.directory
    run_info = RunInfo(shared_settings(settings), directory.digest(), directory.remedy)
    with start_workers.connect_nodes(cluster, run_info) as node:
        job = infer.InferJob(
            settings=settings.train,
            directory=directory,
            checkpoint=prepared.checkpoint,
            run_dir=run_dir,
            rendezvous=node.rendezvous,
            predict=predict,
        )
        run_dir.mkdir(parents=True, exist_ok=True)
        results = start_workers.run_workers(cluster.local_ranks, infer.main, job, node)
    result: dict[str, Any] = results[cluster.local_ranks.start]
    result["seconds"]["total"] = time.time() - settings.started
    return {
        "run_id": node.run_id,
        "checkpoint": str(prepared.checkpoint.directory),
        "partitions": str(directory.path),
        "same_partitions": directory.digest() == prepared.checkpoint.partition_digest,
        **({} if predict else baselines_of(directory)),
        **result,
        "versions": versions(),
        "settings": settings.resolved,
    }


def print_table(result: dict[str, Any], measure_dv: bool, files: list[Path]) -> None:
    """Print scores, bytes and times."""
    seconds, counted = result["seconds"], result["bytes"]
    splits = [name for name in ("train", "val", "test") if result["nodes"][name]]
    rows = {
        "model": result["settings"]["model"]["name"],
        "partitions": f"{result['partitions']} ({len(counted['by_peer'])} workers)",
        **_score_rows(result, splits),
        "boundary rows": ", ".join(dict.fromkeys(result["settings"]["exchange"]["precision"])),
        "seconds (inference, total)": f"{seconds['inference']:.2f}, {seconds['total']:.2f}",
        "bytes sent": f"{counted['total']:,}",
    }
    print_rows(rows | (byte_rows(counted) if measure_dv else {}))
    for file in files:
        print_rows({"written": file})


def _score_rows(result: dict[str, Any], splits: list[str]) -> dict[str, str]:
    """Lines of the table, label -> text: the scores of each split, whatever the task."""
    if "train" not in result:
        return link_rows(result)
    if "targets" in result:
        return {
            split if len(rows) == 1 else f"{split} {row['target']}": format_values(row)
            for split in splits
            for rows in [result["targets"][split]]
            for row in rows[:MAX_CLASS_ROWS]
        }
    return {f"{split} accuracy, F1": _format_scores(result[split]) for split in splits}


def _format_scores(score: dict[str, float]) -> str:
    """Return accuracy, F1 and, if they are known, ROC AUC and average precision on one line."""
    text = f"{score['accuracy']:.4f}; micro {score['micro_f1']:.4f}, macro {score['macro_f1']:.4f}"
    if "roc_auc" in score:
        text += f"; ROC AUC {score['roc_auc']:.4f}, average precision "
        text += f"{score['average_precision']:.4f}"
    return text
