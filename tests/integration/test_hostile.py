"""A sample of the inputs of tests/hostile; --all tries all of them."""

import subprocess
import sys

import pytest
from support import ROOT, need_dgl


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("count", [12, pytest.param(1750, marks=pytest.mark.long("all of them"))])
def test_hostile_inputs_do_no_harm(count: int) -> None:
    """Seconds of limits are for machines where other work has the cores."""
    need_dgl()
    command = [sys.executable, str(ROOT / "tests" / "hostile"), f"--count={count}", "--limit=600"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
