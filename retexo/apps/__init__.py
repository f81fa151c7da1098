"""Applications: each is a function from settings to a result."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from partitioning.errors import InputError
from retexo.launch import fork_server
from retexo.launch.quick_import import import_quickly
from retexo.launch.ticker import ticker
from retexo.settings.app_settings import DISTRIBUTED_APPS
from retexo.settings.run_settings import Settings


def run(settings: Settings, run_dir: Path, callbacks: Sequence[Any] = ()) -> Any:
    """Run the app that the settings name, and return its result.

    Each app is a module of this folder. It is imported when it runs, so its optional packages are
    needed only then. With addresses (SCHEME://...) it runs on copies of the files. Distributed apps
    start the fork server; a thread logs now and then that an app, except serve, still runs.

    Args:
        callbacks: observers of app=train; empty for other apps.

    Raises:
        InputError: Invalid input, or callbacks for another app; before any process is started.
        TrainingError: A worker failed.
    """
    name = settings.app
    if callbacks and name != "train":
        raise InputError(f"app={name}: callbacks follow app=train only; leave them out")
    places = (
        *(settings.partition_dir, settings.dataset_file, settings.checkpoint_dir),
        settings.remote.upload,
    )
    if any(place is not None and "://" in place for place in places):
        from retexo.apps import remote_files

        return remote_files.run_with_copies(settings, run_dir, callbacks)
    if name in DISTRIBUTED_APPS:
        fork_server.warm_up()  # it imports torch while this process does
    app = import_quickly(f"retexo.apps.{name}")
    with contextlib.nullcontext() if name == "serve" else ticker.running():
        if name == "partition_data":
            return app.run(settings)
        return app.run(settings, run_dir, *([callbacks] if callbacks else []))
