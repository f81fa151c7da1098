"""Preparation and checks of the command line before Hydra parses it."""

import argparse
import itertools
from collections.abc import Sequence
from typing import NoReturn

from partitioning.errors import InputError
from partitioning.files.file_io import is_unicode
from partitioning.setting_fields import refuse
from retexo.settings.aliases import rename_override
from retexo.settings.config_files import check_config_dir, check_of_hydra
from retexo.settings.schema import CHOSEN_GROUPS

MAX_CHARACTERS = 4_000
"""Length limit of an override: Hydra parses lists in quadratic time, here half a second."""
MAX_DEPTH = 20
"""Nesting limit of an override: Hydra's parser is recursive."""


class _Parser(argparse.ArgumentParser):
    """Parser of Hydra's options with a value; it leaves other arguments alone."""

    def __init__(self) -> None:
        super().__init__(add_help=False)
        for name, short in (("name", "-cn"), ("path", "-cp"), ("dir", "-cd")):
            self.add_argument(f"--config-{name}", short)
        self.add_argument("--cfg", "-c")
        self.add_argument("--package", "-p")
        self.add_argument("--info", "-i", nargs="?", const="all")
        self.add_argument("--experimental-rerun")

    def error(self, message: str) -> NoReturn:
        raise InputError(message)


def options_first(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with options first, as Hydra expects, and without aliases.

    Raises:
        InputError: An option or override is not allowed.
    """
    known, rest = _Parser().parse_known_args(arguments)
    refuse(
        (
            known.experimental_rerun is not None,
            "--experimental-rerun: not supported; give the whole command again",
        ),
        (
            known.config_path is not None,
            f"--config-path={known.config_path}: not supported; --config-dir=DIR adds a folder of"
            " your own files",
        ),
    )
    options = [
        f"--{name.replace('_', '-')}={value}"
        for name, value in vars(known).items()
        if value is not None
    ]
    flags = [argument for argument in rest if argument.startswith("-")]
    overrides = [argument for argument in rest if not argument.startswith("-")]
    return [*options, *flags, *prepare_overrides(overrides, known.config_dir)]


def check_unicode(arguments: Sequence[str]) -> None:
    """Raise InputError for arguments whose bytes are no UTF-8: no log could show them."""
    for argument in arguments:
        if not is_unicode(argument):
            raise InputError(
                f"{argument!a}: holds bytes that are no UTF-8; write it in UTF-8, and rename a file"
                " whose name it is"
            )


def prepare_overrides(overrides: Sequence[str], config_dir: str | None) -> list[str]:
    """Return overrides without aliases.

    InputError for one that is too long, and if they or the files of `config_dir` could make Hydra
    call a function.
    """
    if config_dir is not None:
        check_config_dir(config_dir)
    check_unicode(overrides)
    for override in overrides:
        name, _, value = override.partition("=")
        bare = name.lstrip("+~").strip()
        refuse(
            (
                len(override) > MAX_CHARACTERS,
                f"{name[:80]}: {len(override):,} characters, {MAX_CHARACTERS:,} at most; "
                "put long values into a file of --config-dir",
            ),
            (_depth(value) > MAX_DEPTH, f"{name}: nested more than {MAX_DEPTH} deep"),
            (not bare, f"{override}: not a setting; write NAME=VALUE"),
            (
                value.startswith("[") and bare in CHOSEN_GROUPS,
                f"{override}: takes one choice, not a list; choose one",
            ),
        )
        if "hydra" in bare:
            check_of_hydra(bare, value)
    return [rename_override(override) for override in overrides]


def _depth(value: str) -> int:
    """Return the deepest nesting of brackets."""
    steps = ((letter in "[{(") - (letter in ")}]") for letter in value)
    return max(itertools.accumulate(steps), default=0)
