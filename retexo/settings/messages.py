"""One-line messages for errors of Hydra, OmegaConf and the operating system."""

import difflib
import errno
import re
import shlex
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from hydra.errors import HydraException, OverrideParseException
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from partitioning.errors import InputError
from partitioning.setting_fields import TOO_LARGE, Setting
from retexo.settings.aliases import ALIASES, MEANT
from retexo.settings.options import MODELS
from retexo.settings.schema import CONFIG_DIR, DEFINED
from retexo.settings.table import describe_values

REFUSALS = (InputError, HydraException, OmegaConfBaseException)
"""Errors about settings."""


def is_wrong_path(error: Exception) -> bool:
    """Return whether a path of the user cannot be used, as opposed to a full or failing disk."""
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
        errno.ENXIO,  # a FIFO, a socket, a device
    )
    return isinstance(error, OSError) and error.errno in wrong


def explain(error: Exception) -> str:
    """Return the message of an error on one line."""
    if isinstance(error, OSError) and is_wrong_path(error):
        return (
            f"{error.filename}: {error.strerror}; set another path"
            if error.filename
            else str(error)
        )
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, MemoryError):
        return f"not enough memory: {error}"
    # InputError and TrainingError are ValueError and RuntimeError; some of Hydra's are, too.
    if isinstance(error, ValueError | RuntimeError):
        return _on_one_line(str(error))
    return refusal(error)


def explain_command(error: Exception, arguments: Sequence[str]) -> str:
    """Return the message of an error that a command line caused, on one line.

    Where Hydra's message names none of the command's arguments, they are added.
    """
    text = explain(error)
    names = [argument.partition("=")[0].lstrip("+~") for argument in arguments]
    if isinstance(error, InputError) or any(name in text for name in names):
        return text
    return f"{text} (in {' '.join(arguments)})"


def refusal(error: Exception) -> str:
    """Return the message of an error of Hydra, with the remedy: nearest name, or how to quote."""
    text = str(error).strip() or f"{type(error).__name__} without a message, in a configuration"
    if isinstance(error, OverrideParseException):
        return _unreadable(error.override, text)
    several = re.match(r"Ambiguous value for argument '(.*)'$", text.splitlines()[0])
    if several:
        return _several_values(several.group(1))
    merged = re.match(r"Error merging override [+~]*([\w.]+)=?(.*)", text)
    if merged and merged[1] in MEANT:
        return str(unknown_setting(merged[1]))
    cause: Any = error if isinstance(error, OmegaConfBaseException) else error.__context__
    found = re.search(r"full_key: (\S+)", text)
    key = str(getattr(cause, "full_key", None) or (found[1] if found else ""))
    unknown = re.match(r"Could not override '([^']+)'", text)
    if unknown or isinstance(cause, ConfigKeyError | ConfigAttributeError):
        return str(unknown_setting(key or (unknown.group(1) if unknown else "")))
    if key in DEFINED:
        why = str(getattr(cause, "msg", None) or text).splitlines()[0]
        if why.startswith("int too large"):
            return f"{key}: {TOO_LARGE}"
        reason = f"{key}: {why}; {_remedy(DEFINED[key])}"
        if merged and "to string" in reason:  # of a list or a mapping
            return f"{reason}, as text {quoted(merged[1], merged[2])}"
        return reason
    found = re.match(r"Could not append to config. An item is already at '([^']+)'", text)
    if found:
        return f"+{found.group(1)}: exists already; leave the + out"
    primary = re.match(r"Cannot find primary config '([^']+)'", text)
    if primary:
        names = sorted(file.stem for file in CONFIG_DIR.glob("*.yaml"))
        return (
            f"--config-name={primary.group(1)}: no such configuration; choose one of"
            f" {', '.join(names)}"
        )
    missing = re.search(r"Could not find '(?!hydra/)(\w+)/([^']*)'", text)
    if missing and (choices := re.findall(r"^\t([\w-]+)$", text, re.MULTILINE)):
        return f"{missing[1]}={missing[2]}: no such choice; choose one of {', '.join(choices)}"
    plugin = re.search(r"Could not find 'hydra/(sweeper|launcher)/(\w+)'", text)
    if plugin:
        return (
            f"hydra/{plugin[1]}={plugin[2]}: not installed; of the sweepers and launchers, optuna,"
            " joblib and submitit_local come with pip install -e '.[sweeps]' -c constraints.txt"
        )
    return _on_one_line(text if error.__cause__ is None else f"{text}: {error.__cause__}")


def _remedy(defined: Setting) -> str:
    """Return what a setting takes."""
    if isinstance(defined.default, dict):
        return defined.help
    return f"it takes {describe_values(defined).replace('`', '')}"


def _on_one_line(text: str) -> str:
    """Join the lines of a text by semicolons."""
    return "; ".join(line.strip() for line in text.splitlines())


def _unreadable(override: str, reason: str) -> str:
    """Return the message for an argument that Hydra cannot parse; reason: Hydra's own message."""
    name, equals, value = override.partition("=")
    if not equals or not re.match(r"[+~]*[A-Za-z_]", name):
        return f"{override}: not a setting; write NAME=VALUE"
    first = reason.splitlines()[0]
    why = "a character that has to be quoted" if first.startswith("LexerNo") else first
    return f"{override}: {why}; if the value is text, such as a path, write {quoted(name, value)}"


def _several_values(override: str) -> str:
    """Return the message for NAME=A,B without --multirun."""
    name, _, value = override.partition("=")
    return (
        f"{override}: several values; write text with a comma as {quoted(name, value)}, "
        f"a list as {name}=[{value}], or add --multirun for one run per value"
    )


def quoted(name: str, value: str) -> str:
    """Return a setting with text as its value, quoted for Hydra and a shell."""
    escaped = re.sub(r'(\\*)("|$)', lambda end: 2 * end[1] + end[2].replace('"', '\\"'), value)
    escaped = escaped.replace("${", "\\${")
    return shlex.quote(f'{name}="{escaped}"')


def unknown_setting(name: str) -> InputError:
    """Return the error for an unknown setting, with the nearest known name."""
    group, _, option = name.partition(".")
    if name in MEANT:
        return InputError(f"{name}: no such setting; {MEANT[name]}")
    of_models = [model for model, cls in MODELS.items() if option in {f.name for f in fields(cls)}]
    if group == "model" and of_models:
        return InputError(
            f"{name}: only model={' and '.join(of_models)} has it; leave it out, or choose that"
        )
    names = sorted(DEFINED.keys() | {key.split(".")[0] for key in DEFINED})  # and groups
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
    nearest = [ALIASES[name]] if name in ALIASES else nearest
    if nearest:
        hint = f"did you mean {nearest[0]}?"
    return InputError(f"{name}: no such setting; {hint}")
