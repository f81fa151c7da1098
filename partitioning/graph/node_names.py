"""Names of nodes: strings of any length, stored in one array of bytes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from partitioning.errors import InputError
from partitioning.files.file_io import load_npy

FILES = ("name_text.npy", "name_ends.npy")


@dataclass(frozen=True, eq=False)
class Names:
    """Names of N nodes."""

    text: NDArray[np.uint8]
    """The UTF-8 encoded names, one after the other."""
    ends: NDArray[np.int64]
    """[N] end of each name in `text`."""

    @classmethod
    def of(cls, names: Iterable[str]) -> Self:
        """Encode names; UnicodeEncodeError for lone surrogates."""
        encoded = [name.encode() for name in names]
        ends = np.cumsum(np.fromiter(map(len, encoded), np.int64, len(encoded)))
        return cls(np.frombuffer(b"".join(encoded), np.uint8), ends)

    def take(self, rows: NDArray[np.int64]) -> "Names":
        """Return the names at `rows`, int64 [n], in this order."""
        sizes = np.diff(self.ends, prepend=0)[rows]
        ends = np.cumsum(sizes)
        return Names(
            self.text[np.arange(sizes.sum()) + np.repeat(self.ends[rows] - ends, sizes)], ends
        )

    @classmethod
    def join(cls, pieces: Sequence["Names"]) -> Self:
        """Return the names of all pieces, one after the other."""
        first = np.cumsum([0, *(len(piece.text) for piece in pieces)])
        ends = [piece.ends + begin for piece, begin in zip(pieces, first, strict=False)]
        return cls(np.concatenate([piece.text for piece in pieces]), np.concatenate(ends))

    def tolist(self) -> list[str]:
        text = self.text.tobytes()
        starts = [0, *self.ends.tolist()]
        return [text[first:end].decode() for first, end in pairwise(starts)]

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Read the names saved in a folder of a partition; None where there are none."""
        if not (folder / FILES[0]).is_file():
            return None
        return cls(*(load_npy(folder / file) for file in FILES))


def decode_names(array: NDArray[Any], where: str) -> NDArray[Any]:
    """Convert strings or UTF-8 bytes [n] to objects of str.

    InputError for invalid Unicode and another number of dimensions.
    """
    if array.ndim != 1:
        raise InputError(f"{where} has shape {array.shape}; expected one dimension")
    names = array.astype(object)
    for row, name in enumerate(names):
        try:
            names[row] = name.decode() if isinstance(name, bytes) else name
            names[row].encode()
        except UnicodeError:
            raise InputError(
                f"{where}: row {row} is {name!a}; expected Unicode text: write it as UTF-8, without"
                " lone surrogates"
            ) from None
    return names


def hash_names(names: NDArray[Any]) -> NDArray[np.int64]:
    """Return a number below 2**63 for each name, object [n]: 63 bits of SipHash.

    Among 2**20 names, two share a number with probability 2**-24. InputError for lone surrogates.
    """
    from pandas.util import hash_array  # half a second to load

    try:
        return (hash_array(names, categorize=False) >> np.uint64(1)).astype(np.int64)
    except UnicodeEncodeError as error:
        raise InputError(
            f"{error.object!a}: an id that is no Unicode text; write it without lone surrogates"
        ) from None
