"""The units in which a regression is trained: the mean and the deviation of each target."""

from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True)
class TargetScale:
    """T targets; a head's output is (target - mean) / deviation."""

    mean: tuple[float, ...]
    """[T] of the training nodes."""
    deviation: tuple[float, ...]
    """[T] standard deviation of the training nodes, above 0."""

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """Return the inverse of asdict."""
        return cls(*(tuple(content[name]) for name in ("mean", "deviation")))
