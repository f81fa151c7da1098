"""Work of NumPy's, which computes in one thread and mostly lets go of Python's lock, in several."""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
BLOCK = 1 << 20
"""Numbers that are looked at in one call: a core has them in its cache, and is busy for longer than the lock takes."""
AT_LOCK = 8
"""Threads that take turns at Python's lock between short calls: more wait for it longer than they compute."""
_own = threading.local()
"""`threads`: how many a thread that was started here may start itself."""


def in_threads(
    function: Callable[..., T], *arguments: Iterable[Any], at_most: int | None = None
) -> list[T]:
    """The results of a function, in order, in as many threads as torch has here; in one of those, in its share."""
    import torch  # a second to load, and data sets can be described without it

    tasks = list(zip(*arguments, strict=False))
    own = getattr(_own, "threads", torch.get_num_threads())
    threads = min(own, len(tasks), at_most or own)
    if threads <= 1:
        return [function(*task) for task in tasks]
    with ThreadPoolExecutor(
        threads, initializer=setattr, initargs=(_own, "threads", own // threads)
    ) as pool:
        return list(pool.map(lambda task: function(*task), tasks))


def in_blocks(function: Callable[[slice], T], count: int, size: int) -> list[T]:
    """The same for all of `count` rows, so many at a time."""
    return in_threads(function, blocks(count, size), at_most=AT_LOCK)


def blocks(count: int, size: int) -> list[slice]:
    """All of `count` rows, so many at a time."""
    return [slice(first, min(first + size, count)) for first in range(0, count, size)]
