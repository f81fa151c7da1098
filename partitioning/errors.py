"""The exception for input of users that cannot be used, and what it quotes of other errors."""


class InputError(ValueError):
    """A setting, file or directory of the user's cannot be used.

    The message names it, its value and the remedy.

    The command prints the message without a traceback and exits with status 2.
    """


def first_line(error: Exception) -> str:
    """The first line of an error's message, or the name of its class if it has none."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
