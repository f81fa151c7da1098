"""Selections compared with every other selection, and messages with dense sums."""

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from retexo.arrays import IntArray, Mask
from retexo.exchange.coding.rows import decode, row_sizes
from retexo.exchange.coding.values import Precision
from retexo.exchange.local_rows import DENSE, PROJECTED, SPARSE, LocalRows, MessageFormat
from retexo.exchange.message_selection import (
    CutEdges,
    MessageVectors,
    Selection,
    VectorBound,
    select_vectors,
)

F64 = torch.float64
FORMATS = {"dense": DENSE, "sparse": SPARSE, "projected": PROJECTED}
PRECISIONS: tuple[Precision, ...] = ("full", "bf16", "int8", "int4")
quickly = settings(deadline=None)


@dataclass(frozen=True, eq=False)
class Case:
    """A boundary with its rows and their dense sums."""

    local: LocalRows
    nodes: IntArray
    source: IntArray
    target: IntArray
    num_targets: int

    @property
    def edges(self) -> CutEdges:
        return CutEdges(self.nodes, self.source, self.target, self.num_targets)

    @property
    def rows(self) -> Tensor:
        return self.local.rows[self.nodes]

    def sums(self, rows: Mask) -> Tensor:
        """The rest of each target's sum if these rows are sent, [R, F]."""
        count = torch.zeros(self.num_targets, len(self.nodes), dtype=F64)
        for row, target in zip(self.source, self.target, strict=True):
            count[target, row] += not rows[row]
        scale = (
            torch.ones(len(self.local.rows), dtype=F64)
            if self.local.scale is None
            else self.local.scale
        )
        return (count * scale[self.nodes]) @ self.rows

    def select_vectors(self, *, partial_sums: bool = True, projected: bool = False) -> Selection:
        return select_vectors(
            self.local, self.edges, partial_sums=partial_sums, projected=projected
        )

    def write(self, selection: Selection) -> Tensor:
        vectors = MessageVectors.from_selection(self.local, selection, self.edges)
        return vectors.write(*vectors.pieces(1))

    def targets_left(self, rows: Mask) -> Mask:
        """Targets with an edge from a row that is not sent."""
        left = np.zeros(self.num_targets, bool)
        left[self.target[~rows[self.source]]] = True
        return left

    def sizes(self, message_format: MessageFormat) -> tuple[IntArray, IntArray]:
        """Bytes of each row [L] and of each target's whole sum [R]."""
        precision, rows = self.local.precision, self.rows
        if message_format == SPARSE:
            whole = self.sums(np.zeros(len(rows), bool))
            return row_sizes(rows, SPARSE.row_format(precision)), row_sizes(
                whole, SPARSE.row_format(precision)
            )
        width = self.local.projected_width if message_format.projected else rows.shape[1]
        size = {
            "full": 8 * width,
            "bf16": 2 * width,
            "int8": width + 4,
            "int4": (width + 1) // 2 + 4,
        }[precision]
        return np.full(len(rows), size), np.full(self.num_targets, size)

    def weight(self, selection: Selection) -> int:
        rows, sums = self.sizes(selection.format)
        return int(rows[selection.rows].sum() + sums[selection.sums].sum())


