"""Checks of the files in --config-dir: they hold settings and cannot make Hydra call functions."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from partitioning.errors import InputError
from partitioning.file_io import is_unicode, open_regular

MAX_FILES = 10_000
MAX_BYTES = 200_000
MAX_VALUES = 5_000
"""Values of one file after YAML aliases (*name) are expanded, as OmegaConf does."""
MAX_DEPTH = 50
LETTERS = 1_000
"""A text counts as one value more for so many letters."""
WORD = re.compile(r"[^\s${}()\[\]:,.'\"\\]+")
"""A name, or a part of one, within ${group.name}, ${names[0]} or ${oc.select:name}."""
OF_HYDRA = re.compile(r"(run|sweep|mode|verbose|output_subdir|help|job\.(name|chdir)$)(\.|$)")
"""Settings of Hydra that a file may have, by dotted name."""
CALLING = re.compile(r"(sweeper|launcher|job_logging|hydra_logging)(\.|$)")
"""Settings of Hydra that name classes: some classes are allowed, interpolations are not."""
TARGET = re.compile(
    r"(hydra_plugins|hydra\._internal\.core_plugins|optuna\.(samplers|pruners))\.[\w.]+"
)
"""Allowed values of _target_: installed launchers and sweepers, and their parts."""
LOG_CLASSES = (
    "logging.StreamHandler",
    "logging.FileHandler",
    "logging.NullHandler",
    "logging.handlers.MemoryHandler",
    "logging.Formatter",
)
NOT_IN_LOGS = re.compile(r"\.(\(\)|\.|filename|target|queue|listener)(?=\.|$)")
"""Keys by which a log handler would call functions or write other files."""
STREAMS = ("ext://sys.stdout", "ext://sys.stderr")
CHOICE = re.compile(r"((override|optional) )*/?hydra/(sweeper|launcher|job_logging|hydra_logging)")
"""Groups of Hydra that the defaults list may choose."""


def check_config_dir(config_dir: str) -> None:
    """Raise InputError if the folder is missing, or a file is too large or names functions."""
    if not Path(config_dir).is_dir():
        raise InputError(
            f"--config-dir={config_dir}: no such folder; give one that has configuration files"
        )
    texts: dict[str, list[str]] = {}
    for file in _list_files(config_dir):
        if file.suffix in (".yaml", ".yml"):
            config = _read_checked(file, file.relative_to(config_dir))
            for name, value in _leaves(config, file.stem):
                if isinstance(value, str) and ("${" in value or len(value) > LETTERS):
                    for word in set(WORD.findall(name)):  # in any group: a file can be put there
                        texts.setdefault(word, []).append(value)
    sizes: dict[str, int] = {}
    for name in texts:
        if _expanded_size(name, texts, sizes, MAX_DEPTH) > MAX_VALUES:
            raise InputError(
                f"--config-dir={config_dir}: {name}: stands for more than {MAX_VALUES:,} values,"
                " those of its interpolations (${...}) included; shorten it"
            )


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the values within groups and lists with their dotted names, of a list the list's."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{name}.{key}")
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner, name)
    else:
        yield name, value


def _expanded_size(
    name: str, texts: Mapping[str, list[str]], sizes: dict[str, int], depth: int
) -> int:
    """Count the values that a name stands for once its interpolations are expanded.

    A name within itself counts once. The count ends at MAX_VALUES + 1, which also stands for names
    nested deeper than `depth`. Counts are stored in `sizes`.
    """
    if name in sizes:
        return sizes[name]
    if not depth:
        return MAX_VALUES + 1
    own = 1 + sum(len(text) // LETTERS for text in texts.get(name, ()))
    sizes[name] = min(own, MAX_VALUES + 1)
    words = [word for text in texts.get(name, ()) if "${" in text for word in WORD.findall(text)]
    inner = (_expanded_size(word, texts, sizes, depth - 1) for word in words if word in texts)
    sizes[name] = min(own + sum(inner), MAX_VALUES + 1)
    return sizes[name]


def _list_files(config_dir: str) -> Iterator[Path]:
    """Yield all files in a folder, through links, too.

    InputError for more than MAX_FILES entries.
    """
    number = 0
    for folder, folders, files in os.walk(config_dir, followlinks=True):
        number += len(folders) + len(files)
        if number > MAX_FILES:
            raise InputError(
                f"--config-dir={config_dir}: holds more than {MAX_FILES:,} files; give a folder"
                " that has configuration files alone"
            )
        yield from (Path(folder, name) for name in files)


def _read_checked(file: Path, relative: Path) -> Any:
    """Read a file; InputError if it is none, too large, or could make Hydra call functions."""
    if not file.is_file():
        raise InputError(f"{file}: is not a regular file; remove it from --config-dir")
    if any(part.startswith("hydra") for part in relative.parts):
        raise InputError(f"{file}: replaces configuration of Hydra itself; rename or remove it")
    with open_regular(file) as opened:
        content: bytes = opened.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise InputError(f"{file}: a configuration file may have {MAX_BYTES:,} bytes; split it")
    text = content.decode(errors="replace")
    if re.search(r"^\s*#\s*@\s*package\s.*hydra", text, re.MULTILINE):
        raise InputError(f"{file}: its package is Hydra's own configuration; choose another")
    config = _parse_yaml(file, content)
    if not isinstance(config, Mapping):
        return config
    for group in ("features", "labels"):
        value = config.get(group)
        if value is not None and not isinstance(value, Mapping):
            raise InputError(
                f"{file}: {group}: {value}: in a file write {group}: {{kind: {value}}}"
            )
    _check_defaults(file, config.get("defaults"))
    own = config.get("hydra", {})
    if not isinstance(own, Mapping):
        raise InputError(f"{file}: hydra={own}: must be a group of settings")
    for name, value in _leaves(own, "hydra"):
        _check_setting_of_hydra(file, name, value)
    return config


def _check_setting_of_hydra(file: Path, name: str, value: Any) -> None:
    """Raise InputError for a setting of Hydra, hydra.NAME, by which a file could run code."""
    own, key = name.removeprefix("hydra."), name.rpartition(".")[2]
    if own == "hydra" or OF_HYDRA.match(own):
        return
    if not CALLING.match(own):
        raise InputError(
            f"{file}: {name}: could run code; of Hydra's settings a file may have run, sweep, mode,"
            " verbose, output_subdir, help, sweeper, launcher, job_logging, hydra_logging, job.name"
            " and job.chdir; leave it out"
        )
    if NOT_IN_LOGS.search(own):
        raise InputError(f"{file}: {name}: is not allowed there; leave it out")
    if (
        "${" in str(value)
        or (key == "_target_" and not TARGET.fullmatch(str(value)))
        or (key == "class" and value not in LOG_CLASSES)
        or (str(value).startswith(("ext://", "cfg://")) and value not in STREAMS)
    ):
        raise InputError(
            f"{file}: {name}={value}: must be a launcher or sweeper of hydra_plugins, one of "
            f"{', '.join(LOG_CLASSES)}, or a plain value"
        )


def _parse_yaml(file: Path, content: bytes) -> Any:
    """Parse YAML.

    Raises InputError if it is none, or would have more than MAX_VALUES values once its aliases are
    expanded.
    """
    try:
        node = yaml.compose(content, yaml.SafeLoader)
        if node is not None and _count(node, {}, MAX_DEPTH) > MAX_VALUES:
            raise InputError(
                f"{file}: holds more than {MAX_VALUES:,} values, aliases (*name) included;"
                " shorten it"
            )
        return yaml.safe_load(content)
    except (yaml.YAMLError, ValueError, RecursionError, OverflowError) as error:
        if isinstance(error, InputError):
            raise
        reason = "; ".join(line.strip() for line in str(error).splitlines())
        raise InputError(f"{file}: cannot be read as YAML: {reason}") from None


def _count(node: yaml.Node, counted: dict[int, int], depth: int) -> int:
    """Count the values of a node with aliases expanded; a long text counts as several.

    Args:
        counted: Counts by id of the node, which it fills in.
        depth: Levels that are left.

    Raises:
        RecursionError: it is nested deeper than `depth`, or contains itself.
        ValueError: a text is no Unicode.
    """
    if id(node) not in counted:
        if not depth:
            raise RecursionError(f"nested more than {MAX_DEPTH} deep")
        children = [] if isinstance(node, yaml.ScalarNode) else node.value
        if isinstance(node, yaml.MappingNode):
            children = [part for pair in children for part in pair]
        if isinstance(node, yaml.ScalarNode) and not is_unicode(node.value):
            raise ValueError(f"{node.value[:60]!a} is no Unicode text")
        own = 1 + len(node.value) // LETTERS if isinstance(node, yaml.ScalarNode) else 1
        counted[id(node)] = own + sum(_count(child, counted, depth - 1) for child in children)
    return counted[id(node)]


def _check_defaults(file: Path, defaults: Any) -> None:
    """Raise InputError for an entry of a defaults list that is not allowed."""
    for entry in defaults if isinstance(defaults, list) else []:
        for choice in map(str, entry if isinstance(entry, Mapping) else [entry]):
            package = choice.partition("@")[2]
            if "${" in package or ("hydra" in choice and not CHOICE.fullmatch(choice)):
                raise InputError(
                    f"{file}: defaults: {choice}: a file may choose hydra/launcher and"
                    " hydra/sweeper only; leave it out"
                )
