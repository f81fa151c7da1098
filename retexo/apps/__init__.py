"""What can be run: each app is a function from settings to a result, callable from Python and from tests."""

from importlib import import_module
from pathlib import Path
from typing import Any

from retexo.launch import fork_server
from retexo.launch.ticker import ticker
from retexo.settings.run_settings import DISTRIBUTED_APPS, Settings


def run(settings: Settings, run_dir: Path) -> Any:
    """Run the app that the settings name, and return what it does; its files go to run_dir or to partition_dir.

    Each app is a module of this folder, loaded when it is run: what one needs, another need not have installed. Raises
    InputError for input that cannot be used, before anything is started, and TrainingError when a worker fails.
    """
    name = settings.app
    if name in DISTRIBUTED_APPS:
        fork_server.warm_up()  # it imports torch while this process does
    app = import_module(f"retexo.apps.{name}")
    with ticker.running():
        if name == "partition_data":
            return (app.verify if settings.partition.verify else app.run)(settings.partition)
        return app.run(settings, run_dir)