def owner(
    rows: Tensor, projected_width: int, scale: Tensor | None = None, precision: Precision = "full"
) -> LocalRows:
    weight = torch.randn(
        rows.shape[1], projected_width, dtype=F64, generator=torch.Generator().manual_seed(1)
    )
    return LocalRows(rows, scale, lambda rows: rows @ weight, projected_width, precision)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Up to 5 rows and 4 targets, small counts as features, all edges among them up to twice."""
    ends = sorted(
        draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=14))
    )
    (right, target), (left, source) = (
        np.unique(side, return_inverse=True) for side in np.array(ends).T
    )
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    shape = 8, draw(st.sampled_from([1, 3, 9, 40, 200]))
    filled = rng.choice([0.03, 0.1, 0.5, 1.0] if draw(st.booleans()) else [0.02, 0.05], (8, 1))
    rows = torch.from_numpy(rng.integers(1, 4, shape) * (rng.random(shape) < filled)).double()
    # Not such that counts times scales, added up, can be exactly 1, which is a shorter value.
    scale = torch.from_numpy(rng.choice([0.7, 1.3], 8)) if draw(st.booleans()) else None
    local = owner(rows, draw(st.sampled_from([1, 4, 30])), scale, draw(st.sampled_from(PRECISIONS)))
    nodes = np.sort(rng.choice(8, len(left), replace=False))
    return Case(local, nodes, source, target, len(right))


def covers(case: Case) -> list[tuple[Mask, Mask]]:
    """Every set of rows, with the sums that remain to be sent."""
    masks = [np.array(bits) for bits in product((False, True), repeat=len(case.nodes))]
    return [(rows, case.targets_left(rows)) for rows in masks]


def least_weight(case: Case, message_format: MessageFormat) -> int:
    row_size, sum_size = case.sizes(message_format)
    return min(int(row_size[rows].sum() + sum_size[sums].sum()) for rows, sums in covers(case))


def formats(projected: bool) -> list[MessageFormat]:
    return [DENSE, SPARSE, PROJECTED] if projected else [DENSE, SPARSE]


def assert_serves_all(case: Case, selection: Selection) -> None:
    assert (selection.rows[case.source] | selection.sums[case.target]).all()


@quickly
@given(cases(), st.booleans())
def test_no_other_selection_takes_fewer_bytes(case: Case, projected: bool) -> None:
    chosen = case.select_vectors(projected=projected)
    assert_serves_all(case, chosen)
    assert case.weight(chosen) == min(least_weight(case, each) for each in formats(projected))


@quickly
@given(cases(), st.sampled_from([1, 9, 40]), st.booleans(), st.booleans())
def test_what_was_chosen_before_is_chosen_again_only_where_it_is_the_shortest(
    case: Case, width: int, dense_first: bool, projected: bool
) -> None:
    """Same edges, rows of another layer; rows without zeros have equal sizes."""
    dense = replace(case, local=owner(torch.full((8, width), 0.7, dtype=F64), 30))
    one, other = (dense, case) if dense_first else (case, dense)
    first, every = (
        one.select_vectors(projected=projected),
        (np.ones(len(case.nodes), bool), np.ones(case.num_targets, bool)),
    )
    shown = VectorBound(*every, first)
    assert first.equal_sizes or not dense_first
    assert shown.reusable_selection(np.append(every[0][1:], False), every[1]) is None
    assert shown.reusable_selection(every[0], np.append(every[1][1:], False)) is None
    before = shown.reusable_selection(*every)
    chosen = select_vectors(
        other.local, case.edges, partial_sums=True, projected=projected, previous=before
    )
    assert_serves_all(case, chosen)
    assert other.weight(chosen) == min(least_weight(other, each) for each in formats(projected))
    assert chosen.sum_sizes is None or (chosen.sum_sizes == other.sizes(chosen.format)[1]).all()


@quickly
@given(cases(), st.booleans())
def test_a_message_is_as_long_as_was_weighed(case: Case, projected: bool) -> None:
    """Or shorter: a sparse sum without the rows that are sent may have fewer values."""
    chosen = case.select_vectors(projected=projected)
    length = len(case.write(chosen))
    assert length == case.weight(chosen) or (
        chosen.format == SPARSE and length < case.weight(chosen)
    )


@quickly
@given(cases(), st.booleans(), st.integers(1, 4))
def test_the_size_of_a_piece_is_that_of_what_is_written(
    case: Case, projected: bool, count: int
) -> None:
    """Whole sums are not computed for their sizes."""
    vectors = MessageVectors.from_selection(
        case.local, case.select_vectors(projected=projected), case.edges
    )
    pieces = vectors.pieces(count)
    assert list(map(vectors.size, pieces)) == [len(vectors.write(piece)) for piece in pieces]
    assert (vectors.sum_sizes is None) == bool(len(vectors.nodes))


@quickly
@given(cases(), st.sampled_from(sorted(FORMATS)), st.integers(0, 31))
def test_what_is_written_reads_as_rows_and_sums(
    case: Case, message_format: str, place: int
) -> None:
    """For any selection: the rows, then the sums of the edges that no row serves."""
    local = LocalRows(
        case.local.rows, case.local.scale, case.local.project, case.local.projected_width, "full"
    )
    case = Case(local, case.nodes, case.source, case.target, case.num_targets)
    selection = Selection(FORMATS[message_format], *covers(case)[place % 2 ** len(case.nodes)])
    wanted = torch.cat((case.rows[selection.rows], case.sums(selection.rows)[selection.sums]))
    wanted = local.project(wanted) if selection.format.projected else wanted
    row_format = selection.format.row_format("full")
    back = decode(case.write(selection), (len(wanted), wanted.shape[1]), F64, row_format)
    torch.testing.assert_close(back, wanted, rtol=1e-12, atol=1e-12)


def test_what_is_sent_after_the_weights_does_not_need_the_rows() -> None:
    rows = torch.rand(8, 40, dtype=F64, generator=torch.Generator().manual_seed(0)) + 1
    ends = np.array([0, 0, 1, 2], np.int32), np.array([0, 1, 1, 1], np.int32)
    edges = CutEdges(np.array([1, 4, 6], np.int32), *ends, 2)
    whole, released = (owner(rows, 4) for _ in range(2))
    released.release()
    assert released.rows.isnan().all()
    assert (released.rows.shape, released.rows.untyped_storage().nbytes()) == (rows.shape, 8)
    written = []
    for local in (whole, released):
        selection = select_vectors(local, edges, partial_sums=True, projected=True)
        assert selection.format == PROJECTED
        (piece,) = (vectors := MessageVectors.from_selection(local, selection, edges)).pieces(1)
        written.append(vectors.write(piece))
    assert torch.equal(*written)
