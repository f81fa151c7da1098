"""What can go wrong once workers run; mistakes of the user's that show before are partitioning.errors.InputError."""


class TrainingError(RuntimeError):
    """Training cannot go on; the message names the rank or setting and the remedy. Exit status 1."""


class Stopped(RuntimeError):
    """A worker was told to end, and all of them have kept how far they came."""
