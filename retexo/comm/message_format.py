"""How the values of a sum travel: as a torch.dtype, or as codes "int8" or "int6" with a scale for each BLOCK.

n values.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from retexo.comm.int8 import to_int8

WireFormat = torch.dtype | str
"""The type of the values, or the name of their codes."""
LARGEST = {"int8": 127, "int6": 31}
"""The largest of the codes."""
BLOCK = 128
"""Values that share a scale."""
SCALE = {"int8": torch.float32, "int6": torch.bfloat16}
"""The type of the scales. The error of bfloat16 is well below half a code of six bits, but not of eight."""
FOURTH = np.array([6, 4, 2], np.uint8)
"""Left shifts that bring the lowest, middle and highest two of six bits to the high end of a byte."""
ByteArray = npt.NDArray[np.uint8]


def encode(values: Tensor, wire_format: WireFormat) -> Sequence[ByteArray]:
    """The bytes of values [n] on the host; where there are scales those of the codes, and those of the scales."""
    if isinstance(wire_format, torch.dtype):
        return [bytes_of(values.to(wire_format))]
    blocks = torch.nn.functional.pad(values, (0, -len(values) % BLOCK)).view(-1, BLOCK)
    codes, scales = to_int8(blocks, LARGEST[wire_format], SCALE[wire_format])
    packed = bytes_of(codes.view(-1))
    if wire_format == "int6":
        packed = _pack(packed)
    return [packed[: _code_bytes(wire_format, len(values))], bytes_of(scales)]


def chunk(
    encoded: Sequence[ByteArray], wire_format: WireFormat, first: int, end: int
) -> list[ByteArray]:
    """The bytes of the values from `first`, where there are scales a multiple of BLOCK, up to `end`."""
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
    """Of a chunk of so many values."""
    if isinstance(wire_format, torch.dtype):
        return count * wire_format.itemsize
    return _code_bytes(wire_format, count) + -(-count // BLOCK) * SCALE[wire_format].itemsize


def decode(content: ByteArray, wire_format: WireFormat, count: int) -> Tensor:
    """The values [count] of a chunk; float32 where there are scales. May share the memory of the bytes."""
    if isinstance(wire_format, torch.dtype):
        aligned = content if content.ctypes.data % wire_format.itemsize == 0 else content.copy()
        return (
            torch.frombuffer(aligned, dtype=wire_format)
            if count
            else torch.empty(0, dtype=wire_format)
        )
    size = _code_bytes(wire_format, count)
    codes = (
        _unpack(content[:size])[:count] if wire_format == "int6" else content[:size].view(np.int8)
    )
    scales = decode(content[size:], SCALE[wire_format], -(-count // BLOCK)).float().numpy()
    return torch.from_numpy(codes * np.repeat(scales, BLOCK)[:count])


def _code_bytes(codes: str, count: int) -> int:
    """Of so many codes, without scales: of int6 every fourth lies in what the three before leave of their bytes."""
    return count - count // 4 if codes == "int6" else count


def _pack(codes: ByteArray) -> ByteArray:
    """Codes of which the low six bits count [4 m], in 3 m bytes."""
    groups = codes.reshape(-1, 4)
    packed: ByteArray = (
        (groups[:, :3] & np.uint8(63)) | (groups[:, 3:] << FOURTH & np.uint8(192))
    ).ravel()
    return packed


def _unpack(packed: ByteArray) -> npt.NDArray[np.int8]:
    """What `_pack` wrote; after the last whole group up to three codes, and then zeros."""
    groups = np.pad(packed, (0, -len(packed) % 3)).reshape(-1, 3)
    codes = np.empty((len(groups), 4), np.uint8)
    codes[:, :3] = groups << 2
    codes[:, 3] = np.bitwise_or.reduce((groups & 192) >> FOURTH, axis=1) << 2
    signed: npt.NDArray[np.int8] = codes.ravel().view(np.int8) >> 2  # the sign goes along
    return signed


def bytes_of(tensor: Tensor) -> ByteArray:
    """The memory of a 1-D tensor on the host, or of a copy where its values do not follow each other."""
    flat = (
        tensor.detach().contiguous().as_strided((tensor.numel(),), (1,))
    )  # of one value the stride may be 0
    return flat.view(torch.uint8).numpy()
