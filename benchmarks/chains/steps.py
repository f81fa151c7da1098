"""What a chain of same_results.py consists of: commands, commands that run together, functions."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Run:
    """One command line; its files go to the folder `name`, if that is not "".

    `{port}` in an argument is a free port, the same one wherever a chain says it.
    """

    name: str
    arguments: tuple[str, ...]
    status: int = 0


@dataclass(frozen=True)
class Together:
    """Commands that run at the same time, such as the nodes of one training."""

    runs: tuple[Run, ...]


@dataclass(frozen=True)
class Call:
    """A function of functions.py; it writes its files where it likes in the chain's folder."""

    name: str
    function: Callable[..., None]
    with_port: bool = False
    """Whether the function takes the port as its argument."""


Step = Run | Together | Call


@dataclass(frozen=True)
class Chain:
    name: str
    make_input: Callable[[], None]
    """Writes the graph into the folder input/."""
    steps: tuple[Step, ...]
    weight: float = 1.0
    """About how long it takes; long ones start first."""
    varies: tuple[str, ...] = ()
    """Values that differ between runs of one commit: only names and shapes are compared."""
    seconds: float = 400.0
    """Time limit."""
