"""NumPy arrays by the type of their elements, for annotations."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
Int32Array = NDArray[np.int32]
"""Places of the ends of edges, of which there are several per edge: a part has fewer than 2^31 nodes."""
IndexArray = NDArray[np.signedinteger[Any]]
"""Integers of either width."""
FloatArray = NDArray[np.float64]
ByteArray = NDArray[np.uint8]
Mask = NDArray[np.bool_]
