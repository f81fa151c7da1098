"""Blocks of rows, partial sums and late vectors, by hand.

Inner nodes 0, 1, 2 and halo nodes 3, 4, 5, 6 of a part; 4 has two edges to 1.
"""

import pytest
import torch
from torch import Tensor

from retexo.models.block import (
    Block,
    HaloRows,
    InEdges,
    ReceivedMessage,
    Sources,
    gather_source_rows,
)

SRC = torch.tensor([1, 3, 4, 4, 5, 6, 6, 0])
DST = torch.tensor([0, 0, 1, 1, 1, 0, 2, 2])
OUT_DEGREE = torch.tensor([1, 1, 0, 7, 8, 9, 10])
EDGES = InEdges.build(SRC, DST, torch.tensor([3, 3, 2]), OUT_DEGREE, torch.float64)
OWN = torch.tensor([[1.0], [2.0], [3.0]])


def arrival(values: list[float], halo: list[int], sum_dst: list[int]) -> ReceivedMessage:
    """A message with rows of halo nodes, counted from 0, and sums."""
    ids = (torch.tensor(nodes, dtype=torch.int64) for nodes in (halo, sum_dst))
    vectors = torch.tensor(values, dtype=torch.float32)[:, None]
    return ReceivedMessage(
        *ids, read=lambda out=None: vectors if out is None else out.copy_(vectors)
    )


def sources(unprojected: list[ReceivedMessage], projected: list[ReceivedMessage]) -> Sources:
    return Sources(
        *(
            HaloRows.empty(4, 1, torch.float32).append(arrivals)
            for arrivals in (unprojected, projected)
        )
    )


def vectors_of(block: Block, given: Sources) -> Tensor:
    unprojected, projected = gather_source_rows(block, OWN, given)
    assert len(unprojected) == block.num_unprojected
    return torch.cat((unprojected, projected))[:, 0]


def edges_of(block: Block, given: Sources) -> list[tuple[float, int]]:
    """Edges as pairs of source value and destination index."""
    nodes = block.nodes[: block.num_dst][block.dst]
    return sorted(zip(vectors_of(block, given)[block.src].tolist(), nodes.tolist(), strict=True))


# --- vectors ----------


def test_no_vectors() -> None:
    none = HaloRows.empty(2, 5, torch.float64)
    assert (none.values.shape, none.values.dtype) == ((0, 5), torch.float64)
    assert (none.halo.tolist(), none.sums.tolist(), none.sum_dst.tolist()) == ([-1, -1], [], [])
    assert none.append([]) is none


def test_vectors_stand_in_the_order_of_their_arrival() -> None:
    first = HaloRows.empty(4, 1, torch.float32)
    one = first.append([arrival([0.1, 0.2, 0.3], [2, 0], [1]), arrival([0.4], [], [0])])
    assert one.values[:, 0].tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert (one.halo.tolist(), one.sums.tolist(), one.sum_dst.tolist()) == (
        [1, -1, 0, -1],
        [2, 3],
        [1, 0],
    )
    two = one.append([arrival([], [], []), arrival([0.5, 0.6], [3], [2])])
    assert two.values[:, 0].tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    assert (two.halo.tolist(), two.sums.tolist(), two.sum_dst.tolist()) == (
        [1, -1, 0, 4],
        [2, 3, 5],
        [1, 0, 2],
    )
    assert first.halo.tolist() == [-1] * 4  # nothing was changed in place
    assert one.halo.tolist() == [1, -1, 0, -1]


# --- blocks ----------


def test_a_sum_stands_for_rows_that_are_not_there() -> None:
    """The sum of 4, 4 and 5 goes to 1; nothing was received for 3."""
    given = sources([arrival([60, 130], [3], [1])], [])
    block = EDGES.cut_block(torch.tensor([0, 1, 2]), given)
    assert edges_of(block, given) == [(1.0, 2), (2.0, 0), (60.0, 0), (60.0, 2), (130.0, 1)]
    degree = dict(zip(vectors_of(block, given).tolist(), block.out_degree.tolist(), strict=True))
    assert degree == {
        1.0: 1,
        2.0: 1,
        3.0: 0,
        60.0: 10,
        130.0: 0,
    }  # a sum has its sources' factors in it
    assert block.in_degree.tolist() == [3, 3, 2]


def test_a_block_of_nothing() -> None:
    given = sources([arrival([30, 80], [0], [1])], [])
    block = EDGES.cut_block(torch.zeros(0, dtype=torch.int64), given)
    assert (len(block.nodes), len(block.src), block.num_dst, block.num_unprojected) == (0, 0, 0, 0)
    assert vectors_of(block, given).tolist() == []


@pytest.mark.parametrize("edges", [1, 3, 100])
def test_chunks_are_the_nodes_in_order_with_few_edges_each(edges: int) -> None:
    degree = torch.tensor([0, 2, 0, 5, 1, 1, 1, 0])
    row_ptr = torch.cat((torch.zeros(1, dtype=torch.int64), degree.cumsum(0)))
    in_edges = InEdges(torch.zeros(10, dtype=torch.int64), row_ptr, torch.zeros(8), torch.zeros(8))
    nodes = torch.tensor([0, 1, 3, 4, 5, 6, 7])
    chunks = in_edges.chunks(nodes, edges)
    assert torch.cat(chunks).tolist() == nodes.tolist()
    for chunk in chunks:
        assert int(degree[chunk[:-1]].sum()) <= edges
    assert len(chunks) == {1: 6, 3: 3, 100: 1}[edges]
    assert list(in_edges.chunks(nodes[:0], edges)) == []


def test_unsorted_edges_are_sorted_and_sorted_ones_not_copied() -> None:
    src, dst, degree = torch.tensor([3, 1, 2]), torch.tensor([1, 0, 1]), torch.zeros(4)
    unsorted = InEdges.build(src, dst, degree[:2], degree, torch.float32)
    assert unsorted.src.tolist() == [1, 3, 2]
    assert unsorted.row_ptr.tolist() == [0, 1, 3]
    again = InEdges.build(unsorted.src, torch.tensor([0, 1, 1]), degree[:2], degree, torch.float32)
    assert again.src.data_ptr() == unsorted.src.data_ptr()
