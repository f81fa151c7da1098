"""The partition directory that settings name: found, opened, and compared with what the command line says."""

import glob
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from partitioning.directory.meta import HeteroMeta
from partitioning.directory.read_directory import MissingPartitions, PartitionDirectory, find
from partitioning.errors import InputError
from partitioning.site_folders import SiteFolders, find_sites
from retexo.apps import partition_data
from retexo.apps.partition_request import (
    directory_of,
    is_file_value,
    requested_settings,
    stored_request,
)
from retexo.settings.run_settings import Settings
from retexo.settings.schema import DEFINED, keys
from retexo.worker.graph import check_directory

logger = logging.getLogger(__name__)

PARTITIONER_SETTINGS = {key.split(".")[0] for key in keys(lambda setting: setting.of_partitioner)}
"""Settings, or groups of them, that need the whole graph."""
PUBLISHED = Path("../retexo-datasets/partitions")
"""Where the public Retexo code puts partitions; read, too, where partition_dir is not given."""


def with_parts_found(settings: Settings) -> Settings:
    """The settings with num_partitions of the only directory that fits, where none is set and all parts are here."""
    cluster, wanted = settings.train.cluster, settings.partition.num_partitions
    is_set = {"num_partitions", "parts_per_node"} & settings.given or wanted != DEFINED[
        "num_partitions"
    ][0].default
    if is_set or cluster.launcher_env is not None or settings.partition.dataset.name == "parts":
        return settings
    others = _others(directory_of(settings.partition))
    try:
        found = find([*_candidates(settings), *(others if len(others) == 1 else [])], None)
    except MissingPartitions:
        return settings
    if found.num_parts == wanted:
        return settings
    logger.info("num_partitions=%d, as in %s", found.num_parts, found.path)
    return replace(
        settings,
        partition=replace(settings.partition, num_partitions=found.num_parts),
        train=replace(
            settings.train,
            cluster=replace(
                cluster, num_partitions=found.num_parts, parts_per_node=found.num_parts
            ),
        ),
        resolved={**settings.resolved, "num_partitions": found.num_parts},
    )


def open_local(settings: Settings) -> PartitionDirectory:
    """As `open_directory`, for the workers of this machine.

    InputError for a damaged file, too, and for what the trainer cannot read.
    """
    directory = open_directory(settings)
    check_directory(settings.train, directory)
    logger.info("%s: checking the parts", directory.path)
    directory.verify(settings.train.cluster.local_ranks)
    return directory


def open_directory(settings: Settings) -> PartitionDirectory:
    """Find the partitions: our own layout, then the public Retexo code's, then partition_dir itself as DGL makes it.

    Where there are none they are made, if this is the only node and nothing has to be downloaded. Raises InputError
    where there are none otherwise, or where a setting on the command line says that they were made otherwise.
    """
    partition = settings.partition
    if partition.dataset.name == "parts":
        return open_sites(settings)
    try:
        directory = find(_candidates(settings), partition.num_partitions)
    except MissingPartitions as error:
        if settings.train.cluster.num_nodes > 1 or not partition_data.is_local(partition):
            raise _not_found(settings) from error
        logger.info(
            "no partition directory at %s: making it, as app=partition_data would",
            directory_of(partition),
        )
        partition_data.run(partition)
        directory = find(_candidates(settings), partition.num_partitions)
    if directory.meta is not None:
        _check_same_data(settings, directory)
    return directory


def _candidates(settings: Settings) -> list[Path]:
    """Where the partitions may be, in the order in which they are looked for."""
    named = directory_of(settings.partition)
    bases = [named.parent] if "partition_dir" in settings.given else [named.parent, PUBLISHED]
    return [
        base / name for base in bases for name in (named.name, settings.partition.dataset.name, "")
    ]


def _others(named: Path) -> list[Path]:
    """Directories beside `named` that differ in the number of parts alone."""
    return sorted(named.parent.glob(f"{glob.escape(named.name.rpartition('-')[0])}-[0-9]*"))


def open_sites(settings: Settings) -> SiteFolders:
    """The site folders of this machine, for dataset_name=parts: no partitioner has a say in what they hold."""
    for name in sorted(settings.given):
        if name.split(".")[0] in PARTITIONER_SETTINGS:
            raise InputError(
                f"{name}: has no meaning with dataset_name=parts, where each site's folder is its part; leave it out"
            )
    dataset = settings.partition.dataset
    if dataset.file is None:
        raise InputError(
            "dataset_name=parts needs dataset_file=FOLDER: this site's, with site.json and part.npz"
        )
    return find_sites(Path(dataset.file), settings.partition.num_partitions, dataset.max_gib)


def _not_found(settings: Settings) -> InputError:
    """The error for partitions that are not there: it names those that are, and what to run."""
    named, dataset = directory_of(settings.partition), settings.partition.dataset
    others = sorted(path.name for path in named.parent.glob(f"{glob.escape(dataset.name)}-*-*-*"))
    there = f" {named.parent} has {', '.join(others)}." if others else ""
    if partition_data.is_local(settings.partition):
        how = "Make it on one node with app=partition_data and the same settings, and copy it to the others"
    else:
        how = (
            f"{dataset.name} is not in {dataset.dir} either: app=partition_data dataset_name={dataset.name} "
            "downloads and partitions it. Without a download: app=train dataset_name=cora"
        )
    return InputError(f"no partition directory at {named}.{there} {how}")


def _check_same_data(settings: Settings, directory: PartitionDirectory) -> None:
    """meta.json says what the partitions were made from; InputError where a setting on the command line differs."""
    assert directory.meta is not None
    given = requested_settings(settings.partition)
    request = stored_request(directory.meta, given)
    if isinstance(directory.meta, HeteroMeta):
        request["target"] = directory.meta.target  # also where it went without saying
    for name in sorted(settings.given & given.keys()):
        here, there = given[name], request.get(name)
        if name == "split" and settings.partition.dataset.split.kind == "default":
            continue
        if is_file_value(here) and here["sha256"] is None:  # the data need not be where training is
            continue
        if here != there:
            raise InputError(
                f"{name}={_shown(here)}: {directory.path} was made with {name}={_shown(there)}; leave it out, "
                "or partition again (app=partition_data overwrite=true)"
            )


def _shown(value: Any) -> str:
    return (
        f"{value['name']} (sha256 {str(value['sha256'])[:8]})"
        if is_file_value(value)
        else str(value)
    )
