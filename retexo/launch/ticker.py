"""Logs a line every few seconds, whatever this process does or waits for."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

LINE_INTERVAL = 5.0
"""Seconds without a line after which one is logged."""
logger = logging.getLogger(__name__)


class Ticker(logging.Handler):
    """Remembers the last log line, or the text that a waiting loop sets as `doing`."""

    def __init__(self) -> None:
        super().__init__()
        self.doing, self._last = "", 0.0

    def emit(self, record: logging.LogRecord) -> None:
        """Remember the time of a log line and, unless this module wrote it, its text."""
        self._last = time.monotonic()
        if record.name != __name__:
            self.doing = record.getMessage()

    @contextmanager
    def running(self, interval: float = LINE_INTERVAL + 1) -> Iterator[None]:
        """Log the time so far and `doing` whenever nothing was logged for `interval` seconds.

        It follows the root logger, so that `doing` is the last line, unless that is set. The
        default is above LINE_INTERVAL, so that lines with more information come first.
        """
        ended, start = threading.Event(), time.monotonic()
        self._last = start

        def tick() -> None:
            while not ended.wait(interval / 10):
                if time.monotonic() - self._last >= interval:
                    logger.info(
                        "%.0f s so far%s",
                        time.monotonic() - start,
                        self.doing and f"; {self.doing}",
                    )

        root = logging.getLogger()
        root.addHandler(self)
        thread = threading.Thread(target=tick, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            root.removeHandler(self)


ticker = Ticker()
"""Ticker of this process."""
