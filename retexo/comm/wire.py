"""How the values of a sum travel: in their own type, a narrower one, or int8 with a scale for each BLOCK of them.

n values.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from retexo.comm.int8 import SCALE_BYTES, to_int8

BLOCK = 128
"""Values that share a scale in int8."""
ByteArray = npt.NDArray[np.uint8]


def encode(values: Tensor, dtype: torch.dtype) -> Sequence[ByteArray]:
    """The bytes of values [n] on the host; of int8 those of the numbers, and those of the scales."""
    if dtype != torch.int8:
        return [bytes_of(values.to(dtype))]
    codes, scales = to_int8(torch.nn.functional.pad(values, (0, -len(values) % BLOCK)).view(-1, BLOCK))
    return [codes.view(-1).view(torch.uint8).numpy()[: len(values)], scales.view(torch.uint8).numpy()]


def chunk(encoded: Sequence[ByteArray], dtype: torch.dtype, first: int, end: int) -> list[ByteArray]:
    """The bytes of the values from `first`, in int8 a multiple of BLOCK, up to `end`."""
    widths = [(1, 1), (SCALE_BYTES, BLOCK)] if dtype == torch.int8 else [(dtype.itemsize, 1)]
    places = [slice(first // step * width, -(-end // step) * width) for width, step in widths]
    return [part[place] for part, place in zip(encoded, places, strict=True)]


def num_bytes(dtype: torch.dtype, count: int) -> int:
    """Of a chunk of so many values."""
    return count * dtype.itemsize + (-(-count // BLOCK) * SCALE_BYTES if dtype == torch.int8 else 0)


def decode(content: ByteArray, dtype: torch.dtype, count: int) -> Tensor:
    """The values [count] of a chunk; those of int8 are float32. May share the memory of the bytes."""
    if dtype != torch.int8:
        aligned = content if content.ctypes.data % dtype.itemsize == 0 else content.copy()
        return torch.frombuffer(aligned, dtype=dtype) if count else torch.empty(0, dtype=dtype)
    scales = np.repeat(content[count:].view(np.float32), BLOCK)[:count]
    return torch.from_numpy(content[:count].view(np.int8) * scales)


def bytes_of(tensor: Tensor) -> ByteArray:
    """The memory of a 1-D tensor on the host, or of a copy where its values do not follow each other."""
    flat = tensor.detach().contiguous().as_strided((tensor.numel(),), (1,))  # of one value the stride may be 0
    return flat.view(torch.uint8).numpy()
