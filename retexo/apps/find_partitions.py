"""Finds and opens the partitions of a run, and compares them with the command line."""

import glob
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from partitioning.directory import local_copies
from partitioning.directory.read_directory import (
    MissingPartitions,
    PartitionDirectory,
    find_partition_directory,
)
from partitioning.errors import InputError
from partitioning.files.file_io import json_checksum
from partitioning.setting_fields import with_values
from partitioning.sites.site_folders import SiteFolders, find_sites
from retexo.apps import partition_data
from retexo.apps.partition_request import (
    FIXED,
    SHORT_NAMES,
    describe_difference,
    directory_of,
    find_differences,
    is_file_value,
    made_with,
    requested_settings,
)
from retexo.settings.run_settings import Settings
from retexo.settings.schema import DEFAULTS, DEFINED, keys
from retexo.worker.compatibility import check_directory

logger = logging.getLogger(__name__)

PARTITIONER_SETTINGS = {key.split(".")[0] for key in keys(lambda setting: setting.of_partitioner)}
"""Settings, or groups of settings, of the partitioner, which sees the whole graph."""
SITE_SETTINGS = {
    *(f"features.{name}" for name in ("spec", "scale", "missing")),
    *(
        f"columns.{name}"
        for name in ("id", "numeric", "categorical", "embedding", "date", "ignore")
    ),
}
"""Those that say how a site encodes its table of features."""
PUBLIC_CODE_DIR = Path("../retexo-datasets/partitions")
"""Partition folder of the public Retexo code; also searched where partition_dir is not given."""


def with_found_parts(settings: Settings) -> Settings:
    """Return the settings with num_partitions of the directory that is found.

    The settings stay as they are where num_partitions or parts_per_node is given, where partitions
    are on several machines or dataset_name=parts, and where none is found. Directories of other
    numbers of partitions count only if there is one. InputError if it is damaged. Files of DGL are
    imported, which writes a directory.
    """
    num_parts = settings.num_partitions
    is_set = {"num_partitions", "parts_per_node"} & settings.given or num_parts != DEFAULTS[
        "num_partitions"
    ]
    if is_set or settings.launcher_env is not None or settings.dataset_name == "parts":
        return settings
    named = directory_of(settings)
    beside = [*named.parent.glob(f"{glob.escape(named.name.rpartition('-')[0])}-[0-9]*")]
    try:
        directory = find_partition_directory(
            [*_candidate_paths(settings), *(beside if len(beside) == 1 else [])], None
        )
    except MissingPartitions:
        return settings
    if directory.num_parts == num_parts:
        return settings
    logger.info("num_partitions=%d, as in %s", directory.num_parts, directory.path)
    return replace(settings, num_partitions=directory.num_parts)


def find_existing(settings: Settings) -> PartitionDirectory | None:
    """Open the partition directory that the settings name; None where there is none.

    InputError if it is damaged, or has another num_partitions. DGL's files are imported, which
    writes a directory.
    """
    with suppress(MissingPartitions):
        return find_partition_directory(_candidate_paths(settings), settings.num_partitions)
    return None


def open_partitions(settings: Settings) -> tuple[PartitionDirectory, Settings]:
    """Open or make the partitions, and check those of this machine's workers.

    Returns:
        The directory, and the settings with what a run stores of it: how it was made. What the
        command line gives stays as written there; it is the same (`_check_request`).

    Raises:
        InputError: as `find_or_make_partitions` and `check_parts`.
    """
    directory = find_or_make_partitions(settings)
    check_parts(settings, directory, settings.local_ranks)
    stored = {} if directory.meta is None else made_with(directory.meta)
    values = {name: value for name, value in stored.items() if not _is_given(name, settings)}
    return directory, with_values(settings, values)


def check_parts(settings: Settings, directory: PartitionDirectory, parts: Sequence[int]) -> None:
    """Check a directory and some of its parts, which are copied here from an object store first.

    Raises:
        InputError: a file is damaged, or the trainer cannot read the directory.
    """
    check_directory(settings, directory)
    local_copies.fetch_parts(directory.path, directory.meta, parts)
    logger.info("%s: checking the parts", directory.path)
    directory.verify(parts)


def find_or_make_partitions(settings: Settings) -> PartitionDirectory:
    """Open the partition directory that the settings name, or make it.

    It is sought below partition_dir: in our own layout, in that of the public Retexo code, in
    DGL's; without partition_dir also in the folder of the public code, which the log then names.
    Where there is none and this is the only node, it is made, unless data has to be downloaded. A
    job of --multirun downloads data, too, and shares what it makes with other jobs.

    Raises:
        InputError: there are no partitions, the command line asks for other ones, or overwrite.
    """
    if settings.dataset_name == "parts":
        return open_sites(settings)
    if settings.overwrite:
        raise InputError(
            "overwrite=true: only app=partition_data makes partitions again; run it before, and"
            " leave overwrite out here"
        )
    if settings.is_multirun_job and settings.num_nodes == 1:
        return _open_shared(settings)
    directory = find_existing(settings)
    if directory is None:
        if settings.num_nodes > 1 or not partition_data.is_local(settings):
            raise _missing_error(settings)
        return _make(settings, f"no partition directory at {directory_of(settings)}")
    if PUBLIC_CODE_DIR in (directory.path, *directory.path.parents):
        own = settings.partition_dir
        logger.info("none in %s: using %s, of the public Retexo code", own, directory.path)
    if directory.meta is not None:
        _check_request(settings, directory)
    return directory


