"""Settings composed by Hydra from configuration files and the command line."""

import logging
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, cast

import hydra
import psutil
from hydra import initialize_config_dir
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from partitioning.errors import InputError
from partitioning.setting_fields import check
from retexo.settings.aliases import rename_override, rename_settings
from retexo.settings.app_settings import DISTRIBUTED_APPS
from retexo.settings.command_line import check_overrides
from retexo.settings.communication_settings import chosen_by_network, decided_by_network
from retexo.settings.config_files import check_config_dir
from retexo.settings.flatten import with_values
from retexo.settings.launcher_env import LauncherEnv, detect
from retexo.settings.messages import (
    REFUSALS,
    explain_command,
    quoted,
    refusal,
    setting_names,
    unknown_setting,
)
from retexo.settings.optimizer import check_optimizer
from retexo.settings.options import OPTIONS
from retexo.settings.run_settings import Settings
from retexo.settings.schema import (
    CONFIG_DIR,
    DEFINED,
    SCHEMA,
    as_lists,
    build,
    defaults,
    plain,
    typed,
)
from retexo.settings.search import check_direction, shorten_name
from retexo.settings.table import help_text

logger = logging.getLogger(__name__)

BASE = "node_classification"
"""Default of --config-name."""

# The files in conf/ refer to both, so they are stored before Hydra composes anything.
ConfigStore.instance().store(name="defaults", node=defaults())
for (group, name), options in OPTIONS.items():
    ConfigStore.instance().store(
        group=f"options/{group}", name=name, node=defaults(options), package="_global_"
    )
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
    """Compose settings and the run directory of the command, hydra.run.dir; see `compose`."""
    check_overrides(overrides)
    overrides = [rename_override(override) for override in overrides]
    if config_dir is not None:
        check_config_dir(config_dir)
    try:
        config = _compose(config_name, overrides, config_dir)
        run_dir = Path(config.hydra.run.dir)
        OmegaConf.set_struct(config, False)
        del config["hydra"]
        return load(config, overrides, config_name, config_dir), run_dir
    except (HydraException, OmegaConfBaseException) as error:
        raise InputError(refusal(error)) from None


def _compose(config_name: str, overrides: Sequence[str], config_dir: str | None) -> DictConfig:
    """Compose a configuration by Hydra's API, also while another one is in use."""
    outer = GlobalHydra.instance().hydra  # of the command, where an app composes
    GlobalHydra.instance().clear()  # Hydra allows one at a time
    OwnFolder.path = config_dir
    try:
        with initialize_config_dir(str(CONFIG_DIR), "main", version_base="1.3"):
            return hydra.compose(config_name, [*overrides], return_hydra_config=True)
    except REFUSALS:
        raise
    except Exception as error:  # at odd defaults or a name twice: Hydra raises many types
        raise InputError(explain_command(error, overrides)) from error
    finally:
        OwnFolder.path = None
        GlobalHydra.instance().hydra = outer


class OwnFolder(SearchPathPlugin):
    """Adds --config-dir to the search path, which Hydra's compose API cannot do."""

    path: ClassVar[str | None] = None

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        if self.path is not None:
            search_path.append("command-line", f"file://{Path(self.path).absolute()}")


Plugins.instance().register(OwnFolder)


def load_job(config: DictConfig) -> Settings:
    """Return the settings of the job that Hydra runs now."""
    job = HydraConfig.get()
    if not job.run.dir:
        raise InputError("hydra.run.dir='': needs a folder for what is written; choose one")
    if "://" in job.run.dir:
        raise InputError(
            f"hydra.run.dir={job.run.dir}: has to be a folder of this machine;"
            " remote.upload=ADDRESS copies it to an object store"
        )
    sources = {each.provider: each.path for each in job.runtime.config_sources}
    overrides, name = list(job.overrides.task), str(job.job.config_name)
    return load(config, overrides, name, sources.get("command-line"), os.environ)


def check_sweeper(config: DictConfig) -> None:
    """Raise InputError if a sweeper would minimise what has to be maximised, or the reverse."""
    objective, metric = (OmegaConf.select(config, key) for key in ("objective", "stopping.metric"))
    names = (
        None
        if objective is None
        else [objective]
        if isinstance(objective, str)
        else list(map(str, objective))
    )
    if _is_multirun():
        regression = str(OmegaConf.select(config, "task._target_")).endswith(".NodeRegression")
        sweeper = HydraConfig.get().sweeper
        check_direction(names, str(metric), sweeper, regression=regression)


def remove_if_unused(started: float) -> None:
    """Remove the directory that Hydra made for this job, if it is new and empty."""
    job = HydraConfig.get()
    folder = Path(job.runtime.output_dir)
    named = any(given.startswith("hydra.run.dir=") for given in job.overrides.hydra)
    with suppress(OSError):
        if folder.stat().st_ctime >= started:
            for each in (folder, *([] if named else folder.parents[:2])):  # outputs/DATE/TIME
                each.rmdir()


