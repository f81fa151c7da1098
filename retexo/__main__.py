"""The command `retexo`: compose the Hydra configuration, turn it into typed settings, call one app.

Exit status: 0 done; 2 input that cannot be used, found before anything is started; 1 failed while running; 130 and 143
on Ctrl-C and SIGTERM.
"""

# Worker processes import what was started, too; so the heavy imports are inside.
import atexit
import errno
import gc
import importlib
import io
import os
import pickle
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from hydra.conf import HydraConf
    from omegaconf import DictConfig

    from retexo.config.settings import Settings


def main() -> int:
    for stream in (sys.stdout, sys.stderr):  # whose locale may not have the letters of a name
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if sys.argv[1:2] == ["credentials"]:
        from retexo.apps.credentials import main as make_credentials

        return make_credentials(sys.argv[2:])
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # Hydra raises, instead of exiting with status 1
    fresh = "torch" not in sys.modules  # not a notebook's or a test's process
    try:
        status = run_beside() if fresh and starts_workers(sys.argv[1:]) else None
        if status is None:
            status = compose_and(run, fresh)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        status = 130
    if fresh and "torch" in sys.modules:
        end_at_once(status)
    return status


def compose_and(work: Callable[["Settings", "HydraConf", bool], None], fresh: bool) -> int:
    """Compose the configuration and call `work` with its settings; return the exit status.

    fresh: this process has computed nothing yet; so `work` is told, too.
    """
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    import retexo.config.compose  # noqa: F401  # stores the defaults that Hydra composes from
    from partitioning.errors import InputError
    from retexo.config.schema import CONFIG_DIR

    started = time.time()
    statuses: list[int] = []

    def job(config: "DictConfig") -> None:
        """One job of Hydra's; of several (--multirun) the others go on when one fails."""
        first, place = not statuses, HydraConfig.get()
        statuses.append(0)
        try:
            statuses[-1] = status_of(
                lambda: work(settings_of(config, place), place, fresh and first)
            )
        finally:
            if place.run.dir:
                remove_if_unused(Path(place.runtime.output_dir), has_default_dir(place), started)

    try:
        hydra.main(
            version_base="1.3", config_path=str(CONFIG_DIR), config_name="node_classification"
        )(job)()
    except Exception as error:
        # Until the first job starts, all that can fail is what the user gave; Hydra has ValueErrors for it, too.
        if statuses and not isinstance(error, InputError | HydraException | OmegaConfBaseException):
            raise
        said, names = (
            explain(error),
            [argument.partition("=")[0].lstrip("+~") for argument in sys.argv[1:]],
        )
        unnamed = not isinstance(error, InputError) and not any(name in said for name in names)
        print(
            f"error: {said}{f' (of {chr(32).join(sys.argv[1:])})' if unnamed else ''}",
            file=sys.stderr,
        )
        return 2
    return max(statuses, default=0)  # none: --help, --cfg


def settings_of(config: "DictConfig", hydra: "HydraConf") -> "Settings":
    import logging

    # Before the imports that take seconds.
    logging.getLogger("retexo").info(
        "app=%s dataset_name=%s", config.get("app"), config.get("dataset_name")
    )

    from partitioning.errors import InputError
    from retexo.config.compose import load

    if not hydra.run.dir:
        raise InputError("hydra.run.dir='': needs a folder for what is written; choose one")
    config_dir = next(
        (each.path for each in hydra.runtime.config_sources if each.provider == "command-line"),
        None,
    )
    return load(
        config, list(hydra.overrides.task), str(hydra.job.config_name), config_dir, os.environ
    )


def wants_workers(settings: "Settings") -> bool:
    from retexo.config.settings import DISTRIBUTED_APPS

    return settings.app in DISTRIBUTED_APPS and settings.sweep.axes is None


def run(settings: "Settings", hydra: "HydraConf", fresh: bool) -> None:
    run_app(settings, Path(hydra.runtime.output_dir), fork=fresh and wants_workers(settings))


def run_app(settings: "Settings", run_dir: Path, *, fork: bool) -> None:
    """fork: start a fork server of this process, which has computed nothing yet."""
    from retexo import apps

    if fork:
        from retexo.cluster.launch import fork_fork_server

        fork_fork_server()
    apps.run(settings, run_dir)


def status_of(work: Callable[[], None]) -> int:
    """0, or the exit status of an error, which is said."""
    from partitioning.errors import InputError
    from retexo.errors import TrainingError

    try:
        work()
    except (InputError, TrainingError, OSError, MemoryError) as error:
        print(f"error: {explain(error)}", file=sys.stderr)
        return 2 if isinstance(error, InputError) or is_wrong_path(error) else 1
    return 0


