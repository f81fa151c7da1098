"""Encoding of the values of a sum: a torch.dtype, or "int8" or "int6" codes with block scales.

n values.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from retexo.codecs import GRADIENTS
from retexo.comm.int8 import to_int8

WireFormat = torch.dtype | str
"""A type of values, "int8" or "int6"."""
LARGEST = {name: codec.largest for name, codec in GRADIENTS.items() if codec.largest}
"""The largest code."""
BLOCK = 128
"""Number of values that share a scale."""
SCALE: dict[str, torch.dtype] = {name: getattr(torch, GRADIENTS[name].scale) for name in LARGEST}
"""Type of the scales."""
FOURTH = np.array([6, 4, 2], np.uint8)
"""Left shifts that move the lowest, middle and highest two of six bits to the top of a byte."""
ByteArray = npt.NDArray[np.uint8]


def encode(values: Tensor, wire_format: WireFormat) -> Sequence[ByteArray]:
    """Return the bytes of values [n] on the host.

    With codes: the bytes of the codes, then those of the scales.
    """
    if isinstance(wire_format, torch.dtype):
        return [as_bytes(values.to(wire_format))]
    blocks = torch.nn.functional.pad(values, (0, -len(values) % BLOCK)).view(-1, BLOCK)
    codes, scales = to_int8(blocks, LARGEST[wire_format], SCALE[wire_format])
    packed = as_bytes(codes.view(-1))
    if GRADIENTS[wire_format].bits == 6:
        packed = _pack(packed)
    return [packed[: _code_bytes(wire_format, len(values))], as_bytes(scales)]


def chunk(
    encoded: Sequence[ByteArray], wire_format: WireFormat, first: int, end: int
) -> list[ByteArray]:
    """Return views of the bytes of the values from `first` up to but without `end`.

    First the codes, then the scales if there are any; then `first` is a multiple of BLOCK.
    """
    if isinstance(wire_format, torch.dtype):
        return [encoded[0][first * wire_format.itemsize : end * wire_format.itemsize]]
    codes, scales = encoded
    scale_of = slice(
        first // BLOCK * SCALE[wire_format].itemsize, -(-end // BLOCK) * SCALE[wire_format].itemsize
    )
    return [
        codes[_code_bytes(wire_format, first) : _code_bytes(wire_format, end)],
        scales[scale_of],
    ]


def num_bytes(wire_format: WireFormat, count: int) -> int:
    """Return the encoded bytes of `count` values, with their scales."""
    if isinstance(wire_format, torch.dtype):
        return count * wire_format.itemsize
    return _code_bytes(wire_format, count) + -(-count // BLOCK) * SCALE[wire_format].itemsize


def decode(content: ByteArray, wire_format: WireFormat, count: int) -> Tensor:
    """Return the values [count] of a chunk; float32 for codes. May share memory with the bytes."""
    if isinstance(wire_format, torch.dtype):
        aligned = content if content.ctypes.data % wire_format.itemsize == 0 else content.copy()
        return (
            torch.frombuffer(aligned, dtype=wire_format)
            if count
            else torch.empty(0, dtype=wire_format)
        )
    size = _code_bytes(wire_format, count)
    is_packed = GRADIENTS[wire_format].bits == 6
    codes = _unpack(content[:size])[:count] if is_packed else content[:size].view(np.int8)
    scales = decode(content[size:], SCALE[wire_format], -(-count // BLOCK)).float().numpy()
    return torch.from_numpy(codes * np.repeat(scales, BLOCK)[:count])


def _code_bytes(codes: str, count: int) -> int:
    """Return bytes of `count` codes.

    Every fourth code of 6 bits lies in the spare bits of the three before it.
    """
    return count - count // 4 if GRADIENTS[codes].bits == 6 else count


def _pack(codes: ByteArray) -> ByteArray:
    """Pack the low six bits of codes [4 m] into 3 m bytes."""
    groups = codes.reshape(-1, 4)
    packed: ByteArray = (
        (groups[:, :3] & np.uint8(63)) | (groups[:, 3:] << FOURTH & np.uint8(192))
    ).ravel()
    return packed


def _unpack(packed: ByteArray) -> npt.NDArray[np.int8]:
    """Undo `_pack`. The last group may have fewer codes, followed by zeros."""
    groups = np.pad(packed, (0, -len(packed) % 3)).reshape(-1, 3)
    codes = np.empty((len(groups), 4), np.uint8)
    codes[:, :3] = groups << 2
    codes[:, 3] = np.bitwise_or.reduce((groups & 192) >> FOURTH, axis=1) << 2
    signed: npt.NDArray[np.int8] = codes.ravel().view(np.int8) >> 2  # keeps the sign
    return signed


def as_bytes(tensor: Tensor) -> ByteArray:
    """Return the memory of a 1-D tensor on the host; of a copy if it is not contiguous."""
    flat = (
        tensor.detach().contiguous().as_strided((tensor.numel(),), (1,))
    )  # the stride of one value may be 0
    return flat.view(torch.uint8).numpy()
