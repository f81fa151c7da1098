"""Cores by affinity and by the quota of the control group.

A command whose output nobody takes; a process that logs nothing for a while says what it does.
"""

import logging
import subprocess
import sys
from logging.handlers import QueueHandler
from pathlib import Path
from queue import SimpleQueue

import psutil
import pytest

from retexo.launch.channels import ChannelClosed, decode
from retexo.launch.cores import usable_cores
from retexo.launch.heartbeat import heartbeat_interval
from retexo.launch.ticker import Ticker

CORES = 16


@pytest.fixture(autouse=True)
def sixteen_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda _: list(range(CORES)))


OWN, CGROUP = "proc/self/cgroup", "sys/fs/cgroup"
TREES: dict[str, tuple[dict[str, str], int]] = {
    "no control groups": ({}, CORES),
    "no quota": ({OWN: "0::/a\n", f"{CGROUP}/a/cpu.max": "max 100000\n"}, CORES),
    "a quota": ({OWN: "0::/a\n", f"{CGROUP}/a/cpu.max": "400000 100000\n"}, 4),
    "of a container": ({OWN: "0::/\n", f"{CGROUP}/cpu.max": "250000 100000\n"}, 2),
    "below one core": ({OWN: "0::/a\n", f"{CGROUP}/a/cpu.max": "50000 100000\n"}, 1),
    "more than there are": ({OWN: "0::/a\n", f"{CGROUP}/a/cpu.max": "9900000 100000\n"}, CORES),
    "of a group above": (
        {
            OWN: "0::/a/b/c\n",
            f"{CGROUP}/a/cpu.max": "300000 100000\n",
            f"{CGROUP}/a/b/cpu.max": "500000 100000\n",
        },
        3,
    ),
    "not visible": ({OWN: "0::/../../far/away\n", f"{CGROUP}/cpu.max": "200000 100000\n"}, 2),
    "version 1": (
        {
            OWN: "5:memory:/a\n4:cpu,cpuacct:/job\n",
            f"{CGROUP}/cpu,cpuacct/job/cpu.cfs_quota_us": "600000\n",
            f"{CGROUP}/cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
        },
        6,
    ),
    "version 1 without a quota": (
        {
            OWN: "4:cpu,cpuacct:/\n",
            f"{CGROUP}/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
            f"{CGROUP}/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        },
        CORES,
    ),
    "nonsense": ({OWN: "what\n0::/a\n", f"{CGROUP}/a/cpu.max": "0 0\n"}, CORES),
}


@pytest.mark.parametrize("name", TREES)
def test_cores(tmp_path: Path, name: str) -> None:
    files, cores = TREES[name]
    for file, text in files.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    assert usable_cores(tmp_path) == cores


SCRIPT = """
import sys
from pathlib import Path
from retexo.launch.standard_streams import keep_standard_streams

keep_standard_streams()
with open("results", "w") as file:
    for number in range(9999):
        print("a line", number, flush=True)
        print("an error", file=sys.stderr)
    file.write("done")
"""


@pytest.mark.parametrize("streams", [">&-", "2>&-", "<&- >&- 2>&-", "| head -1", "2>&1 | head -1"])
def test_what_is_written_to_a_closed_stream_is_dropped(streams: str, tmp_path: Path) -> None:
    command = f'"$0" -c "$1" {streams}; exit ${{PIPESTATUS[0]}}'
    ended = subprocess.run(
        ["bash", "-c", command, sys.executable, SCRIPT],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stdout + ended.stderr
    assert (tmp_path / "results").read_text() == "done"


def test_a_line_comes_by_the_clock_and_says_what_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    ticker, lines = Ticker(), SimpleQueue[logging.LogRecord]()
    logging.getLogger().addHandler(handler := QueueHandler(lines))

    def wait_for(end: str) -> None:
        while not lines.get(timeout=30).getMessage().endswith(end):
            pass

    try:
        with ticker.running(interval=0.01):
            logging.getLogger("retexo.apps").info("loading %s", "cora")
            wait_for(" s so far; loading cora")
            ticker.doing = "workers: round"
            wait_for(" s so far; workers: round")
    finally:
        logging.getLogger().removeHandler(handler)
    assert ticker not in logging.getLogger().handlers


@pytest.mark.parametrize(("timeout", "interval"), [(60.0, 1.0), (2.5, 0.5)])
def test_heartbeats_are_a_fifth_of_the_timeout_apart(timeout: float, interval: float) -> None:
    assert heartbeat_interval(timeout) == interval


@pytest.mark.parametrize("line", [b"[1]", b"1", b"null", b"{", b'{"a": "\\ud800"}', b"\xff"])
def test_a_message_is_a_json_object(line: bytes) -> None:
    with pytest.raises(ChannelClosed, match="not a message of retexo"):
        decode(line)
