"""The command `retexo`: compose settings by Hydra and run one app.

Exit status: 0 done; 2 invalid input, found before any process is started; 1 failed while running;
129, 130 and 143 on SIGHUP, Ctrl-C and SIGTERM.
"""

import os
import sys
import time
import traceback
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from partitioning.errors import InputError, require_packages
from retexo.apps.job import JobLog, run_job
from retexo.errors import describe_error
from retexo.launch.standard_streams import keep_standard_streams
from retexo.settings.command_line import check_unicode, options_first
from retexo.settings.compose import BASE, check_sweeper, remove_if_unused
from retexo.settings.messages import REFUSALS, explain_command
from retexo.settings.schema import CONFIG_DIR
from retexo.settings.search import leave_out_fixed

OWN_PACKAGES = {"retexo", "partitioning", "__main__"}


def main() -> int:
    """Run the command `retexo` and return its exit status.

    Checks the command line, lets Hydra compose the settings, and runs the app.
    """
    keep_standard_streams()
    try:
        check_unicode(sys.argv[1:])
        if sys.argv[1:2] == ["credentials"]:
            require_packages("retexo credentials", "sites", "cryptography")
            from retexo.apps.credentials import main as make_credentials

            return make_credentials(sys.argv[2:])
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # Hydra raises, instead of exiting with status 1
    try:
        return run_jobs()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def run_jobs() -> int:
    """Run the app, or all jobs of --multirun even if some fail; return the largest exit status.

    Reads and rewrites sys.argv. Prints errors, and for several jobs which failed and which was
    best. Removes output folders that were left unused.
    """
    started = time.time()
    with JobLog.temporary() as jobs:

        @hydra.main(version_base="1.3", config_path=str(CONFIG_DIR), config_name=BASE)
        def job(config: DictConfig) -> Any:
            check_sweeper(config)
            status, value = 1, None
            try:
                status, value = run_job(config, HydraConfig.get().runtime.output_dir)
            finally:
                jobs.add(status, value, HydraConfig.get())
                remove_if_unused(started)
            return value  # to a sweeper

        try:
            sys.argv[1:] = options_first(sys.argv[1:])
            overrides = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
            sys.argv.append(leave_out_fixed(overrides))
            job()
        except Exception as error:
            # Until the first job starts, Hydra and its plugins raise any error for what the user
            # gave. Optuna's sweeper raises a ValueError where all jobs failed.
            is_refusal = not jobs.read() and not _is_of_this_program(error)
            if isinstance(error, REFUSALS) or is_refusal:
                print(f"error: {explain_command(error, sys.argv[1:])}", file=sys.stderr)
                return 2
            ended = jobs.read()
            if not (
                ended and all(job["status"] for job in ended) and isinstance(error, ValueError)
            ):
                traceback.print_exception(error)
                print(f"error: {describe_error(error)}", file=sys.stderr)
                return 1
        return jobs.report()


def _is_of_this_program(error: Exception) -> bool:
    """Return whether this program raised an error, not Hydra before it called this program."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    first = 1 + [frame.f_code for frame in frames].index(run_jobs.__code__)
    packages = [frame.f_globals.get("__name__", "").split(".")[0] for frame in frames[first:]]
    return packages[:1] != ["hydra"] or not OWN_PACKAGES.isdisjoint(packages)


if __name__ == "__main__":
    sys.exit(main())
