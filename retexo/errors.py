"""Errors of a running program. Unusable input raises partitioning.errors.InputError instead."""

from partitioning.errors import InputError


class TrainingError(RuntimeError):
    """Training cannot go on: exit status 1; the message names rank or setting, and the remedy."""


class Interrupted(TrainingError):
    """A process died or a connection broke; a restart may cure it."""


class Stopped(RuntimeError):
    """A worker received a signal to end, and all workers have saved their state."""


def describe_error(error: BaseException) -> str:
    """Return the message of an error and its notes, joined by "; ".

    Its class comes first, unless it is an InputError or a TrainingError.
    """
    kind, text = type(error).__name__, str(error)
    if not isinstance(error, InputError | TrainingError):
        text = f"{kind}: {text}" if text else kind
    return "; ".join([text or kind, *getattr(error, "__notes__", [])])
