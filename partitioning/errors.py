"""Exception for input of users that cannot be used, and what it quotes of other errors."""

import importlib
from collections.abc import Iterable
from typing import Any


class InputError(ValueError):
    """A setting, file or directory of the user's cannot be used.

    The message names it, its value and the remedy.

    The command prints the message without a traceback and exits with status 2. The middle of a
    long message is left out: it may quote any value of a file.
    """

    def __init__(self, message: str = "") -> None:
        if len(message) > MAX_MESSAGE:
            message = f"{message[: MAX_MESSAGE // 2]} ... {message[-MAX_MESSAGE // 2 :]}"
        super().__init__(message)


MAX_MESSAGE = 2_000
"""Letters of a message."""
MAX_NAMES, MAX_LETTERS = 10, 60
"""Names in a message, and letters of each: a file of others can have any number."""


def require_packages(use: str, extra: str, *packages: str) -> None:
    """Import packages of an extra; InputError that begins with `use` where that fails."""
    for name in packages:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise InputError(
                f"{use}: needs {name} ({error}): pip install -e '.[{extra}]' -c constraints.txt"
            ) from error


def join_names(names: Iterable[Any], quote: str = "") -> str:
    """Join the first MAX_NAMES names by commas, and state how many more there are.

    Each is cut to MAX_LETTERS, and within `quote`. Without names the text is empty.
    """
    all_names = list(names)
    texts = [
        text if len(text := str(name)) <= MAX_LETTERS else f"{text[:MAX_LETTERS]}..."
        for name in all_names[:MAX_NAMES]
    ]
    more = f" and {len(all_names) - MAX_NAMES:,} more" if len(all_names) > MAX_NAMES else ""
    return ", ".join(f"{quote}{name}{quote}" for name in texts) + more


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or the name of its class if it has none."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
