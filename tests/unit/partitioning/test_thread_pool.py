"""Work in threads: results in order, errors, and how many threads there are."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support import torch_threads

from partitioning import thread_pool
from partitioning.thread_pool import in_blocks, in_threads


@pytest.mark.parametrize("count", [1, 3])
def test_results_come_in_order_and_errors_come_back(count: int) -> None:
    with torch_threads(count):
        assert in_threads(divmod, range(20), [3] * 20) == [
            divmod(number, 3) for number in range(20)
        ]
        assert in_blocks(lambda block: (block.start, block.stop), 7, 3) == [(0, 3), (3, 6), (6, 7)]
        assert in_blocks(str, 0, 3) == []
        with pytest.raises(ZeroDivisionError):
            in_threads(divmod, [1, 1], [1, 0])


@pytest.mark.parametrize(("tasks", "inner"), [(2, [4, 4]), (3, [2, 2, 2]), (8, [])])
def test_threads_start_as_many_more_as_is_their_share(
    tasks: int, inner: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []

    class Pool(ThreadPoolExecutor):
        def __init__(self, count: int, **options: Any) -> None:
            started.append(count)
            super().__init__(count, **options)

    monkeypatch.setattr(thread_pool, "ThreadPoolExecutor", Pool)
    with torch_threads(8):
        in_threads(lambda _: in_threads(str, range(9)), range(tasks))
        assert started == [tasks, *inner]
        in_threads(str, range(9))
        assert started[-1] == 8
