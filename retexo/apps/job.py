"""Jobs of a command (--multirun has several): run one; tell at the end how all ended."""

import json
import logging
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from partitioning.errors import InputError
from retexo import apps
from retexo.errors import TrainingError, describe_error
from retexo.settings.app_settings import WITHOUT_DATA
from retexo.settings.compose import load_job
from retexo.settings.messages import REFUSALS, explain, is_wrong_path
from retexo.settings.search import find_objective


def run_job(config: Any, output_dir: str) -> tuple[int, Any]:
    """Run the app of composed settings; return the exit status and the number for a sweeper.

    The status is 2 for invalid input and 1 for other errors, which are printed; the number is that
    of `find_objective`, None after an error. An unexpected error is logged with its traceback.
    Within a run directory, main.log has it, too (retexo.results.run_lock). Errors of Hydra
    (REFUSALS) are raised.
    """
    app, name = config.get("app"), config.get("dataset_name")
    logger = logging.getLogger("retexo")
    logger.info("app=%s%s", app, "" if app in WITHOUT_DATA else f" dataset_name={name}")
    try:
        settings = load_job(config)
        result = apps.run(settings, Path(output_dir))
        return 0, find_objective(result, settings.objective)
    except (InputError, TrainingError, OSError, MemoryError) as error:
        message, begins, _ = str(error).partition("\nTraceback ")
        if isinstance(error, TrainingError) and begins:  # of a worker
            logger.error("%s", error)
            print(f"error: {message}", file=sys.stderr)
        else:
            print(f"error: {explain(error)}", file=sys.stderr)
        return (2 if isinstance(error, InputError) or is_wrong_path(error) else 1), None
    except REFUSALS:
        raise
    except Exception as error:
        logger.exception("unexpected error")
        print(f"error: {describe_error(error)}", file=sys.stderr)
        return 1, None


class JobLog:
    """A file with a line per job, because launchers such as joblib start processes of their own.

    A launcher that starts jobs on other machines leaves no lines here.
    """

    def __init__(self, path: Path) -> None:
        """Use a JSON lines file, which the first job creates."""
        self._path = path

    @classmethod
    @contextmanager
    def temporary(cls) -> Iterator[Self]:
        """Yield a log in a temporary folder, which is removed at the end.

        A job that ends later is not noted.
        """
        with tempfile.TemporaryDirectory(prefix="retexo-jobs-") as folder:
            yield cls(Path(folder, "jobs.jsonl"))

    def add(self, status: int, value: Any, hydra: Any) -> None:
        """Append the line of a job. Nothing is written once the folder is removed.

        It has the exit status, the settings that distinguish the job from others, its folder, the
        number or numbers for a sweeper, and what that searches for: minimize or maximize.
        """
        configured = hydra.sweeper.get("direction")
        direction = getattr(configured, "name", configured)
        job = {
            "status": status,
            "overrides": hydra.job.override_dirname,
            "folder": hydra.runtime.output_dir,
            "value": value,
            "direction": direction if isinstance(direction, str) else None,
        }
        if self._path.parent.is_dir():
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(job) + "\n")

    def read(self) -> list[dict[str, Any]]:
        """Return the jobs that have ended, in order; none if there is no file."""
        if not self._path.exists():
            return []
        lines = self._path.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    def report(self) -> int:
        """Print which of several jobs failed, and which a search found best.

        Returns:
            The largest exit status; 0 if there was no job, as with --help.
        """
        ended = self.read()
        failed = [job["overrides"] for job in ended if job["status"]]
        if len(ended) > 1 and failed:
            print(f"{len(failed)} of {len(ended)} jobs failed:", *failed, sep="\n  ")
        jobs = [job for job in ended if job["direction"] and isinstance(job["value"], float)]
        if jobs:
            choose = min if jobs[0]["direction"] == "minimize" else max
            best = choose(jobs, key=lambda job: job["value"])
            print(f"best of {len(jobs)} jobs: {best['value']:.4f} in {best['folder']}")
        return max((job["status"] for job in ended), default=0)
