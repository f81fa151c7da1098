"""`app=predict`: class, probabilities and optionally embeddings of every node by its id."""

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from partitioning.directory.read_directory import PartitionDirectory
from partitioning.errors import InputError
from partitioning.read.id_files import find_ids, read_ids
from retexo.apps.evaluate import prepare_inference, run_workers
from retexo.apps.summary import print_results, print_rows
from retexo.results import predictions
from retexo.results.atomic_write import write_json
from retexo.results.run_lock import locks_run_dir
from retexo.settings.run_settings import Settings

logger = logging.getLogger(__name__)


@locks_run_dir
def run(settings: Settings, run_dir: Path) -> dict[str, Any]:
    """Predict, and return the content of predictions.json; node 0 writes it and merges the parts.

    If it fails, it removes its output files, and those of an earlier run that was killed.

    Raises:
        InputError: Before any process is started.
        TrainingError: A worker failed.
    """
    _check_links(settings)
    predict = settings.predict
    joined = [f"{name}.{predict.format}" for name in predictions.KINDS[: 1 + predict.embeddings]]
    begun = run_dir / f".predicting{settings.node_rank}"
    if begun.exists() and not (run_dir / "predictions.json").exists():
        logger.warning("%s: removing what an app=predict left that was killed", run_dir)
        _remove_outputs(run_dir, (*predictions.KINDS, *joined))
    settings, checkpoint, directory = prepare_inference(
        settings, run_dir, ("predictions.json", *predictions.KINDS, *joined), predict=True
    )
    _check_ids(settings, directory)
    if predict.embeddings and checkpoint.model.num_layers == 1:
        raise InputError(
            "predict.embeddings=true: a model of one layer has no hidden layer; leave it out"
        )
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        begun.touch()
        result = run_workers(settings, checkpoint, directory, run_dir, predict)
        if settings.node_rank == 0:
            result["parts_missing"] = predictions.merge(
                run_dir, settings.num_partitions, predict.format
            )
            result["class_names"] = checkpoint.class_names
            write_json(run_dir / "predictions.json", result)
    except BaseException:
        _remove_outputs(run_dir, (*predictions.KINDS, *joined))
        raise
    finally:
        begun.unlink(missing_ok=True)
    if settings.node_rank != 0:
        for rank in settings.local_ranks:
            print_rows({"written": run_dir / "predictions" / f"part{rank}.{predict.format}"})
        return result
    if result["parts_missing"]:
        logger.warning(
            "%s has only the parts on this node's disk; part(s) %s lie in the run directories of"
            " their own nodes",
            run_dir / joined[0],
            ", ".join(map(str, result["parts_missing"])),
        )
    written = {f"{name} written": run_dir / name for name in (*joined, "predictions.json")}
    print_results(result, written, measure_dv=settings.measure_dv)
    return result


def _remove_outputs(run_dir: Path, outputs: Sequence[str]) -> None:
    """Remove files and folders of incomplete predictions, by their names in the run directory."""
    for path in (run_dir / name for name in outputs):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _check_links(settings: Settings) -> None:
    """Raise InputError if the settings predict.* do not fit the task."""
    predict = settings.predict
    chosen = {
        name: getattr(predict, name)
        for name in ("pairs", "top", "nodes")
        if getattr(predict, name) is not None
    }
    if predict.known != "all":
        chosen["known"] = predict.known
    if not settings.task.links:
        for name, value in chosen.items():
            raise InputError(f"predict.{name}={value}: only models of links have it; leave it out")
    elif set(chosen) - {"known"} not in ({"pairs"}, {"top", "nodes"}) or predict.embeddings:
        raise InputError(
            "predict.pairs=FILE, or predict.top=K and predict.nodes=FILE: app=predict of links"
            " needs one of these, and has no predict.embeddings"
        )
    elif {"pairs", "known"} <= set(chosen):
        raise InputError(
            f"predict.known={predict.known}: only for predict.top; all of predict.pairs are scored;"
            " leave it out"
        )


def _check_ids(settings: Settings, directory: PartitionDirectory) -> None:
    """Raise InputError for an unknown id. If parts are on other nodes, a worker does that."""
    for setting, columns in (("pairs", 2), ("nodes", 1)):
        path = getattr(settings.predict, setting)
        if path is not None:
            where = f"predict.{setting}={path}"
            ids = read_ids(Path(path), f"predict.{setting}", columns)
            if not len(ids):
                raise InputError(f"{where}: has no ids; give one at least")
            named = directory.node_names(0) is not None
            known = [directory.read_part(part).node_ids.numpy() for part in settings.local_ranks]
            types = directory.types_of_pairs
            positions = find_ids(np.concatenate(known), ids, types, named=named, where=where)
            unknown = positions < 0
            if unknown.any() and len(known) == directory.num_parts:
                raise InputError(
                    f"{where}: the graph has no node with the id {ids[unknown][0]}; take it out"
                )
