"""One-line messages for errors of Hydra, OmegaConf and the operating system."""

import difflib
import errno
import re
import shlex
from collections.abc import Callable, Sequence
from typing import Any

from hydra.errors import HydraException, OverrideParseException
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from partitioning.errors import InputError
from partitioning.setting_fields import TOO_LARGE, did_you_mean
from retexo.settings.aliases import ALIASES, MEANT
from retexo.settings.options import MODELS
from retexo.settings.schema import CHOSEN_GROUPS, CONFIG_DIR, DEFINED
from retexo.settings.table import describe_values

REFUSALS = (InputError, HydraException, OmegaConfBaseException)
"""Errors about settings."""
WRONG_PATH = (
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


def is_wrong_path(error: Exception) -> bool:
    """Return whether a path of the user cannot be used, as opposed to a full or failing disk."""
    return isinstance(error, OSError) and error.errno in WRONG_PATH


def explain(error: Exception) -> str:
    """Return the message of an error on one line; of the system's, with its file and a remedy."""
    if isinstance(error, OSError) and error.filename:
        remedy = "; set another path" if is_wrong_path(error) else ""
        return f"{error.filename}: {error.strerror}{remedy}"
    if isinstance(error, MemoryError):
        return f"not enough memory: {error}"
    # InputError and TrainingError are ValueError and RuntimeError; some of OmegaConf's are, too.
    if isinstance(error, ValueError | RuntimeError) and not isinstance(
        error, OmegaConfBaseException
    ):
        return _on_one_line(str(error))
    return refusal(error)


def explain_command(error: Exception, arguments: Sequence[str]) -> str:
    """Return the message of an error that a command line caused, on one line.

    Where Hydra's message names none of the command's arguments, they are added.
    """
    text = explain(error)
    own = [argument for argument in arguments if not argument.startswith("hydra.job.config.")]
    is_named = any(argument.partition("=")[0].lstrip("+~") in text for argument in own)
    is_clear = is_named or not own or isinstance(error, InputError)
    return text if is_clear else f"{text} (in {' '.join(own)})"


def refusal(error: Exception) -> str:
    """Return the message of an error of Hydra, with the remedy: nearest name, or how to quote."""
    text = str(error).strip() or f"{type(error).__name__} without a message, in a configuration"
    if isinstance(error, OverrideParseException):
        return _unreadable(error.override, text)
    for pattern, describe in HYDRA_MESSAGES.items():
        said = re.search(pattern, text, re.MULTILINE | re.DOTALL)
        if said:
            return _on_one_line(describe(*said.groups()))
    cause: Any = error if isinstance(error, OmegaConfBaseException) else error.__context__
    merged = re.match(r"Error merging override [+~]*([\w.]+)=?(.*)", text)
    overridden = re.match(r"Could not override '([^']+)'", text)
    named = re.search(r"full_key: (\S+)", text) or overridden
    key = str(getattr(cause, "full_key", None) or (named[1] if named else ""))
    if merged and merged[1] in MEANT:
        return unknown_setting(merged[1])
    if overridden or isinstance(cause, ConfigKeyError | ConfigAttributeError):
        return unknown_setting(key)
    of_group = [name for name in DEFINED if name.startswith(f"{key}.")]
    if of_group and merged:
        return f"{key}={merged[2]}: is a group of settings; write {of_group[0]}=VALUE"
    if key in DEFINED:
        return _wrong_value(key, str(getattr(cause, "msg", None) or text).splitlines()[0], merged)
    return _on_one_line(text if error.__cause__ is None else f"{text}: {error.__cause__}")


def _wrong_value(key: str, why: str, merged: re.Match[str] | None) -> str:
    """Return the message for a value of another type; merged: name and value of an override."""
    if why.startswith("int too large"):
        return f"{key}: {TOO_LARGE}"
    defined = DEFINED[key]
    values = f"it takes {describe_values(defined).replace('`', '')}"
    if merged and "to string" in why:  # of a list or a mapping
        values += f", as text {quoted(merged[1], merged[2])}"
    return f"{key}: {why}; {defined.help if isinstance(defined.default, dict) else values}"


def _on_one_line(text: str) -> str:
    """Join the lines of a text by semicolons."""
    return "; ".join(line.strip() for line in text.splitlines())


def _unreadable(override: str, reason: str) -> str:
    """Return the message for an argument that Hydra cannot parse; reason: Hydra's own message."""
    name, equals, value = override.partition("=")
    if not equals or not re.match(r"[+~]*[A-Za-z_]", name):
        is_known = override in DEFINED or override in CHOSEN_GROUPS
        remedy = f"write {override}=VALUE" if is_known else "not a setting; write NAME=VALUE"
        return f"{override}: {remedy}"
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


def _value_of_group(class_name: str, value: str) -> str:
    """Return the message for a file that gives a value to a group of settings."""
    group, _, option = FIRST_OF[class_name].rpartition(".")
    remedy = f"write {group}: {{{option}: {value}}}"
    if group in CHOSEN_GROUPS:  # a choice sets more than one of its settings
        remedy = f"choose it in the defaults list: - override {group}: {value}"
    return f"{group}={value}: is a group of settings; {remedy}"


def _no_choice(name: str, value: str, kind: str, choices: Sequence[str]) -> str:
    """Return the message for a file of conf/ that is not there; kind: what it would be."""
    hint = did_you_mean(value, choices)
    return f"{name}={value}: no such {kind}; {hint}choose one of {', '.join(choices)}"


FIRST_OF = {defined.owner.__name__: key for key, defined in reversed(DEFINED.items())}
"""Class of a group -> its first setting."""
HYDRA_MESSAGES: dict[str, Callable[..., str]] = {
    rf"is not a subclass of ({'|'.join(FIRST_OF)})\. value: ([^\n]*)": _value_of_group,
    r"\AAmbiguous value for argument '([^\n]*)'$": _several_values,
    r"Could not append to config. An item is already at '([^']+)'": (
        lambda name: f"+{name}: exists already; leave the + out"
    ),
    r"\ACannot find primary config '([^']+)'": lambda name: _no_choice(
        "--config-name",
        name,
        "configuration",
        sorted(file.stem for file in CONFIG_DIR.glob("*.yaml")),
    ),
    r"Could not find '(?!hydra/)(\w+)/([^']*)'.*?((?:^\t[\w-]+\n?)+)": lambda group, name, listed: (
        _no_choice(group, name, "choice", listed.split())
    ),
    r"Could not find 'hydra/(sweeper|launcher)/(\w+)'": lambda kind, name: (
        f"hydra/{kind}={name}: not installed; of the sweepers and launchers, optuna, joblib and"
        " submitit_local come with pip install -e '.[sweeps]' -c constraints.txt"
    ),
}
"""Pattern of a message of Hydra -> the message for the user, from its groups."""


def quoted(name: str, value: str) -> str:
    """Return a setting with text as its value, quoted for Hydra and a shell."""
    escaped = re.sub(r'(\\*)("|$)', lambda end: 2 * end[1] + end[2].replace('"', '\\"'), value)
    escaped = escaped.replace("${", "\\${")
    return shlex.quote(f'{name}="{escaped}"')


def unknown_setting(name: str) -> str:
    """Return the message for an unknown setting, with the nearest known name."""
    group, _, option = name.rpartition(".")
    of_models = [model for model, cls in MODELS.items() if hasattr(cls(), option)]
    if group == "model" and 0 < len(of_models) < len(MODELS):
        return f"{name}: only model={' and '.join(of_models)} has it; leave it out, or choose that"
    return f"{name}: no such setting; {MEANT.get(name) or _hint(group, option, name)}"


def _hint(group: str, option: str, name: str) -> str:
    """Return the nearest known name, or all of the group, or the page of settings, as the remedy.

    Args:
        group: Before the dot.
        option: After it.
        name: The unknown name.
    """
    names = sorted(DEFINED.keys() | {key.split(".")[0] for key in DEFINED})  # and groups
    of_group = [known for known in names if known.startswith(f"{group}.")]
    elsewhere = [known for known in names if known.rpartition(".")[2] == option]
    meant = [ALIASES[name]] if name in ALIASES else elsewhere
    nearest = difflib.get_close_matches(name, meant, n=1, cutoff=0.0) or difflib.get_close_matches(
        name, of_group or names, n=1, cutoff=0.9 if of_group else 0.5
    )
    if nearest:
        return f"did you mean {nearest[0]}?"
    options = ", ".join(known.removeprefix(f"{group}.") for known in of_group)
    return f"{group} has {options}" if of_group else "see docs/settings.md for all"
