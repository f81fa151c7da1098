"""Why a run cannot go on, and which of several reasons is the cause."""

from dataclasses import dataclass
from typing import Any

from retexo.launch.control_channel import printable

KINDS = ("ended", "death", "lost", "input", "disk", "failure", "error", "stopped", "peer")
"""Kinds of failures; an earlier one is the cause of a later one. ended: a signal told a node to end."""
ROOT_CAUSES = ("death", "lost")
"""Kinds that no other failure causes."""


@dataclass(frozen=True)
class Failure:
    """Why the run cannot go on."""

    kind: str
    rank: int
    """-1: a whole node."""
    message: str
    """The line that is shown: who, in which phase, and what."""
    traceback: str = ""
    public_message: str = ""
    """What the other nodes show instead, where the message tells of this node's own data; empty: the same."""

    def for_others(self) -> "Failure":
        return Failure(self.kind, self.rank, self.public_message or self.message)


def read_failure(content: Any) -> Failure:
    """The failure that another node sent, without its traceback; one of kind error if it cannot be read."""
    if (
        not isinstance(content, dict)
        or content.get("kind") not in KINDS
        or not isinstance(content.get("rank"), int)
    ):
        return Failure("error", -1, "another node failed, and did not say how")
    return Failure(content["kind"], content["rank"], printable(content.get("message")))
