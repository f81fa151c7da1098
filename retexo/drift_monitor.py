"""Whether new nodes are like those that a model was trained on (partitioning/features/drift.py)."""

import logging
import threading

from partitioning.graph_addition import Addition

logger = logging.getLogger(__name__)


class DriftMonitor:
    """Counts new nodes that are unlike the training nodes, over about the last WINDOW ones."""

    WINDOW, LEAST = 1000, 20

    def __init__(self, limit: float) -> None:
        """Count from zero; limit: share of unusual nodes from which on a column is named."""
        self.limit, self.num_nodes = limit, 0.0
        self._counts: dict[str, float] = {}
        self._named: set[str] = set()
        self._lock = threading.Lock()

    def add(self, added: Addition) -> None:
        """Count new nodes, and log columns that have passed the limit."""
        with self._lock:
            self.num_nodes += added.num_nodes
            for name, count in added.unusual.items():
                self._counts[name] = self._counts.get(name, 0.0) + count
            if self.num_nodes > 2 * self.WINDOW:  # forget half
                self.num_nodes /= 2
                self._counts = {name: count / 2 for name, count in self._counts.items()}
            passed = self._find_drifted()
            for name in passed.keys() - self._named:
                logger.warning("%s", self._describe(name, passed[name]))
            self._named = set(passed)

    def shares(self) -> dict[str, float]:
        """Return the share of unusual nodes by column."""
        with self._lock:
            return {name: count / self.num_nodes for name, count in self._counts.items()}

    def warnings(self) -> list[str]:
        """A sentence for each column beyond the limit."""
        with self._lock:
            return [self._describe(*each) for each in self._find_drifted().items()]

    def _find_drifted(self) -> dict[str, float]:
        """Return the columns whose share of unusual nodes exceeds the limit; none before LEAST
        nodes.
        """
        if self.num_nodes < self.LEAST:
            return {}
        shares = {name: count / self.num_nodes for name, count in self._counts.items()}
        return {name: share for name, share in shares.items() if share > self.limit}

    def _describe(self, name: str, share: float) -> str:
        """Return the warning for a column and its share of unusual nodes."""
        return (
            f"column `{name}`: {share:.0%} of the last {self.num_nodes:.0f} new nodes have an"
            " unknown category or a number far from those of training; train again on newer data"
        )
