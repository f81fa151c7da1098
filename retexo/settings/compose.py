"""Settings composed by Hydra from configuration files and the command line."""

import logging
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any, ClassVar

import hydra
import psutil
from hydra import initialize_config_dir
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from partitioning.errors import InputError
from partitioning.setting_fields import refuse
from retexo.settings.app_settings import DISTRIBUTED_APPS
from retexo.settings.command_line import prepare_overrides
from retexo.settings.communication_settings import AUTO, BY_NETWORK
from retexo.settings.flatten import flatten
from retexo.settings.launcher_env import LauncherEnv, detect
from retexo.settings.messages import explain_command, refusal, unknown_setting
from retexo.settings.optimizer import check_optimizer
from retexo.settings.options import MODELS
from retexo.settings.run_settings import Settings
from retexo.settings.schema import CONFIG_DIR, DEFINED
from retexo.settings.search import check_direction, shorten_name
from retexo.settings.table import help_text

logger = logging.getLogger(__name__)

BASE = "node_classification"
"""Default of --config-name."""

STORE = ConfigStore.instance()
STORE.store(name="settings", node=Settings)
for name, cls in MODELS.items():
    STORE.store(group="model", name=name, node=cls(name=name))
for name in DEFINED["split.kind"].choices:
    STORE.store(group="split", name=name, node={"kind": name})
# Hydra copies it for each group that --help lists, and again what it takes from it: 2 of 2.5 s.
vars(STORE)["__deepcopy__"] = lambda memo: STORE
OmegaConf.register_new_resolver(
    "settings_help", lambda: help_text().replace("$", "$$"), replace=True
)
OmegaConf.register_new_resolver("folder_name", shorten_name, replace=True)


def compose(
    overrides: Sequence[str] = (), config_name: str = BASE, config_dir: str | None = None
) -> Settings:
    """Compose settings as `retexo --config-name NAME --config-dir DIR OVERRIDES` does.

    Raises:
        InputError: A setting is unknown or invalid.
    """
    return compose_run(overrides, config_name, config_dir)[0]


def compose_run(
    overrides: Sequence[str] = (), config_name: str = BASE, config_dir: str | None = None
) -> tuple[Settings, Path]:
    """Compose settings and the run directory of the command, hydra.run.dir; see `compose`.

    config_dir: None for no files besides those of conf/. InputError as of `compose`.
    """
    overrides = prepare_overrides(overrides, config_dir)
    outer = GlobalHydra.instance().hydra  # of the command, where an app composes
    GlobalHydra.instance().clear()  # Hydra allows one at a time
    OwnFolder.path = config_dir
    try:
        with initialize_config_dir(str(CONFIG_DIR), "main", version_base="1.3"):
            config = hydra.compose(config_name, overrides, return_hydra_config=True)
        run_dir = Path(config.hydra.run.dir)
    except Exception as error:  # at odd defaults or a name twice, Hydra raises many types
        raise InputError(explain_command(error, overrides)) from error
    finally:
        OwnFolder.path = None
        GlobalHydra.instance().hydra = outer
    OmegaConf.set_struct(config, False)
    del config["hydra"]
    return load_settings(config, overrides, config_name, config_dir), run_dir


class OwnFolder(SearchPathPlugin):
    """Adds --config-dir to the search path, which Hydra's compose API cannot do."""

    path: ClassVar[str | None] = None

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        if self.path is not None:
            search_path.append("command-line", f"file://{Path(self.path).absolute()}")


Plugins.instance().register(OwnFolder)


def load_job(config: DictConfig) -> Settings:
    """Return the settings of the job that Hydra runs now.

    InputError for an unusable hydra.run.dir, and as in `load_settings`.
    """
    job = HydraConfig.get()
    if not job.run.dir or "://" in job.run.dir:
        raise InputError(
            f"hydra.run.dir={job.run.dir!r}: has to be a folder of this machine;"
            " remote.upload=ADDRESS copies it to an object store"
        )
    sources = {source.provider: source.path for source in job.runtime.config_sources}
    overrides: Any = OmegaConf.to_container(job.overrides.task)  # with ${...}, as they were given
    name, config_dir = str(job.job.config_name), sources.get("command-line")
    return load_settings(config, overrides, name, config_dir, os.environ)


def check_sweeper(config: DictConfig) -> None:
    """Raise InputError if a sweeper would minimise what has to be maximised, or the reverse.

    Only for a multirun.
    """
    if _of_hydra("mode") == RunMode.MULTIRUN:
        content: Any = OmegaConf.to_container(config)
        names = DEFINED["objective"].normalise(content["objective"])
        metric = str(config.stopping.metric)
        regression = str(config.task.name).endswith("_regression")
        check_direction(names, metric, _of_hydra("sweeper"), regression=regression)


