"""Learning-rate schedules: by what factor a layer's learning rate is multiplied in each round.

    cosine      (1 + cos(pi t / T)) / 2 in round t of at most T (Loshchilov and Hutter, "SGDR", ICLR
                2017, without restarts)
    step        2^-floor(t / S)
    plateau     2^-k, where k counts how often S rounds brought no improvement

with S = NUM_ROUNDS. Early stopping says what an improvement is, so a schedule needs no message, and
all workers take the same steps.
"""

import math

from retexo.settings.run_settings import OptimizerSettings

NUM_ROUNDS = {"step": 50, "plateau": 5}
"""S: a fourth of the default num_rounds for a step; for a plateau a fourth of stopping.patience."""


class Schedule:
    """Factor of the learning rate in the rounds of one layer."""

    def __init__(self, settings: OptimizerSettings, num_rounds: int) -> None:
        """Begin with the first of at most `num_rounds` rounds, T."""
        self.name, self.limit = settings.scheduler, num_rounds
        self.num_cuts, self.last_cut = 0, 0
        """For plateau: k, and the round in which k changed last."""

    def rate_factor(self, number: int, last_improvement: int) -> float:
        """Return the factor of round `number`; call it once per round, in order.

        last_improvement: the last round before this one whose metric or loss improved.
        """
        if self.name == "cosine":
            return (1 + math.cos(math.pi * number / max(1, self.limit))) / 2
        if self.name == "step":
            return 0.5 ** (number // NUM_ROUNDS["step"])
        if self.name == "plateau":
            if number - max(last_improvement, self.last_cut) > NUM_ROUNDS["plateau"]:
                self.num_cuts, self.last_cut = self.num_cuts + 1, number
            return 0.5**self.num_cuts
        return 1.0

    def state_dict(self) -> dict[str, int]:
        """Return the fields that rounds change."""
        return {"num_cuts": self.num_cuts, "last_cut": self.last_cut}

    def load_state_dict(self, saved: dict[str, int]) -> None:
        """Load `state_dict`; KeyError or TypeError if it is none."""
        self.num_cuts, self.last_cut = (int(saved[name]) for name in ("num_cuts", "last_cut"))
