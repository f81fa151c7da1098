"""`app=update`: apply tables of new, changed and deleted nodes and edges to a directory."""

import logging
import time
from pathlib import Path

from partitioning.directory.meta import Meta
from partitioning.directory.read_directory import find
from partitioning.directory.write_directory import replaced_when_written, write_meta, writing
from partitioning.errors import InputError
from partitioning.file_io import check_path
from partitioning.update.update_directory import (
    Update,
    check_tables,
    make_entry,
    make_meta,
    update_directory,
)
from retexo import __version__
from retexo.apps.partition_report import describe_entry, print_report
from retexo.apps.partition_request import directory_of
from retexo.apps.run_identity import shared_settings
from retexo.launch import start_workers
from retexo.launch.handshake import RunInfo
from retexo.launch.security import make_security
from retexo.settings.run_settings import Settings
from retexo.worker.update import UpdateJob, main

logger = logging.getLogger(__name__)


def run(settings: Settings, run_dir: Path) -> Meta:
    """Update the directory that the settings name; return its new description."""
    path = find_directory(settings)
    start = time.perf_counter()
    if settings.train.cluster.num_nodes > 1:
        made = _update_with_others(path, settings, run_dir)
    else:
        made = update_directory(path, settings.partition.update, __version__)
    print_report(made.meta, path)
    for note in made.notes:
        print(f"note: {note}")
    placed = ", ".join(f"{count:,}" for count in made.entry["placed"][:16])
    sent = f"; {made.entry['bytes']:,} bytes sent" if "bytes" in made.entry else ""
    print(
        f"{path}: {describe_entry(made.entry)}; new nodes by part {placed}; change"
        f" {made.entry['change'][:12]}{sent}; {time.perf_counter() - start:.1f} s"
    )
    return made.meta


def _update_with_others(path: Path, settings: Settings, run_dir: Path) -> Update:
    """Update the partitions of this machine, while the others update theirs."""
    cluster, update = settings.train.cluster, settings.partition.update
    with writing(path):
        directory = find([path], cluster.num_partitions)
        assert directory.meta is not None
        directory.verify(cluster.local_ranks)
        digest, files = check_tables(path, update)
        with replaced_when_written(path, overwrite=True) as unfinished:
            run_info = RunInfo(shared_settings(settings), directory.digest(), directory.remedy)
            with start_workers.connect_nodes(cluster, run_info, make_security(cluster)) as node:
                job = UpdateJob(
                    settings.train,
                    directory,
                    run_dir,
                    node.rendezvous,
                    update=update,
                    path=path,
                    unfinished=unfinished,
                )
                results = start_workers.run_workers(cluster.local_ranks, main, job, node)
            result = results[cluster.local_ranks.start]
            entry = {
                **make_entry(result["parts"], digest, files, result["notes"], __version__),
                "bytes": result["bytes"],
            }
            meta = make_meta(directory.meta, result["parts"], entry)
            write_meta(unfinished, meta)
    return Update(meta, entry, result["notes"])


def find_directory(settings: Settings) -> Path:
    """Return the directory: partition_dir itself, or the one in it that the settings name."""
    folder = check_path("partition_dir", settings.partition.dir).resolve()
    if (folder / "meta.json").is_file():
        return folder
    partition = settings.partition
    is_named = {
        "dataset_name",
        "dataset_file",
        "partition_method",
        "num_partitions",
    } & settings.given
    named = directory_of(partition) if is_named else None
    if named is not None and named.is_dir():
        return named.resolve()
    found = (
        sorted(each.parent.name for each in folder.glob("*/meta.json")) if folder.is_dir() else []
    )
    if named is None and len(found) == 1:
        return folder / found[0]
    there = f"; it has {', '.join(found)}" if found else ""
    missing = "not a single directory with meta.json" if named is None else f"no {named.name}"
    raise InputError(
        f"partition_dir={folder}: {missing}{there}; set partition_dir to the directory to update"
    )