def _make(settings: Settings, reason: str) -> PartitionDirectory:
    """Make the partitions, and open them."""
    if settings.trainer.name != "sampled":  # others do not read DGL's files
        dgl_files = bool(settings.partition.dgl_files)
        settings = with_values(settings, {"partition.dgl_files": dgl_files})
    path = directory_of(settings)
    logger.info("%s: making %s, as app=partition_data would", reason, path)
    partition_data.run(settings)
    return find_partition_directory([path], settings.num_partitions)


def _open_shared(settings: Settings) -> PartitionDirectory:
    """Open the partitions of a --multirun job; jobs with equal partition settings share them.

    Existing partitions are used if they fit the command line, including the seeds.
    """
    request, directory = requested_settings(settings), find_existing(settings)
    if directory is not None and (
        directory.meta is None or not _find_differences(settings, directory, request)
    ):
        return directory
    digest = json_checksum(request)
    shared = replace(settings, partition_dir=str(Path(settings.partition_dir) / digest[:12]))
    return _make(shared, "--multirun")


def _candidate_paths(settings: Settings) -> list[Path]:
    """Return where the partitions may be, in the order of search."""
    named = directory_of(settings)
    bases = [named.parent] if "partition_dir" in settings.given else [named.parent, PUBLIC_CODE_DIR]
    return [base / name for base in bases for name in (named.name, settings.dataset_name, "")]


def settings_of_directory(settings: Settings) -> set[str]:
    """Return the settings that the directory decides, because the command line does not."""
    of_data = {"dataset_name", "dataset_file", "num_partitions"}
    names = FIXED | of_data | keys(lambda setting: setting.key.startswith("synthetic."))
    return {name for name in names if not _is_given(name, settings)}


def _is_given(name: str, settings: Settings) -> bool:
    """Return whether the command line gives a setting, maybe by a file of its group."""
    return not {name, DEFINED[name].name}.isdisjoint(settings.given)


def open_sites(settings: Settings) -> SiteFolders:
    """Open the site folders of this machine, for dataset_name=parts.

    Raises:
        InputError: a setting of the partitioner is given, or the folders are wrong.
    """
    for name in sorted(settings.given):
        if name.split(".")[0] in PARTITIONER_SETTINGS and name not in SITE_SETTINGS:
            raise InputError(
                f"{name}: has no meaning with dataset_name=parts, where each site's folder is its"
                " part; leave it out"
            )
    if settings.dataset_file is None:
        raise InputError(
            "dataset_name=parts needs dataset_file=FOLDER: this site's, with site.json and part.npz"
        )
    return find_sites(
        Path(settings.dataset_file),
        settings.num_partitions,
        settings.dataset_max_gib,
        settings.features,
        settings.columns,
    )


def _missing_error(settings: Settings) -> InputError:
    """Return the error for missing partitions; it names existing ones and the command to run."""
    named = directory_of(settings)
    others = sorted(
        path.name for path in named.parent.glob(f"{glob.escape(settings.dataset_name)}-*-*-*")
    )
    there = f" {named.parent} has {', '.join(others)}." if others else ""
    if partition_data.is_local(settings):
        how = (
            "Make it on one node with app=partition_data and the same settings, and copy it to the"
            " others"
        )
    else:
        how = (
            f"{settings.dataset_name} is not in {settings.dataset_dir} either: app=partition_data"
            f" dataset_name={settings.dataset_name} downloads and partitions it. Without a"
            " download: app=train dataset_name=cora"
        )
    return InputError(f"no partition directory at {named}.{there} {how}")


def _check_request(settings: Settings, directory: PartitionDirectory) -> None:
    """Raise InputError if the command line asks for other partitions than meta.json describes."""
    differing = _find_differences(settings, directory, requested_settings(settings))
    if differing:
        changes = ", ".join(describe_difference(name, *both) for name, both in differing.items())
        raise InputError(
            f"{directory.path}: was made with other settings: {changes}; leave them out to use"
            " it as it is, or partition again (app=partition_data overwrite=true)"
        )


def _find_differences(
    settings: Settings, directory: PartitionDirectory, requested: dict[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """Return settings that differ from meta.json: name -> (there, here).

    A job of --multirun with another `seed` has other split and partition seeds, too.
    """
    assert directory.meta is not None
    settings_given = {SHORT_NAMES.get(name, name) for name in settings.given}
    if settings.is_multirun_job and "seed" in settings_given:
        settings_given |= keys(lambda setting: setting.is_seed)
    if settings.split.kind == "default":
        settings_given.discard("split")
    return {
        name: (there, here)
        for name, (there, here) in find_differences(directory.meta, requested).items()
        # The data need not be on the machine that trains.
        if name in settings_given & requested.keys()
        and not (is_file_value(here) and here["sha256"] is None)
    }
