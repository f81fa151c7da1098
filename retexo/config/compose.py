"""Settings from the command line: besides the command the only module that knows Hydra."""

import copy
import difflib
import functools
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from partitioning.errors import InputError
from partitioning.setting_fields import check
from retexo.config.flatten import flatten
from retexo.config.launcher_env import LauncherEnv, detect
from retexo.config.optimizer import check_optimizer
from retexo.config.options import OPTIONS
from retexo.config.schema import CONFIG_DIR, DEFINED, SCHEMA, as_lists, build, defaults, typed
from retexo.config.settings import DISTRIBUTED_APPS, Settings
from retexo.config.table import help_text

BASE = "node_classification"
"""The configuration where none is named."""

# What the files in conf/ refer to; both have to be there before Hydra composes anything.
ConfigStore.instance().store(name="defaults", node=defaults())
for (group, name), options in OPTIONS.items():
    ConfigStore.instance().store(
        group=f"options/{group}", name=name, node=defaults(options), package="_global_"
    )
OmegaConf.register_new_resolver(
    "settings_help", lambda: help_text().replace("$", "$$"), replace=True
)


def compose(
    overrides: Sequence[str] = (), config_name: str = BASE, config_dir: str | None = None
) -> Settings:
    """Settings for Python callers: as `retexo --config-name CONFIG_NAME --config-dir CONFIG_DIR OVERRIDES` has them.

    Raises InputError.
    """
    return compose_run(overrides, config_name, config_dir)[0]


def compose_run(
    overrides: Sequence[str] = (), config_name: str = BASE, config_dir: str | None = None
) -> tuple[Settings, Path]:
    """As `compose`, and the run directory that the command would have: hydra.run.dir."""
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra.core.override_parser.overrides_parser import OverridesParser

    if config_dir is not None and not Path(config_dir).is_dir():
        raise InputError(
            f"--config-dir={config_dir}: no such folder; give one that has configuration files"
        )
    try:
        parsed = OverridesParser.create().parse_overrides(list(overrides))
        if config_dir is not None:  # which may have groups of its own
            config = _compose(config_name, tuple(overrides), config_dir)
        else:
            values = [each for each in parsed if not _chooses(each)]
            choices = tuple(str(each.input_line) for each in parsed if _chooses(each))
            config = copy.deepcopy(_compose_once(config_name, choices, _newest()))
            OmegaConf.clear_cache(config)  # the time of the run directory
            ConfigLoaderImpl._apply_overrides_to_config(values, config)
        run_dir = Path(config.hydra.run.dir)
        OmegaConf.set_struct(config, False)
        del config["hydra"]
        return load(config, overrides, config_name, config_dir), run_dir
    except (HydraException, OmegaConfBaseException) as error:
        raise InputError(refusal(error)) from None


def _chooses(override: Override) -> bool:
    """Whether it is more than a value: a file of a group, or what Hydra refuses."""
    group = override.key_or_group
    return (
        override.is_sweep_override()
        or override.package is not None
        or (CONFIG_DIR / group).is_dir()
        or "/" in group
    )


def _newest() -> int:
    return max(file.stat().st_mtime_ns for file in CONFIG_DIR.rglob("*.yaml"))


@functools.lru_cache(maxsize=64)
def _compose_once(config_name: str, choices: tuple[str, ...], newest: int) -> DictConfig:
    """Takes a tenth of a second, and what has many runs asks for the same again; not to be changed."""
    return _compose(config_name, choices)


def _compose(
    config_name: str, overrides: tuple[str, ...], config_dir: str | None = None
) -> DictConfig:
    import hydra
    from hydra._internal.hydra import Hydra  # the public functions take no second folder
    from hydra._internal.utils import create_config_search_path
    from hydra.core.config_search_path import SearchPathQuery
    from hydra.core.global_hydra import GlobalHydra
    from hydra.version import setbase

    search_path = create_config_search_path(str(CONFIG_DIR))
    if config_dir is not None:
        search_path.prepend(
            "command-line",
            f"file://{Path(config_dir).absolute()}",
            SearchPathQuery(provider="schema"),
        )
    outer = (
        GlobalHydra.instance().hydra
    )  # of the command, where an app composes; Hydra allows one at a time
    GlobalHydra.instance().clear()
    try:
        setbase("1.3")
        Hydra.create_main_hydra2("main", search_path)
        return hydra.compose(config_name, [*overrides], return_hydra_config=True)
    finally:
        GlobalHydra.instance().hydra = outer


