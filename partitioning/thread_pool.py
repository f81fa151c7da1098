"""Runs NumPy functions in several threads.

NumPy computes in one thread and mostly releases Python's lock.
"""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
BLOCK = 1 << 20
"""Numbers in one call: they fit into a core's cache, and take longer than passing on the lock."""
MAX_THREADS = 8
"""Threads for short calls: more of them wait longer for Python's lock than they compute."""
_own = threading.local()
"""`threads`: number of threads that a thread of this module may start itself."""


def in_threads(
    function: Callable[..., T], *arguments: Iterable[Any], at_most: int | None = None
) -> list[T]:
    """Call a function for each tuple of arguments in as many threads as torch has, or `at_most`.

    Return the results in order; the exception of a call is raised. Nested calls share these
    threads. The shortest argument ends the calls.
    """
    import torch  # takes a second to load, and describing data sets needs none

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
    """Call a function in threads for slices of `size` that cover 0 ... count - 1.

    Return the results in order.
    """
    if 0 < count <= size:  # no thread for one block: a tenth of a dry run with 64 partitions
        return [function(slice(0, count))]
    return in_threads(function, blocks(count, size), at_most=MAX_THREADS)


def blocks(count: int, size: int) -> list[slice]:
    """Return slices of `size` that cover 0 ... count - 1."""
    return [slice(first, min(first + size, count)) for first in range(0, count, size)]
