"""Rounds of one stage: the loop, its message, agreement on a step, convergence, recovery; loss and metrics."""
