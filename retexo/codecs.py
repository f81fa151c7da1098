"""How values are rounded on the network, by name: rows (exchange.precision), gradients
(gradient.precision). Formats, sizes, settings and plans read this.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Codec:
    """Type of the codes of values, and their scale."""

    dtype: str = ""
    """Type of PyTorch; empty: the values' own."""
    largest: int = 0
    """Largest code of an integer, whose scale is the largest magnitude / this; 0: no scale."""
    bits: int = 8
    """Bits of an integer in a message: 8, 6 (gradients) or 4 (rows)."""
    scale: str = "float32"
    """Type of the scales of gradients; of rows it is float32."""


ROWS: dict[str, Codec] = {
    "fp32": Codec(),
    "bf16": Codec("bfloat16"),
    "int8": Codec("int8", 127),
    "int4": Codec("int8", 7, bits=4),
}
"""Codecs of boundary rows, with a scale per row."""
GRADIENTS: dict[str, Codec] = {
    "fp32": Codec(),
    "bf16": Codec("bfloat16"),
    "int8": Codec("int8", 127),
    # The error of a bfloat16 scale is well below half a 6-bit code, but not an 8-bit one.
    "int6": Codec("int8", 31, bits=6, scale="bfloat16"),
}
"""Codecs of gradients, with a scale per 128 values."""
