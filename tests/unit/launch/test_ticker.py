"""A process that logs nothing for a while says what it does."""

import logging
import threading

import pytest

from retexo.launch.ticker import Ticker


@pytest.mark.timeout(60)
def test_a_line_comes_by_the_clock_and_says_what_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    ticker, said = Ticker(), threading.Event()
    lines: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())
            if len(lines) == 4:
                said.set()

    logging.getLogger().addHandler(listener := Listener())
    try:
        with ticker.running(interval=0.01):
            logging.getLogger("retexo.apps").info("loading %s", "cora")
            assert said.wait(30)
            ticker.doing = "workers: round"
            said.clear()
            lines.clear()
            assert said.wait(30)
        number = len(lines)
    finally:
        logging.getLogger().removeHandler(listener)
    assert lines[-1].endswith(" s so far; workers: round")
    assert any(line.endswith("so far; loading cora") for line in caplog.messages)
    assert ticker not in logging.getLogger().handlers
    assert number == len(lines)


def test_no_line_comes_where_others_do(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with Ticker().running(interval=3600):
        logging.getLogger("retexo").info("round 1")
    assert caplog.messages == ["round 1"]