def load(
    config: DictConfig,
    overrides: Sequence[str] = (),
    config_name: str = BASE,
    config_dir: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Turn a composed configuration into Settings.

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
    is_first_job = is_command and not _is_later_job()
    started = psutil.Process().create_time() if is_first_job else time.time()
    environ = environ or {}
    given = frozenset(override.split("=")[0].lstrip("+~") for override in overrides)
    try:
        # Resolve interpolations first: OmegaConf does not check their values otherwise.
        container: Any = OmegaConf.to_container(
            OmegaConf.create(
                rename_settings(cast(dict[str, Any], OmegaConf.to_container(config)), given)
            ),
            resolve=True,
        )
        plain(container.get("seed"), "seed")  # before the seeds that default to it
        resolved: dict[str, Any] = plain(container)
        common, options = _without_trainer(resolved)
        values = typed(common)
    except (ConfigKeyError, ConfigAttributeError) as error:
        raise unknown_setting(str(error.full_key or error.key)) from error
    except OmegaConfBaseException as error:
        reason = str(error.msg or error).splitlines()[0]
        name = error.full_key or _find_misfit(config)
        if "to string" in reason:  # of a list or a mapping
            value = next(
                (one.partition("=")[2] for one in overrides if one.startswith(f"{name}=")), ""
            )
            reason += f"; as text it is written {quoted(name, value)}" if value else ""
        if name == "optimizer":
            reason = "choose one by optimizer._target_=torch.optim.NAME"
        raise InputError(f"{name}: {reason}") from error
    check(DEFINED["seed"][0], values["seed"])  # before the seeds that default to it
    check(DEFINED["network"][0], values["network"])  # before the settings that it decides
    names = decided_by_network(values)
    if values["network"] != "wan" and not names:
        logger.info(
            "network=%s changes nothing: other settings, such as trainer or +experiment, decide"
            " the precision of rows and gradients",
            values["network"],
        )
    chosen = chosen_by_network(values, names)
    values |= chosen
    launcher_env = detect(environ) if values["app"] in DISTRIBUTED_APPS else None
    own = () if config_dir is None else (f"--config-dir={Path(config_dir).absolute()}",)
    others = {
        "num_partitions": values["num_partitions"],  # ClusterSettings has it, too
        "learns": values["task._target_"],  # DatasetSettings has it
        "launcher_env": launcher_env,
        "run_key": environ.get("RETEXO_RUN_KEY") or (launcher_env.run_key if launcher_env else ""),
        "arguments": (f"--config-name={config_name}", *own, *overrides),
        "given": given,
        "resolved": with_values(resolved, chosen),
        "options": options,
        "started": started,
        "is_multirun_job": is_command and _is_multirun(),
    }
    settings = build(Settings, _with_rank(values, launcher_env, given), others)
    check_optimizer(settings.train.optimizer)
    return settings


def _is_multirun() -> bool:
    """Return whether this process runs a job of --multirun."""
    hydra: Any = HydraConfig.instance().cfg
    return hydra is not None and OmegaConf.select(hydra, "hydra.mode") == RunMode.MULTIRUN


def _is_later_job() -> bool:
    """Return whether this is a job of --multirun, but not the first one."""
    hydra: Any = HydraConfig.instance().cfg
    return hydra is not None and bool(OmegaConf.select(hydra, "hydra.job.num", default=0))


def _without_trainer(resolved: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split off the settings that only the chosen trainer has."""
    common = (
        {"seed": resolved["seed"], **resolved} if "seed" in resolved else dict(resolved)
    )  # others default to it
    trainer = common.get("trainer")
    name = str(trainer.get("name")) if isinstance(trainer, dict) else ""
    own = name not in setting_names() and isinstance(common.get(name), dict)
    return common, common.pop(name) if own else {}


def _with_rank(
    values: dict[str, Any], launcher_env: LauncherEnv | None, given: frozenset[str]
) -> dict[str, Any]:
    """Set rank and address of this node.

    With torchrun or Slurm each process is a node of one rank.
    """
    if launcher_env is None:
        all_here = values["parts_per_node"] is None
        return {**values, "parts_per_node": values["num_partitions"]} if all_here else values
    for name in ("parts_per_node", "node_rank"):
        if name in given:
            raise InputError(
                f"{name}={values[name]}: {launcher_env.launcher} assigns the ranks; leave it out"
            )
    if launcher_env.world_size != values["num_partitions"]:
        raise InputError(
            f"num_partitions={values['num_partitions']}: {launcher_env.launcher} started"
            f" {launcher_env.world_size} process(es), and each has one partition; start as many as"
            " there are partitions, or, if it did not start this one, unset"
            f" {launcher_env.variables}"
        )
    address = {
        f"distributed.{name}": getattr(launcher_env, name)
        for name in ("master_addr", "master_port")
        if getattr(launcher_env, name) is not None and f"distributed.{name}" not in given
    }
    return {**values, "parts_per_node": 1, "node_rank": launcher_env.rank, **address}


def _find_misfit(config: DictConfig) -> str:
    """Return the first setting that does not fit the schema, where OmegaConf's error names none."""
    for name in (str(name) for name in config if name in setting_names()):
        try:
            given: Any = OmegaConf.to_container(OmegaConf.masked_copy(config, name))
            OmegaConf.merge(OmegaConf.structured(SCHEMA), as_lists(given))
        except OmegaConfBaseException:
            return name
    return "configuration"
