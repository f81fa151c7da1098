"""`app=update`: apply tables of new, changed and deleted nodes and edges to a directory."""

import time
from dataclasses import asdict
from pathlib import Path

from partitioning.directory.meta import Meta
from partitioning.files.file_io import check_path
from partitioning.files.unpacked_size import check_table_sizes
from partitioning.update.update_directory import update_directory
from retexo import __version__
from retexo.apps.partition_report import describe_entry, print_report
from retexo.settings.run_settings import Settings


def run(settings: Settings, run_dir: Path) -> Meta:
    """Update the directory partition_dir; print a report, and return its new description.

    InputError for tables that are missing, too large or wrong; `run_dir` is not used.
    """
    path = check_path("partition_dir", settings.partition_dir).resolve()  # of a link its target
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
