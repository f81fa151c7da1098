"""`app=predict`: class, probabilities and optionally embeddings of every node by its id."""

import logging
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from partitioning.directory.read_directory import PartitionDirectory
from partitioning.errors import InputError
from partitioning.file_io import check_path, exclusive
from partitioning.links.id_files import find_positions, make_id_keys, read_ids
from retexo.apps.inference import Prepared, prepare, print_table, run_workers
from retexo.apps.summary import print_rows
from retexo.results import predictions
from retexo.results.atomic_write import write_json
from retexo.results.prediction_state import prepare_folder
from retexo.results.run_lock import locks_run_dir
from retexo.settings.run_settings import Settings

logger = logging.getLogger(__name__)


@locks_run_dir
def run(settings: Settings, run_dir: Path) -> dict[str, Any]:
    """Predict, and return the content of predictions.json; node 0 writes it and merges the parts.

    Raises:
        InputError: Before any process is started.
        TrainingError: A worker failed.
    """
    _check_links(settings)
    settings = _with_exact_rows(settings)
    wanted, cluster = settings.predict, settings.train.cluster
    joined = [f"{name}.{wanted.format}" for name in predictions.KINDS[: 1 + wanted.embeddings]]
    begun = run_dir / f".predicting{cluster.node_rank}"
    if begun.exists() and not (run_dir / "predictions.json").exists():
        logger.warning("%s: removing what an app=predict left that was killed", run_dir)
        _remove_outputs(run_dir, (*predictions.KINDS, *joined))
    prepared = prepare(
        settings, run_dir, ("predictions.json", *predictions.KINDS, *joined), predict=True
    )
    _check_ids(prepared.settings, prepared.directory)
    if wanted.embeddings and prepared.checkpoint.model.num_layers == 1:
        raise InputError(
            "predict.embeddings=true: a model of one layer has no hidden layer; leave it out"
        )
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        begun.touch()
        with _state_folder(prepared):
            result = run_workers(prepared, run_dir, wanted)
        if cluster.node_rank == 0:
            result["parts_missing"] = predictions.merge(
                run_dir, cluster.num_partitions, wanted.format
            )
            write_json(run_dir / "predictions.json", result)
    except BaseException:
        _remove_outputs(run_dir, (*predictions.KINDS, *joined))
        raise
    finally:
        begun.unlink(missing_ok=True)
    if cluster.node_rank != 0:
        for rank in cluster.local_ranks:
            print_rows({"written": run_dir / "predictions" / f"part{rank}.{wanted.format}"})
        return result
    if result["parts_missing"]:
        logger.warning(
            "%s has only the parts on this node's disk; part(s) %s lie in the run directories of"
            " their own nodes",
            run_dir / joined[0],
            ", ".join(map(str, result["parts_missing"])),
        )
    print_table(
        result,
        settings.train.measure_dv,
        [run_dir / name for name in (*joined, "predictions.json")],
    )
    if "incremental" in result:
        print_rows(_incremental_rows(result["incremental"]))
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
            "predict.pairs=FILE, or predict.top=K and predict.nodes=FILE: app=predict of links"
            " needs one of these, and has no predict.embeddings"
        )


def _with_exact_rows(settings: Settings) -> Settings:
    """With predict.state rows are fp32: a rounded row would depend on how it was computed."""
    wanted = settings.predict
    if wanted.state is None:
        return settings
    where = f"predict.state={wanted.state}"
    if settings.train.task.links:
        raise InputError(f"{where}: models of links do not have it; leave it out")
    named = settings.given & {"exchange", "exchange.precision"}
    if named or wanted.precision not in ("auto", "fp32"):
        name = min(named, default="predict.precision")
        raise InputError(f"{where}: sends exact rows; leave {name} out")
    if settings.train.compute.precision != "fp32":
        raise InputError(
            f"{where}: rounded products would depend on which nodes are computed together; leave"
            f" compute.precision={settings.train.compute.precision} out"
        )
    folder = check_path("predict.state", wanted.state).absolute()
    return replace(settings, predict=replace(wanted, precision="fp32", state=str(folder)))


@contextmanager
def _state_folder(prepared: Prepared) -> Iterator[None]:
    """Check predict.state, if it is set, and lock its folder for this node."""
    folder, train = prepared.settings.predict.state, prepared.settings.train
    if folder is None:
        yield
        return
    where = f"predict.state={folder}"
    if prepared.directory.is_hetero:
        raise InputError(f"{where}: graphs with several node types do not have it; leave it out")
    if train.model.lookahead:
        raise InputError(f"{where}: models with model.lookahead do not have it; leave it out")
    prepare_folder(Path(folder))
    with exclusive(Path(folder) / f".lock{train.cluster.node_rank}", where):
        yield


def _incremental_rows(found: dict[str, Any]) -> dict[str, str]:
    """What was computed and sent, beside everything."""
    first = found["num_layers"]
    nodes, steps = found["nodes"][:first], found["nodes"][first:]
    every, sent = found["boundary_rows"] * len(found["rows"]), sum(found["rows"])
    rows = {
        "nodes computed, by layer": f"{_join_counts(nodes)} of {found['nodes_of_graph']:,}",
        "rows sent": f"{sent:,} of {every:,} ({sum(found['bytes']):,} bytes; last full"
        f" prediction {sum(found['last_full']['bytes']):,})",
        "kept": f"{found['state_bytes']:,} bytes in {found['state']}",
    }
    if steps:
        rows["nodes smoothed, by step"] = f"{_join_counts(steps)} of {found['nodes_of_graph']:,}"
    if found["why_everything"]:
        rows["computed everything"] = found["why_everything"]
    return rows


def _join_counts(counts: list[int]) -> str:
    """Return counts as text, separated by commas."""
    return ", ".join(f"{count:,}" for count in counts)


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
            known = [
                directory.read(part).node_ids.numpy() for part in settings.train.cluster.local_ranks
            ]
            unknown = (
                find_positions(np.concatenate(known), make_id_keys(ids, named=named, where=where))
                < 0
            )
            if unknown.any() and len(known) == directory.num_parts:
                raise InputError(
                    f"{where}: the graph has no node with the id {ids[unknown][0]}; take it out"
                )
