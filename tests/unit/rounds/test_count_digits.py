"""Counts are sent as digits, which add up exactly as floats."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from retexo.rounds.round_message import counts_to_digits, digits_to_counts

COUNTS = st.lists(st.integers(0, 2**24 - 1), min_size=3, max_size=3)


@given(st.lists(COUNTS, min_size=1, max_size=12), st.sampled_from([torch.float32, torch.float64]))
def test_digits_add_up_exactly(workers: list[list[int]], dtype: torch.dtype) -> None:
    total = torch.tensor(
        [counts_to_digits(torch.tensor(counts)) for counts in workers], dtype=dtype
    ).sum(dim=0)
    assert digits_to_counts(total.tolist()).tolist() == [
        sum(counts) for counts in zip(*workers, strict=True)
    ]


def test_digits_add_up_over_as_many_workers_as_promised() -> None:
    counts = torch.tensor([2**24 - 1, 4095])
    total = torch.tensor(counts_to_digits(counts)).float() * 4096
    assert float(total.max()) < 2**24  # so that each partial sum is exact, too
    assert digits_to_counts(total.tolist()).tolist() == [4096 * (2**24 - 1), 4096 * 4095]