def remove_if_unused(started: float) -> None:
    """Remove the directory that Hydra made for this job, if it is new and empty.

    Of the default outputs/DATE/TIME also the folders above.
    """
    folder = Path(HydraConfig.get().runtime.output_dir)
    is_default = folder.parents[1] == Path.cwd() / "outputs"
    with suppress(OSError):
        if folder.stat().st_ctime >= started:
            for path in (folder, *(folder.parents[:2] if is_default else ())):
                path.rmdir()


def load_settings(
    config: DictConfig,
    overrides: Sequence[str] = (),
    config_name: str = BASE,
    config_dir: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Turn a composed configuration into Settings; log a line if `network` changes nothing.

    Args:
        config: The configuration.
        overrides: Overrides of the command line that are part of it.
        config_name: Value of --config-name.
        config_dir: Value of --config-dir.
        environ: Environment variables, in which torchrun and Slurm pass the rank; None if the
            caller is not a command.

    Raises:
        InputError: Names the first setting that is unknown or invalid.
    """
    is_command = environ is not None
    is_first_job = is_command and not _of_hydra("job.num")
    started = psutil.Process().create_time() if is_first_job else time.time()
    environ = environ or {}
    _check_names(config)
    try:
        for name in ("seed", "network"):  # before what they decide
            DEFINED[name].normalise(config[name])
        settings: Settings = OmegaConf.to_object(config)  # type: ignore[assignment]
    except FrozenInstanceError as error:
        raise InputError(unknown_setting(str(error))) from None
    except OmegaConfBaseException as error:
        raise InputError(refusal(error)) from error
    if settings.network != "wan" and AUTO not in str(
        [OmegaConf.select(config, key) for key in BY_NETWORK]
    ):
        logger.info(
            "network=%s changes nothing: other settings, such as trainer or +experiment, decide"
            " the precision of rows and gradients",
            settings.network,
        )
    check_optimizer(settings)
    launcher_env = detect(environ) if settings.app in DISTRIBUTED_APPS else None
    own = () if config_dir is None else (f"--config-dir={Path(config_dir).absolute()}",)
    names_given = frozenset(override.split("=")[0].lstrip("+~") for override in overrides)
    return replace(
        settings if launcher_env is None else _with_rank(settings, launcher_env, names_given),
        run_key=environ.get("RETEXO_RUN_KEY") or (launcher_env.run_key if launcher_env else ""),
        arguments=(f"--config-name={config_name}", *own, *overrides),
        given=names_given,
        started=started,
        is_multirun_job=is_command and _of_hydra("mode") == RunMode.MULTIRUN,
    )


def _check_names(config: DictConfig) -> None:
    """Raise InputError for a name by which Hydra calls functions, such as _target_.

    `optimizer._target_` is allowed.
    """
    content: Any = OmegaConf.to_container(config)
    for name, value in flatten(content).items():
        if "._" in f".{name}" and name != "optimizer._target_":
            raise InputError(f"{name}={value}: no setting begins with _; leave it out")


def _of_hydra(key: str) -> Any:
    """Return a setting of Hydra for the job that it runs; None where it runs none."""
    config: Any = HydraConfig.instance().cfg
    return None if config is None else OmegaConf.select(config, f"hydra.{key}")


def _with_rank(
    settings: Settings, launcher_env: LauncherEnv, names_given: frozenset[str]
) -> Settings:
    """Set rank and address of this node, which is one process of torchrun or Slurm.

    InputError for given ranks, or another number of processes than partitions.
    """
    refuse(
        *(
            (
                name in names_given,
                f"{name}={getattr(settings, name)}: {launcher_env.launcher} assigns the ranks;"
                " leave it out",
            )
            for name in ("parts_per_node", "node_rank")
        ),
        (
            launcher_env.world_size != settings.num_partitions,
            f"num_partitions={settings.num_partitions}: {launcher_env.launcher} started"
            f" {launcher_env.world_size} process(es), and each has one partition; start as many as"
            " there are partitions, or, if it did not start this one, unset"
            f" {launcher_env.variables}",
        ),
    )
    address = {
        name: getattr(launcher_env, name)
        for name in ("master_addr", "master_port")
        if getattr(launcher_env, name) is not None and f"distributed.{name}" not in names_given
    }
    return replace(
        settings,
        parts_per_node=1,
        node_rank=launcher_env.rank,
        distributed=replace(settings.distributed, **address),
        launcher_env=launcher_env,
    )
