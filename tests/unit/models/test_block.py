"""In-edges by destination, and their nodes in chunks."""

import pytest
import torch

from retexo.models.block import (
    InEdges,
)


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
