"""Runs an app on local copies of what lies in an object store, and uploads its results.

The addresses in the settings are replaced by the paths of the copies, so the apps see paths alone.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from partitioning.directory import local_copies
from partitioning.errors import InputError
from partitioning.files.object_store import Place, is_remote
from partitioning.setting_fields import with_values
from retexo import apps
from retexo.apps.find_partitions import find_existing
from retexo.apps.partition_request import directory_of
from retexo.errors import TrainingError
from retexo.settings.run_settings import Settings

logger = logging.getLogger(__name__)

ADDRESSES = {"checkpoint_dir", "dataset_file", "partition_dir"}
"""Settings that may be addresses; a run stores what was given."""
READ_PARTITIONS = ("train", "plan", "evaluate", "predict")
"""Apps that need no data set where there are partitions."""
UPLOAD_NOTHING = ("partition_data", "serve", "hub")
"""Apps whose run directory has no results."""


def run_with_copies(settings: Settings, run_dir: Path, callbacks: Sequence[Any] = ()) -> Any:
    """Copy what the settings' addresses name, and run the app; return its result (apps.run).

    With remote.upload, node 0 uploads the run directory then, and prints the address.

    Raises:
        InputError: before the app starts, if a store refuses, lacks or damages something.
        TrainingError: the app has ended, and its results cannot be uploaded.
    """
    target = _upload_place(settings, run_dir)
    settings = with_local_copies(settings)
    if target is None:
        return apps.run(settings, run_dir, callbacks)
    local_copies.announce_upload(target)
    result = apps.run(settings, run_dir, callbacks)
    try:
        local_copies.upload_run(target, run_dir)
    except InputError as error:
        again = ", or repeat the command with resume=auto, which only uploads"
        remedy = f"copy it{again if settings.app == 'train' else ''}"
        raise TrainingError(f"{error}. The run is complete in {run_dir}; {remedy}") from None
    print(f"uploaded to {target.url}")
    return result


def with_local_copies(settings: Settings) -> Settings:
    """Return the settings with paths of local copies, which are made unless they are there.

    A data set is copied unless the app finds partitions. Of partitions only the descriptions are
    copied here; `check_parts` copies those of this machine. InputError if a store refuses, lacks or
    damages something, and for trainer=sampled with remote partitions.
    """
    cache = Path(settings.dataset_dir, "remote")
    values: dict[str, Any] = {"remote.upload": None}
    if is_remote(settings.checkpoint_dir):
        place = Place("checkpoint_dir", str(settings.checkpoint_dir))
        values["checkpoint_dir"] = str(local_copies.copy_data(place, cache))
    data = None
    if is_remote(settings.dataset_file):
        data = Place("dataset_file", str(settings.dataset_file))
        values["dataset_file"] = str(local_copies.place_of(data, cache))
    if is_remote(settings.partition_dir):
        if settings.trainer.name == "sampled":
            raise InputError(
                f"partition_dir={settings.partition_dir}: trainer=sampled reads DGL's files, which"
                " are not copied; copy the directory to this machine"
            )
        base = local_copies.mirror(Place("partition_dir", settings.partition_dir), cache)
        values["partition_dir"] = str(base)
        # DGL's files would double what is written.
        values["partition.dgl_files"] = bool(settings.partition.dgl_files)
    addresses = {name: getattr(settings, name) for name in values.keys() & ADDRESSES}
    settings = with_values(settings, {**values, "addresses": tuple(addresses.items())})
    if "partition_dir" in values and settings.dataset_name != "parts":
        local_copies.find_stored(base, directory_of(settings).name, settings.dataset_name)
    if data is not None and not _has_all_it_needs(settings):
        local_copies.copy_data(data, cache)
    return settings


def _has_all_it_needs(settings: Settings) -> bool:
    """Return whether the app reads partitions that are there, and not the data set."""
    if settings.app not in READ_PARTITIONS or settings.dataset_name == "parts":
        return False
    try:
        return find_existing(settings) is not None
    except InputError:
        return True  # the app says what is wrong with them


def _upload_place(settings: Settings, run_dir: Path) -> Place | None:
    """Return where node 0 uploads the run directory: below remote.upload, as below this folder.

    One that is elsewhere goes there by its name alone. None on other nodes, without remote.upload,
    and for apps that upload nothing.
    """
    is_first_node = settings.node_rank == 0
    if settings.remote.upload is None or settings.app in UPLOAD_NOTHING or not is_first_node:
        return None
    place = Place("remote.upload", settings.remote.upload)
    path = run_dir.absolute()
    below = path.is_relative_to(Path.cwd()) and path != Path.cwd()
    return place / (path.relative_to(Path.cwd()).as_posix() if below else path.name)