def load(
    config: DictConfig,
    overrides: Sequence[str] = (),
    config_name: str = BASE,
    config_dir: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Turn a composed configuration into Settings; InputError names the first thing that is wrong with it.

    `environ` is where torchrun or Slurm may have said which rank this process has; Python callers have none.
    """
    is_command = environ is not None and not _is_later_job()
    started = psutil.Process().create_time() if is_command else time.time()
    environ = environ or {}
    given = frozenset(override.split("=")[0].lstrip("+~") for override in overrides)
    try:
        # Resolved first: what ${...} stands for is not checked otherwise.
        resolved: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
        common, options = _without_trainer(resolved)
        values = typed(common)
    except (ConfigKeyError, ConfigAttributeError) as error:
        raise unknown_setting(str(error.full_key or error.key)) from error
    except OmegaConfBaseException as error:
        reason = str(error.msg or error).splitlines()[0]
        raise InputError(f"{error.full_key or _unfit(config)}: {reason}") from error
    check(DEFINED["seed"][0], values["seed"])  # before the seeds that default to it
    launcher_env = detect(environ) if values["app"] in DISTRIBUTED_APPS else None
    own = () if config_dir is None else (f"--config-dir={Path(config_dir).absolute()}",)
    others = {
        "num_partitions": values["num_partitions"],  # ClusterSettings has it, too
        "learns": values["task._target_"],  # DatasetSettings has it
        "launcher_env": launcher_env,
        "run_key": environ.get("RETEXO_RUN_KEY") or (launcher_env.run_key if launcher_env else ""),
        "arguments": (f"--config-name={config_name}", *own, *overrides),
        "given": given,
        "resolved": resolved,
        "options": options,
        "started": started,
    }
    settings = build(Settings, _placed(values, launcher_env, given), others)
    check_optimizer(settings.train.optimizer)
    return settings


def _is_later_job() -> bool:
    """Whether Hydra runs several jobs (--multirun), and this is not the first of them."""
    hydra: Any = HydraConfig.instance().cfg
    return hydra is not None and bool(OmegaConf.select(hydra, "hydra.job.num", default=0))


def _without_trainer(resolved: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings that all trainers have, and those that only the chosen one knows."""
    common = (
        {"seed": resolved["seed"], **resolved} if "seed" in resolved else dict(resolved)
    )  # others default to it
    trainer = common.get("trainer")
    name = str(trainer.get("name")) if isinstance(trainer, dict) else ""
    own = name not in _names() and isinstance(common.get(name), dict)
    return common, common.pop(name) if own else {}


def _placed(
    values: dict[str, Any], launcher_env: LauncherEnv | None, given: frozenset[str]
) -> dict[str, Any]:
    """The settings with the place of this node; as torchrun or Slurm says, each process is a node with one rank."""
    if launcher_env is None:
        all_here = values["parts_per_node"] is None
        return {**values, "parts_per_node": values["num_partitions"]} if all_here else values
    for name in ("parts_per_node", "node_rank"):
        if name in given:
            raise InputError(
                f"{name}={values[name]}: {launcher_env.launcher} says who has which rank; leave it out"
            )
    if launcher_env.world_size != values["num_partitions"]:
        raise InputError(
            f"num_partitions={values['num_partitions']}: {launcher_env.launcher} started {launcher_env.world_size} "
            "process(es), and each has one partition; start as many as there are partitions"
        )
    address = {
        f"distributed.{name}": getattr(launcher_env, name)
        for name in ("master_addr", "master_port")
        if getattr(launcher_env, name) is not None and f"distributed.{name}" not in given
    }
    return {**values, "parts_per_node": 1, "node_rank": launcher_env.rank, **address}


def _unfit(config: DictConfig) -> str:
    """The first setting that does not fit the schema, for OmegaConf's errors that do not say which."""
    for name in (str(name) for name in config if name in _names()):
        try:
            given: Any = OmegaConf.to_container(OmegaConf.masked_copy(config, name))
            OmegaConf.merge(OmegaConf.structured(SCHEMA), as_lists(given))
        except OmegaConfBaseException:
            return name
    return "configuration"


def _names() -> list[str]:
    """Dotted names of all settings, and their groups."""
    return sorted(DEFINED.keys() | {key.split(".")[0] for key in DEFINED})


def refusal(error: Exception) -> str:
    """What Hydra says, on one line; for an unknown key the nearest name."""
    unknown = re.match(r"Could not override '([^']+)'", str(error))
    if unknown:
        return str(unknown_setting(unknown.group(1)))
    found = re.match(r"Could not append to config. An item is already at '([^']+)'", str(error))
    if found:
        return f"+{found.group(1)}: is a setting already; leave the + out"
    primary = re.match(r"Cannot find primary config '([^']+)'", str(error))
    if primary:
        names = sorted(file.stem for file in CONFIG_DIR.glob("*.yaml"))
        return f"--config-name={primary.group(1)}: no such configuration; choose one of {', '.join(names)}"
    text = str(error) if error.__cause__ is None else f"{error}: {error.__cause__}"
    return "; ".join(line.strip() for line in text.splitlines())


def unknown_setting(name: str) -> InputError:
    """The error for a setting that does not exist, with the nearest name that does."""
    group, _, option = name.partition(".")
    if option and (CONFIG_DIR / "trainer" / f"{group}.yaml").is_file():
        known = (
            ", ".join(flatten(defaults(OPTIONS["trainer", group])))
            if ("trainer", group) in OPTIONS
            else ""
        )
        return InputError(
            f"{name}: trainer={group} has to be set for it, and has {known or 'no settings'}"
        )
    for (owner, variant), options in OPTIONS.items():
        if name in flatten(defaults(options)):
            return InputError(
                f"{name}: only {owner}={variant} has it; leave it out, or choose that"
            )
    names = _names()
    group, _, option = name.rpartition(".")
    of_group = [
        each.removeprefix(f"{group}.")
        for each in names
        if each.rpartition(".")[0] == group and group
    ]
    elsewhere = [each for each in names if each.rpartition(".")[2] == option]
    if of_group and not elsewhere:
        nearest = [f"{group}.{each}" for each in difflib.get_close_matches(option, of_group, n=1)]
        hint = f"{group} has {', '.join(of_group)}"
    else:
        nearest = difflib.get_close_matches(
            name, elsewhere or names, n=1, cutoff=0.0 if elsewhere else 0.5
        )
        hint = "see docs/settings.md for all"
    if nearest:
        hint = f"did you mean {nearest[0]}?"
    return InputError(f"{name}: no such setting; {hint}")
