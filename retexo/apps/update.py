"""`app=update`: apply tables of new, changed and deleted nodes and edges to a directory."""

import time
from dataclasses import asdict
from pathlib import Path

from partitioning.directory.meta import Meta
from partitioning.errors import InputError
from partitioning.file_io import check_path
from partitioning.unpacked_size import check_table_sizes
from partitioning.update.update_directory import update_directory
from retexo import __version__
from retexo.apps.partition_report import describe_entry, print_report
from retexo.apps.partition_request import directory_of
from retexo.settings.run_settings import Settings


def run(settings: Settings, run_dir: Path) -> Meta:
    """Update the directory that the settings name.

    Print a report, and return its new description.
    """
    path = find_directory(settings)
    start = time.perf_counter()
    tables = (
        check_path(f"update.{name}", value)
        for name, value in asdict(settings.update).items()
        if name.endswith(("_nodes", "_edges")) and value is not None
    )
    check_table_sizes(tables, settings.dataset_max_gib)
    meta, notes = update_directory(path, settings.update, __version__)
    entry = meta.history[-1]
    print_report(meta, path)
    for note in notes:
        print(f"note: {note}")
    placed = ", ".join(f"{count:,}" for count in entry["placed"][:16])
    print(
        f"{path}: {describe_entry(entry)}; new nodes by part {placed}; change"
        f" {entry['change'][:12]}; {time.perf_counter() - start:.1f} s"
    )
    return meta


def find_directory(settings: Settings) -> Path:
    """Return the directory: partition_dir itself, or the one in it that the settings name.

    Without a name it is the only one there; InputError unless exactly one fits.
    """
    folder = check_path("partition_dir", settings.partition_dir).resolve()
    if (folder / "meta.json").is_file():
        return folder
    is_named = {"dataset_name", "dataset_file", "partition_method", "num_partitions"}
    there = sorted(path.parent for path in folder.glob("*/meta.json"))
    fitting = [directory_of(settings)] if is_named & settings.given else there
    if len(fitting) == 1 and fitting[0].is_dir():
        return fitting[0].resolve()
    missing = f"no {fitting[0].name}" if len(fitting) == 1 else "not a single directory to update"
    names = ", ".join(path.name for path in there) or "none"
    raise InputError(
        f"partition_dir={folder}: {missing}; it has {names}; set partition_dir to the directory to"
        " update"
    )
