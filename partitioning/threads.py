"""Work of NumPy's, which computes in one thread and mostly lets go of Python's lock, in several."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def in_threads(function: Callable[..., T], *arguments: Iterable[Any]) -> list[T]:
    """The results of a function, in order, in as many threads as torch has here."""
    import torch  # a second to load, and data sets can be described without it

    threads = torch.get_num_threads()
    if threads == 1:
        return list(map(function, *arguments))
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(function, *arguments))


def blocks(count: int, size: int) -> list[slice]:
    """All of `count` rows, so many at a time."""
    return [slice(first, min(first + size, count)) for first in range(0, count, size)]
