"""What can be run: each app is a function from settings to a result, callable from Python and from tests."""

from pathlib import Path

from retexo.config.settings import Settings


def run(settings: Settings, run_dir: Path) -> None:
    """Run the app that the settings name; what it writes goes to run_dir or, for partitions, to partition_dir."""
    if settings.sweep.axes is not None:
        from retexo.apps import sweep

        sweep.run(settings, run_dir)
    elif settings.app == "partition_data":
        from retexo.apps import partition_data

        partition_data.run(settings.partition)
    elif settings.app == "plan":
        from retexo.apps import plan

        plan.run(settings, run_dir)
    elif settings.app == "evaluate":
        from retexo.apps import evaluate

        evaluate.run(settings, run_dir)
    elif settings.app == "predict":
        from retexo.apps import predict

        predict.run(settings, run_dir)
    elif settings.app == "report":
        from retexo.apps import report

        report.run(settings, run_dir)
    else:
        from retexo.apps import train

        train.run(settings, run_dir)
