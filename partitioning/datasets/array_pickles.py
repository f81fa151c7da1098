"""Read pickles of NumPy arrays, SciPy CSR matrices and dicts of lists without running code.

A pickle names functions and classes that the reader calls. Here a few names stand for classes of
this module, which only store their arguments; any other name is refused. NumPy's own classes are
not used: the state of a dtype can make NumPy treat bytes of the file as object addresses.
"""

import pickle
import struct
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp

from partitioning.files.download import open_published
from partitioning.graph.array_checks import Array, CsrParts, check_csr

NUMBERS = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")


class _Recorded:
    """Stands for an object in a pickle: records the arguments and the state that would build it."""

    arguments: tuple[Any, ...] = ()
    state: Any = None

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Array(_Recorded):
    """Stands for numpy.ndarray. State: version, shape, dtype, is column-major, values."""


class _Dtype(_Recorded):
    """Stands for numpy.dtype. First argument: kind and size. State: version, byte order, ..."""


class _Csr(_Recorded):
    """Stands for scipy.sparse.csr_matrix. State: data, indices, indptr and _shape."""


class _Dict(dict[Any, Any]):
    """Stands for collections.defaultdict; the factory is dropped."""

    def __init__(self, *_: Any) -> None:
        super().__init__()

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("a dict has no state")


class _Reconstructed:
    """Stands for copyreg._reconstructor(class, base, state), of protocols 0 and 1."""

    def __new__(cls, kind: Any, *_: Any) -> Any:
        return _Csr() if kind is _Csr else _Recorded()


NUMPY: dict[str, type[_Recorded]] = {
    "numpy.core.multiarray._reconstruct": _Array,
    "numpy._core.multiarray._reconstruct": _Array,
    "numpy.ndarray": _Recorded,
    "numpy.dtype": _Dtype,
}
"""Name in a pickle -> what takes its place. Pass the results to `as_array`."""
_KNOWN: dict[str, type] = {
    **NUMPY,
    "scipy.sparse.csr.csr_matrix": _Csr,
    "scipy.sparse._csr.csr_matrix": _Csr,
    "collections.defaultdict": _Dict,
    "builtins.list": _Recorded,
    "builtins.object": _Recorded,
    "copyreg._reconstructor": _Reconstructed,
}


class _Unpickler(pickle._Unpickler):
    """Makes lists, tuples, numbers, texts, dicts with simple keys, and what is in _KNOWN.

    It is the one in Python: the one in C allocates as many places of its memo as a file claims,
    gigabytes for ten bytes. Hashing tuples of tuples as keys could take for ever, or overflow the
    stack.
    """

    def find_class(self, module: str, name: str) -> Any:
        """Return the stand-in for a class that a pickle names.

        Raises UnpicklingError for any other class.
        """
        module = {"__builtin__": "builtins", "copy_reg": "copyreg"}.get(module, module)
        known = _KNOWN.get(f"{module}.{name}")
        if known is None:
            raise pickle.UnpicklingError(
                f"it names {module}.{name}, which is not run; expected plain numbers"
            )
        return known

    def _set_items(self, opcode: bytes, keys: slice) -> None:
        """Fill a dict by an opcode of the pickle.

        Raises UnpicklingError for keys other than integers and text.
        """
        stack: list[Any] = self.stack  # type: ignore[attr-defined]
        if not all(isinstance(key, int | str) for key in stack[keys]):
            raise pickle.UnpicklingError("it has a key that is neither an integer nor text")
        pickle._Unpickler.dispatch[opcode[0]](self)  # type: ignore[arg-type]

    dispatch: ClassVar[Any] = {
        **pickle._Unpickler.dispatch,
        pickle.SETITEM[0]: lambda self: self._set_items(pickle.SETITEM, slice(-2, -1)),
        pickle.SETITEMS[0]: lambda self: self._set_items(pickle.SETITEMS, slice(0, None, 2)),
        pickle.DICT[0]: lambda self: self._set_items(pickle.DICT, slice(0, None, 2)),
    }
    for opcode in (pickle.FROZENSET, pickle.ADDITEMS):
        del dispatch[opcode[0]]


def read_pickle(path: Path) -> Any:
    """Return the array, CSR matrix (float32) or dict in a pickle, also of Python 2.

    Anything else raises InputError.
    """
    with open_published(path) as file:
        try:
            content = _Unpickler(file, encoding="latin1").load()
        except (pickle.UnpicklingError, struct.error) as error:
            raise ValueError(error) from None
        if isinstance(content, _Csr):
            return _as_csr(content, path)
        return dict(content) if isinstance(content, dict) else as_array(content)


def as_array(kept: Any) -> Array:
    """Return the array of numbers that `kept`, of a class in NUMPY, describes; else ValueError."""
    if not (isinstance(kept, _Array) and isinstance(kept.state, tuple) and len(kept.state) == 5):
        raise ValueError(f"holds {type(kept).__name__.strip('_')}, expected an array of numbers")
    _, shape, dtype, by_columns, values = kept.state
    if not (isinstance(dtype, _Dtype) and dtype.arguments and dtype.arguments[0] in NUMBERS):
        raise ValueError("holds an array of no plain numbers")
    stored = np.dtype(dtype.arguments[0])
    if isinstance(dtype.state, tuple) and dtype.state[1:2] == (">",):
        stored = stored.newbyteorder(">")
    array = np.frombuffer(values.encode("latin1") if isinstance(values, str) else values, stored)
    return array.reshape(shape, order="F" if by_columns else "C").astype(stored.newbyteorder("="))


def _as_csr(kept: _Csr, path: Path) -> sp.csr_array:
    """Build the CSR matrix that a recorded object describes.

    ValueError or InputError if damaged.
    """
    data, indices, indptr = (as_array(kept.state[name]) for name in ("data", "indices", "indptr"))
    shape = kept.state["_shape"]
    if not (isinstance(shape, tuple) and all(isinstance(size, int) for size in shape)):
        raise ValueError("holds a matrix without a shape")
    parts = CsrParts(data, indices, indptr, np.array(shape))
    return check_csr(parts, len(indptr) - 1, lambda name: f"{path}: {name}")
