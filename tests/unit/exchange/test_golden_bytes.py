"""The encoding does not change between versions, so that saved runs can be resumed."""

import hashlib

import numpy as np
import pytest
import torch

from retexo.exchange.coding.elias_fano import encode_sorted
from retexo.exchange.coding.rows import Encoding, RowFormat, encode
from retexo.exchange.coding.values import Precision


def blocks() -> list[torch.Tensor]:
    """Rows of several widths and densities, a third of them binary; multiples of 1/8 are exact
    everywhere.
    """
    rng = np.random.default_rng(7)
    made = []
    for width in (1, 5, 64, 127, 128, 300, 1433, 40_000):
        rows = rng.integers(-40, 40, (40, width)) / 8
        filled = rng.choice([0, 0.002, 0.01, 0.05, 0.3, 0.97, 1], 40)
        rows[rng.random((40, width)) >= filled[:, None]] = 0
        rows[::3] = rows[::3] != 0
        made.append(torch.from_numpy(rows.astype(np.float32)))
    return made


@pytest.mark.parametrize(
    ("encoding", "precision", "digest"),
    [
        ("dense", "full", "a4ae6e3ea0c014e8"),
        ("dense", "bf16", "c0dcc539dbc7dbc2"),
        ("dense", "int8", "fb40e14b0fd11734"),
        ("dense", "int4", "25c27e40ce22c42e"),
        ("sparse", "full", "b6282d906b1dd42e"),
        ("sparse", "bf16", "a6c0ee3c092b6962"),
        ("sparse", "int8", "4d5812c6fd0c31f4"),
        ("sparse", "int4", "27908c18141a2b9a"),
    ],
)
def test_rows(encoding: Encoding, precision: Precision, digest: str) -> None:
    written = b"".join(
        encode(rows, RowFormat(encoding, precision)).numpy().tobytes() for rows in blocks()
    )
    assert hashlib.sha256(written).hexdigest()[:16] == digest


def test_ascending_integers() -> None:
    rng = np.random.default_rng(8)
    cases = [
        (universe, count)
        for universe in (1, 3, 100, 5000, 1 << 20, 1 << 40)
        for count in (0, 1, 7, 300, 4000)
    ]
    codes = [
        encode_sorted(np.sort(rng.integers(universe, size=count)), universe)
        for universe, count in cases
    ]
    assert (
        hashlib.sha256(b"".join(code.tobytes() for code in codes)).hexdigest()[:16]
        == "781e91a24a8b242a"
    )
