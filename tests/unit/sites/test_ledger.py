"""How many of a site's nodes another may ask for, in all runs together."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch

from partitioning.errors import InputError
from retexo.errors import TrainingError
from retexo.exchange.boundary import Boundary
from retexo.exchange.exchange_plan import _check_requested_rows
from retexo.sites import ledger
from retexo.sites.ledger import LEDGER, record

NAMES = ["east", "south"]


def asked(folder: Path, east: list[int], south: list[int], limit: float | None) -> None:
    record(folder, NAMES, [np.array(east, np.int64), np.array(south, np.int64)], 100, limit)


@pytest.mark.parametrize("limit", [5, 0.05])
def test_runs_add_up_and_what_is_asked_for_twice_counts_once(tmp_path: Path, limit: float) -> None:
    asked(tmp_path, [1, 2, 3], [], limit)
    asked(tmp_path, [3, 4], [9, 10, 11, 12, 13], limit)
    asked(tmp_path, [1, 2, 3, 4, 50], [9], limit)
    before = (tmp_path / LEDGER).read_bytes()
    with pytest.raises(InputError) as error:
        asked(tmp_path, [60], [9], limit)
    assert str(error.value).startswith(
        f"sites.max_rows_shared={limit}: a site may get at most 5 of 100 nodes; east asks for 1, 6"
        " with those of earlier runs; nothing was sent"
    )
    assert (tmp_path / LEDGER).read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == [LEDGER]


def test_a_site_may_give_nothing(tmp_path: Path) -> None:
    asked(tmp_path, [], [], 0)
    with pytest.raises(InputError, match="south asks for 1, 1 with"):
        asked(tmp_path, [], [5], 0)


def test_a_damaged_ledger_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / LEDGER).write_bytes(b"nothing")
    with pytest.raises(InputError, match="not a readable ledger of a site"):
        asked(tmp_path, [], [], 5)


def test_rows_that_were_not_asked_for_at_the_start_are_not_given() -> None:
    def boundary(*rows: int) -> Boundary:
        nothing = np.empty(0, np.int32)
        return Boundary(
            np.array(rows),
            nothing,
            nothing.astype(np.uint8),
            np.zeros(len(rows) + 1, np.int64),
            nothing,
        )

    named = [torch.tensor([], dtype=torch.int64), torch.tensor([2, 5, 7])]
    _check_requested_rows([boundary(), boundary(2, 7)], named)
    with pytest.raises(
        TrainingError, match="rank 1 requests rows of nodes that it did not request"
    ):
        _check_requested_rows([boundary(), boundary(2, 6)], named)


def test_runs_at_once_give_no_more_than_one_after_the_other(tmp_path: Path) -> None:
    def asked_of(node: int) -> bool:
        try:
            asked(tmp_path, [node], [], 5)
        except InputError:
            return False
        return True

    with ThreadPoolExecutor(12) as runs:
        given = list(runs.map(asked_of, range(12)))
    assert given.count(True) == 5
    with np.load(tmp_path / LEDGER) as account:
        assert account["0"].tolist() == [node for node in range(12) if given[node]]


def test_what_a_run_without_a_limit_gives_counts_later(tmp_path: Path) -> None:
    asked(tmp_path, [1, 2, 3], [], None)
    with pytest.raises(InputError, match="east asks for 1, 4 with those of earlier runs"):
        asked(tmp_path, [4], [], 3)


def test_a_folder_that_cannot_keep_the_ledger(tmp_path: Path) -> None:
    """Without it a later limit would be wrong, so nothing is given."""
    with (
        patch.object(ledger, "rename_durably", side_effect=OSError(28, "No space left on device")),
        pytest.raises(
            InputError, match=f"{LEDGER}: cannot be written: No space left on device; free"
        ),
    ):
        asked(tmp_path, [1], [], None)
