"""`app=predict`: class, probabilities and, on request, embeddings of every node, by its id in the data set."""

import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from partitioning.directory.read import PartitionDirectory
from partitioning.errors import InputError
from partitioning.links.ids import id_keys, places_of, read_ids
from retexo.apps.inference import prepare, print_table, run_workers
from retexo.apps.summary import print_rows
from retexo.config.settings import Settings
from retexo.outputs import predictions
from retexo.outputs.files import write_json
from retexo.outputs.lock import locks_run_dir

logger = logging.getLogger(__name__)


@locks_run_dir
def run(settings: Settings, run_dir: Path) -> dict[str, Any]:
    """Predict, and return what predictions.json of the run directory says; node 0 writes it, and joins the parts.

    Raises InputError before anything is started, TrainingError when a worker fails.
    """
    wanted, cluster = settings.predict, settings.train.cluster
    predictions.check_format(wanted.format)
    _check_links(settings)
    joined = [f"{name}.{wanted.format}" for name in predictions.KINDS[: 1 + wanted.embeddings]]
    prepared = prepare(
        settings, run_dir, ("predictions.json", *predictions.KINDS, *joined), predict=True
    )
    _check_ids(prepared.settings, prepared.directory)
    _check_links(settings)
    if wanted.embeddings and prepared.checkpoint.model.num_layers == 1:
        raise InputError(
            "predict.embeddings=true: a model of one layer has no hidden layer; leave it out"
        )
    try:
        result = run_workers(prepared, run_dir, wanted)
        if cluster.node_rank == 0:
            missing = predictions.merge(run_dir, cluster.num_partitions, wanted.format)
            result["parts_missing"] = missing
            write_json(run_dir / "predictions.json", result)
    except BaseException:  # some files may be there; without the others they are of no use
        for name in predictions.KINDS:
            shutil.rmtree(run_dir / name, ignore_errors=True)
        for name in joined:
            (run_dir / name).unlink(missing_ok=True)
        raise
    if cluster.node_rank != 0:
        for rank in cluster.local_ranks:
            print_rows({"written": run_dir / "predictions" / f"part{rank}.{wanted.format}"})
        return result
    if missing:
        logger.warning(
            "%s has only the parts on this node's disk; part(s) %s lie in the run directories of their own nodes",
            run_dir / joined[0],
            ", ".join(map(str, missing)),
        )
    print_table(
        result,
        settings.train.measure_dv,
        [run_dir / name for name in (*joined, "predictions.json")],
    )
    return result


def _check_links(settings: Settings) -> None:
    """InputError where it is not said which pairs are wanted; or some are, of a model of classes."""
    wanted = settings.predict
    given = {
        name: getattr(wanted, name)
        for name in ("pairs", "top", "nodes")
        if getattr(wanted, name) is not None
    }
    if not settings.train.task.links:
        for name, value in given.items():
            raise InputError(f"predict.{name}={value}: only models of links have it; leave it out")
    elif set(given) not in ({"pairs"}, {"top", "nodes"}) or wanted.embeddings:
        raise InputError(
            "predict.pairs=FILE, or predict.top=K and predict.nodes=FILE: app=predict of links needs one of these, and "
            "has no predict.embeddings"
        )


def _check_ids(settings: Settings, directory: PartitionDirectory) -> None:
    """InputError for an unknown id, where all parts are at hand; else a worker finds it."""
    for setting, columns in (("pairs", 2), ("nodes", 1)):
        path = getattr(settings.predict, setting)
        if path is not None:
            where = f"predict.{setting}={path}"
            ids = read_ids(Path(path), f"predict.{setting}", columns)
            if not len(ids):
                raise InputError(f"{where}: has no ids; give one at least")
            named = directory.node_names(0) is not None
            known = [
                directory.read(part).node_ids.numpy() for part in settings.train.cluster.local_ranks
            ]
            unknown = places_of(np.concatenate(known), id_keys(ids, named=named, where=where)) < 0
            if unknown.any() and len(known) == directory.num_parts:
                raise InputError(f"{where}: the id {ids[unknown][0]} is no node's; take it out")
