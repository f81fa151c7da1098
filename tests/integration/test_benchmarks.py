"""Benchmarks that need a machine of another kind run here on a small graph."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EDGES, NODES = 2 * 61_859_140 // 612, 2_449_029 // 612
LAYERS = ((100, 256), (256, 47))


@pytest.mark.long("a benchmark, which is no part of the product")
def test_the_table_of_a_gpu() -> None:
    command = "benchmarks/gpu.py --nodes 4000 --device cpu --rounds 2 --workers 2 --methods exact"
    ended = subprocess.run(
        [sys.executable, *command.split()],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not ended.returncode, ended.stderr
    _, header, _, *lines = ended.stdout.splitlines()
    names = header.split("|")
    floor, pyg, trained = (dict(zip(names, line.split("|"), strict=True)) for line in lines)
    assert pyg["training, s"] or "PyG: " in pyg["run"]  # PyG is not a dependency
    assert trained["workers"] == "2"
    assert float(trained["test"]) > 0.1
    # Seconds times the bandwidth that the table names are the bytes of one layer after the other.
    moved = sum(4 * (EDGES * min(pair) + NODES * sum(pair)) for pair in LAYERS)
    rate = float(floor["run"].split("(")[1].split()[0])
    assert abs(float(floor["aggregate, s"]) * rate * 1e9 - moved) < 0.01 * moved
