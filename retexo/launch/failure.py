"""Failures of a run, which of several is the cause, and which ones a restart may cure."""

from dataclasses import dataclass
from typing import Any

from retexo.launch.channels import make_printable

KINDS = ("ended", "death", "lost", "input", "disk", "failure", "error", "stopped", "peer")
"""Kinds of failures. One that comes first here is the cause of those after it. ended: a node
received a signal; lost: a node is gone; peer: a collective lost a peer."""
ROOT_CAUSES = ("death", "lost")
"""Kinds that no other failure causes."""
CURABLE = ("death", "lost", "peer")
"""Kinds that may not happen again after a restart."""


@dataclass(frozen=True)
class Failure:
    """A reason why a run ends."""

    kind: str
    rank: int
    """-1: a whole node."""
    message: str
    """The line that is shown: which process, what happened, in which phase."""
    traceback: str = ""
    public_message: str = ""
    """What other nodes show instead, where the message describes this node's data; empty: the same.
    """

    def for_others(self) -> "Failure":
        """Return the failure as other nodes may see it: no traceback, and the public message."""
        return Failure(self.kind, self.rank, self.public_message or self.message)


def read_failure(content: Any) -> Failure:
    """Parse the failure that another node sent; one of kind error if it cannot be parsed."""
    if (
        not isinstance(content, dict)
        or content.get("kind") not in KINDS
        or not isinstance(content.get("rank"), int)
    ):
        return Failure("error", -1, "another node failed and sent no reason")
    return Failure(content["kind"], content["rank"], make_printable(content.get("message")))
