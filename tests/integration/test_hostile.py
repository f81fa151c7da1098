"""The inputs of tests/hostile: what they damage takes half a minute to make."""

import subprocess
import sys

import pytest
from support import ROOT, need_dgl


@pytest.mark.timeout(7200)
@pytest.mark.long("1,750 inputs; the unit tests damage each kind of file by hand")
def test_hostile_inputs_do_no_harm() -> None:
    """Seconds of limits are for machines where other work has the cores."""
    need_dgl()
    command = [sys.executable, str(ROOT / "tests" / "hostile"), "--count=1750", "--limit=600"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
