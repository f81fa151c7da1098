"""A command whose output nobody takes does its work, and says so by its exit status."""

import subprocess
import sys
from pathlib import Path

import pytest

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