def starts_workers(arguments: Sequence[str]) -> bool:
    """Whether a command looks as if it starts workers; of Hydra's it has --config-name and hydra.run.dir at most."""
    from retexo.config.settings import DISTRIBUTED_APPS

    names = {place for place, given in enumerate(arguments) if given in ("--config-name", "-cn")}
    values = [given for place, given in enumerate(arguments) if not names & {place, place - 1}]
    values = [
        given for given in values if not given.startswith(("hydra.run.dir=", "--config-name="))
    ]
    apps = {given[4:] for given in values if given.startswith("app=")}
    return apps <= {*DISTRIBUTED_APPS} and not any(
        given.startswith(("-", "hydra", "+hydra")) for given in values
    )


def run_beside() -> int | None:
    """Run the app, after importing torch while a child process composes the configuration; return the exit status.

    None where the settings start no workers, or several runs: then they are to be composed here.
    """
    started, (reading, writing) = time.time(), os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        _compose_for_parent(writing)
    os.close(writing)
    received = b""

    def read() -> None:
        nonlocal received
        with os.fdopen(reading, "rb") as pipe:
            received = pipe.read()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if not received and status > 0:  # refused; it said why
            os._exit(status)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    gc.disable()  # of thousands of new objects nothing is garbage
    importlib.import_module("retexo.apps.train")
    gc.freeze()
    gc.enable()
    reader.join()
    if not received:
        return None
    settings, run_dir, default, log, records = pickle.loads(received)
    _take_over_log(log, records)
    try:
        return status_of(lambda: run_app(settings, run_dir, fork=True))
    finally:
        remove_if_unused(run_dir, default, started)


def _compose_for_parent(writing: int) -> NoReturn:
    """Compose, and send the parent what `run_app` needs and the log until here; nothing where it starts no workers.

    It ends with the exit status of settings that are refused.
    """
    from retexo.cluster.parent import tie_to_parent

    tie_to_parent()  # Ctrl-C is the parent's to answer
    parent = os.getppid()

    def send(settings: "Settings", hydra: "HydraConf", _fresh: bool) -> None:
        import logging
        from logging.handlers import MemoryHandler

        import psutil
        from omegaconf import OmegaConf

        kept = [each.buffer for each in logging.root.handlers if isinstance(each, MemoryHandler)]
        settings = replace(settings, started=psutil.Process(parent).create_time())
        log: Any = OmegaConf.to_container(hydra.job_logging, resolve=True)
        given = settings, Path(hydra.runtime.output_dir), has_default_dir(hydra), log, kept
        if wants_workers(settings):
            with suppress(BrokenPipeError), os.fdopen(writing, "wb") as pipe:  # it was killed
                pickle.dump(given, pipe)

    status = 1
    try:
        status = compose_and(send, fresh=False)
    except SystemExit as ended:  # argparse said what it does not understand
        status = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _take_over_log(config: dict[str, Any], records: list[list[Any]]) -> None:
    """Log as the process that composed did; `records` of each handler that keeps them."""
    import logging.config
    from logging.handlers import MemoryHandler

    logging.config.dictConfig(config)
    keeping = (each for each in logging.root.handlers if isinstance(each, MemoryHandler))
    for handler, kept in zip(keeping, records, strict=True):
        handler.buffer.extend(kept)


def end_at_once(status: int) -> None:
    """End this process without taking torch apart, which takes half a second."""
    atexit._run_exitfuncs()
    with suppress(OSError):  # then it ends as others do, with the interpreter's status for it
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def has_default_dir(hydra: "HydraConf") -> bool:
    return not any(given.startswith("hydra.run.dir=") for given in hydra.overrides.hydra)


def remove_if_unused(folder: Path, default: bool, started: float) -> None:
    """Remove the output directory, which Hydra makes for every command, where it is new and nothing is in it.

    default: it is outputs/DATE/TIME, not named by the user.
    """
    with suppress(OSError):
        if folder.stat().st_ctime >= started:
            for each in (folder, *folder.parents[: 2 * default]):
                each.rmdir()


def is_wrong_path(error: Exception) -> bool:
    """Whether a file or folder that the user named cannot be used; a full or failing disk is another thing."""
    wrong = (
        errno.ENAMETOOLONG,
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.EEXIST,
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.ELOOP,
    )
    return isinstance(error, OSError) and error.errno in wrong


def explain(error: Exception) -> str:
    """The message of an error, on one line."""
    from retexo.config.compose import refusal

    if isinstance(error, OSError) and is_wrong_path(error):
        return (
            f"{error.filename}: {error.strerror}; set another path"
            if error.filename
            else str(error)
        )
    if isinstance(error, MemoryError):
        return f"not enough memory: {error}"
    if isinstance(
        error, ValueError | RuntimeError
    ):  # InputError, TrainingError, and some of Hydra's
        return "; ".join(line.strip() for line in str(error).splitlines())
    return refusal(error)


if __name__ == "__main__":
    sys.exit(main())
