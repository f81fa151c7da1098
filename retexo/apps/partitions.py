"""The partition directory that settings name: found, opened, and compared with what the command line says."""

from pathlib import Path
from typing import Any

from partitioning.directory.read import MissingPartitions, PartitionDirectory, find
from partitioning.errors import InputError
from partitioning.sites import SiteFolders, find_sites
from retexo.apps.partition_data import check_dataset_name, directory_of, requested_settings
from retexo.config.schema import keys
from retexo.config.settings import Settings

PARTITIONER_SETTINGS = {key.split(".")[0] for key in keys(lambda setting: setting.of_partitioner)}
"""Settings, or groups of them, that need the whole graph."""


def open_local(settings: Settings) -> PartitionDirectory:
    """As `open_directory`, with the checksums of this machine's parts checked: InputError for a damaged file."""
    directory = open_directory(settings)
    directory.verify(settings.train.cluster.local_ranks)
    return directory


def open_directory(settings: Settings) -> PartitionDirectory:
    """Find the partitions: our own layout, then the public Retexo code's, then partition_dir itself as DGL makes it.

    Raises InputError where there are none, or where a setting on the command line says that they were made otherwise.
    """
    partition = settings.partition
    if partition.dataset.name == "parts":
        return open_sites(settings)
    named = directory_of(partition)
    base = Path(partition.dir)
    candidates = [named, base / partition.dataset.name, base]
    try:
        directory = find(candidates, partition.num_partitions)
    except MissingPartitions as error:
        raise _not_found(named, partition.dataset.name) from error
    if directory.meta is not None:
        _check_same_data(settings, directory)
    return directory


def open_sites(settings: Settings) -> SiteFolders:
    """The site folders of this machine, for dataset_name=parts: no partitioner has a say in what they hold."""
    for name in sorted(settings.given):
        if name.split(".")[0] in PARTITIONER_SETTINGS:
            raise InputError(
                f"{name}: has no meaning with dataset_name=parts, where each site's folder is its part; leave it out"
            )
    if settings.partition.dataset.file is None:
        raise InputError("dataset_name=parts needs dataset_file=FOLDER: this site's, with site.json and part.npz")
    return find_sites(Path(settings.partition.dataset.file), settings.partition.num_partitions)


def _not_found(named: Path, dataset: str) -> InputError:
    """The error for partitions that are not there; it names those that are, or the nearest data set."""
    others = sorted(path.name for path in named.parent.glob(f"{dataset}-*-*-*"))
    if not others:
        check_dataset_name(dataset)
    there = f"{named.parent} has {', '.join(others)}. " if others else ""
    return InputError(
        f"no partition directory at {named}. {there}Make it with app=partition_data and the same dataset_name, "
        "partition_method, part_obj, num_partitions and partition_dir"
    )


def _check_same_data(settings: Settings, directory: PartitionDirectory) -> None:
    """meta.json says what the partitions were made from; InputError where a setting on the command line differs."""
    assert directory.meta is not None
    given, made_with = requested_settings(settings.partition), directory.meta.request
    for name in sorted(settings.given & given.keys()):
        here, there = given[name], made_with.get(name)
        if name == "split" and settings.partition.dataset.split.kind == "default":
            continue
        if isinstance(here, dict) and here["sha256"] is None:  # the data itself need not be where training is
            continue
        if here != there:
            raise InputError(
                f"{name}={_shown(here)}: {directory.path} was made with {name}={_shown(there)}; leave it out, "
                "or partition again (app=partition_data overwrite=true)"
            )


def _shown(value: Any) -> str:
    return f"{value['name']} (sha256 {str(value['sha256'])[:8]})" if isinstance(value, dict) else str(value)
