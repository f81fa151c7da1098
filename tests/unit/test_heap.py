"""Freed memory is kept where that is asked for, and given back at the end; needs glibc, as DGL does."""

import subprocess
import sys

SCRIPT = """
import torch
from retexo.heap import freed_memory_kept
from retexo.worker import status_bytes

BLOCK = 1 << 26
def private():
    return status_bytes("RssAnon")
def use():
    torch.ones(BLOCK // 4)

use()
before = private()
with freed_memory_kept():
    use()
    assert private() - before > BLOCK // 2, (private(), before)
assert private() - before < BLOCK // 2, (private(), before)
use()
assert private() - before < BLOCK // 2, (private(), before)
"""


def test_freed_memory_is_kept_until_the_end() -> None:
    found = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == 0, found.stderr
