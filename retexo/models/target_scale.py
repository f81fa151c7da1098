"""The units in which a regression is trained: the mean and the deviation of each target."""

import math
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
    def unscaled(cls, num_targets: int) -> Self:
        """Return the scale that leaves targets as they are: mean 0, deviation 1."""
        return cls((0.0,) * num_targets, (1.0,) * num_targets)

    @classmethod
    def from_json(cls, content: dict[str, Any], num_targets: int) -> Self:
        """Return the inverse of asdict; KeyError, TypeError or ValueError if it is none."""
        scale = cls(*(tuple(map(float, content[name])) for name in ("mean", "deviation")))
        values = [*scale.mean, *scale.deviation]
        if len(scale.mean) != num_targets or len(scale.deviation) != num_targets:
            raise ValueError(f"targets {content}, the network has {num_targets}")
        if not all(map(math.isfinite, values)) or min(scale.deviation) <= 0:
            raise ValueError(f"targets {content}")
        return scale
