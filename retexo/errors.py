"""Errors of a running program. Unusable input raises partitioning.errors.InputError instead."""


class TrainingError(RuntimeError):
    """Training cannot go on; the message names the rank or setting and the remedy. Exit status
    1.
    """


class Interrupted(TrainingError):
    """A process died or a connection broke; a restart may cure it."""


class Stopped(RuntimeError):
    """A worker received a signal to end, and all workers have saved their state."""
