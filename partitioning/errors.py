"""The exception for input of users that cannot be used."""


class InputError(ValueError):
    """A setting, file or directory of the user's cannot be used; the message names it, its value
    and the remedy.

    The command prints the message without a traceback and exits with status 2.
    """
