"""Why a run cannot go on, and which of several reasons is the cause."""

from dataclasses import dataclass
from typing import Any

KINDS = ("ended", "death", "lost", "input", "disk", "failure", "error", "stopped", "peer")
"""Kinds of failures; an earlier one is the cause of a later one. ended: a node was told to end, by a signal."""
CERTAIN = ("death", "lost")
"""Kinds that nothing else is the cause of."""


@dataclass(frozen=True)
class Failure:
    """Why the run cannot go on."""

    kind: str
    rank: int
    """-1: a whole node."""
    message: str
    """The line that is shown: who, in which phase, and what."""
    traceback: str = ""

    told: str = ""
    """What other nodes are told instead, of what is wrong with this node's own data; empty: the same."""

    def for_others(self) -> "Failure":
        return Failure(self.kind, self.rank, self.told or self.message)


def read_failure(content: Any) -> Failure:
    """As another node sent it; the traceback stays there."""
    if not isinstance(content, dict) or content.get("kind") not in KINDS or not isinstance(content.get("rank"), int):
        return Failure("error", -1, "another node failed, and did not say how")
    return Failure(content["kind"], content["rank"], str(content.get("message")))
