"""The command `retexo`: compose the Hydra configuration, turn it into typed settings, call one app.

Exit status: 0 done; 2 input that cannot be used, found before anything is started; 1 failed while running; 130 and 143
on Ctrl-C and SIGTERM.
"""

# Worker processes import what was started, too; so the heavy imports are inside.
import errno
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hydra.conf import HydraConf
    from omegaconf import DictConfig


def run(config: "DictConfig", fresh: bool) -> None:
    """fresh: this process has computed nothing yet."""
    import logging

    from hydra.core.hydra_config import HydraConfig

    # Before the imports that take seconds.
    logging.getLogger("retexo").info("app=%s dataset_name=%s", config.get("app"), config.get("dataset_name"))

    from partitioning.errors import InputError
    from retexo import apps
    from retexo.config.compose import load
    from retexo.config.settings import DISTRIBUTED_APPS

    hydra = HydraConfig.get()
    if not hydra.run.dir:
        raise InputError("hydra.run.dir='': needs a folder for what is written; choose one")
    config_dir = next((each.path for each in hydra.runtime.config_sources if each.provider == "command-line"), None)
    settings = load(config, list(hydra.overrides.task), str(hydra.job.config_name), config_dir, os.environ)
    if fresh and settings.app in DISTRIBUTED_APPS and settings.sweep.axes is None:
        from retexo.cluster.launch import fork_fork_server

        fork_fork_server()
    apps.run(settings, Path(hydra.runtime.output_dir))


def main() -> int:
    if sys.argv[1:2] == ["credentials"]:
        from retexo.apps.credentials import main as make_credentials

        return make_credentials(sys.argv[2:])
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # Hydra raises, instead of exiting with status 1
    fresh = "torch" not in sys.modules  # not a notebook's or a test's process
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    import retexo.config.compose  # noqa: F401  # stores the defaults that Hydra composes from
    from partitioning.errors import InputError
    from retexo.config.schema import CONFIG_DIR
    from retexo.errors import TrainingError

    started = time.time()
    statuses: list[int] = []

    def job(config: "DictConfig") -> None:
        """One job of Hydra's; of several (--multirun) the others go on when one fails."""
        statuses.append(0)
        try:
            run(config, fresh and len(statuses) == 1)
        except (InputError, TrainingError, OSError, MemoryError) as error:
            print(f"error: {explain(error)}", file=sys.stderr)
            statuses.append(2 if isinstance(error, InputError) or is_wrong_path(error) else 1)
        finally:
            remove_if_unused(HydraConfig.get(), started)

    try:
        hydra.main(version_base="1.3", config_path=str(CONFIG_DIR), config_name="node_classification")(job)()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        # Until the first job starts, all that can fail is what the user gave; Hydra has ValueErrors for it, too.
        if statuses and not isinstance(error, InputError | HydraException | OmegaConfBaseException):
            raise
        said, names = explain(error), [argument.partition("=")[0].lstrip("+~") for argument in sys.argv[1:]]
        unnamed = not isinstance(error, InputError) and not any(name in said for name in names)
        print(f"error: {said}{f' (of {chr(32).join(sys.argv[1:])})' if unnamed else ''}", file=sys.stderr)
        return 2
    return max(statuses, default=0)  # none: --help, --cfg


def remove_if_unused(hydra: "HydraConf", started: float) -> None:
    """Remove the output directory, which Hydra makes for every command, where it is new and nothing is in it."""
    folder = Path(hydra.runtime.output_dir)
    default = not any(given.startswith("hydra.run.dir=") for given in hydra.overrides.hydra)
    with suppress(OSError):
        if hydra.run.dir and folder.stat().st_ctime >= started:
            for each in (folder, *folder.parents[: 2 * default]):  # outputs/DATE/TIME
                each.rmdir()


def is_wrong_path(error: Exception) -> bool:
    """Whether a file or folder that the user named cannot be used; a full or failing disk is another thing."""
    wrong = (errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EACCES, errno.EPERM,
             errno.EROFS, errno.ELOOP)  # fmt: skip
    return isinstance(error, OSError) and error.errno in wrong


def explain(error: Exception) -> str:
    """The message of an error, on one line."""
    from retexo.config.compose import refusal

    if isinstance(error, OSError) and is_wrong_path(error):
        return f"{error.filename}: {error.strerror}; set another path" if error.filename else str(error)
    if isinstance(error, MemoryError):
        return f"not enough memory: {error}"
    if isinstance(error, ValueError | RuntimeError):  # InputError, TrainingError, and some of Hydra's
        return "; ".join(line.strip() for line in str(error).splitlines())
    return refusal(error)


if __name__ == "__main__":
    sys.exit(main())
