"""Encoding of rows, edge weights and Elias-Fano codes: round trips, sizes, rejected bytes."""

import math
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array
from support import torch_threads

from retexo.arrays import IntArray
from retexo.exchange.coding import elias_fano
from retexo.exchange.coding import rows as coding
from retexo.exchange.coding.columns import choose_exponents, decode_scaled, divide_columns
from retexo.exchange.coding.elias_fano import (
    VALUES_PER_BLOCK,
    decode_sorted,
    encode_sorted,
    encoded_size,
)
from retexo.exchange.coding.rows import RowFormat, decode, encode, row_sizes
from retexo.exchange.coding.values import Precision
from retexo.exchange.coding.weights import decode_weights, encode_weights

ENCODINGS = ("dense", "sparse")
FORMATS = [
    RowFormat(encoding, precision)
    for encoding in ENCODINGS
    for precision in ("full", "bf16", "int8", "int4")
]
SPARSE = RowFormat("sparse")
formats = st.sampled_from(FORMATS)


@st.composite
def blocks(draw: st.DrawFn) -> torch.Tensor:
    """Rows [R, D] with different shares of zeros; some all zero, all ones, all nonzero."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    num_rows = draw(st.integers(0, 8))
    width = draw(st.sampled_from([0, 1, 2, 7, 8, 9, 64, 127, 128, 300]))
    filled = np.array(
        draw(
            st.lists(st.sampled_from([0, 0.02, 0.5, 0.97, 1]), min_size=num_rows, max_size=num_rows)
        )
    )
    rows = rng.standard_normal((num_rows, width)) * 10.0 ** draw(st.sampled_from([-30, 0, 30]))
    rows[rng.random(num_rows) < 0.3] = 1.0
    rows[rng.random((num_rows, width)) >= filled[:, None].reshape(num_rows, 1)] = 0
    return torch.from_numpy(rows).to(draw(st.sampled_from([torch.float32, torch.float64])))


def round_trip(rows: torch.Tensor, row_format: RowFormat) -> torch.Tensor:
    return decode(encode(rows, row_format), tuple(rows.shape), rows.dtype, row_format)


def bits(rows: torch.Tensor) -> torch.Tensor:
    return rows.view({4: torch.int32, 8: torch.int64}[rows.dtype.itemsize])


@given(blocks(), st.sampled_from(ENCODINGS))
def test_full_precision_loses_nothing(rows: torch.Tensor, encoding: coding.Encoding) -> None:
    back = round_trip(rows, RowFormat(encoding))
    assert back.dtype == rows.dtype
    assert torch.equal(bits(back), bits(rows))


@given(blocks(), formats)
def test_csr_is_written_as_its_dense_rows_are(rows: torch.Tensor, row_format: RowFormat) -> None:
    sparse = csr_array(rows.numpy())
    written = encode(sparse, row_format)
    assert torch.equal(written, encode(rows, row_format))
    assert row_sizes(sparse, row_format).tolist() == row_sizes(rows, row_format).tolist()


@given(blocks(), formats)
def test_sizes_are_foretold_row_by_row(rows: torch.Tensor, row_format: RowFormat) -> None:
    sizes = row_sizes(rows, row_format)
    assert sizes.sum() == len(encode(rows, row_format))
    assert sizes.tolist() == [len(encode(row[None], row_format)) for row in rows]


@given(blocks(), st.sampled_from(["full", "bf16", "int8", "int4"]))
def test_sparse_is_at_most_a_header_longer(rows: torch.Tensor, precision: Precision) -> None:
    header = 1 if rows.shape[1] < 128 else 2
    dense, sparse = (row_sizes(rows, RowFormat(encoding, precision)) for encoding in ENCODINGS)
    assert (sparse <= dense + header).all()


@given(blocks(), st.sampled_from(ENCODINGS))
def test_bf16_is_the_nearest(rows: torch.Tensor, encoding: coding.Encoding) -> None:
    back = round_trip(rows, RowFormat(encoding, "bf16"))
    assert torch.equal(back, rows.to(torch.bfloat16).to(rows.dtype))


@given(blocks(), st.sampled_from(ENCODINGS), st.sampled_from([("int8", 127), ("int4", 7)]))
def test_codes_err_by_half_a_step_at_most(
    rows: torch.Tensor, encoding: coding.Encoding, coded: tuple[Precision, int]
) -> None:
    precision, largest = coded
    back = round_trip(rows, RowFormat(encoding, precision))
    peak = rows.abs().amax(dim=1, keepdim=True) if rows.numel() else rows
    assert ((back - rows).abs() <= peak / largest * 0.50001).all()


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_what_is_not_finite_survives_or_is_refused(encoding: coding.Encoding) -> None:
    rows = torch.tensor([[float("nan"), 0.0, float("inf"), 0.0], [0.0, -float("inf"), 1.0, 1e-45]])
    for precision in ("full", "bf16"):
        expected = rows if precision == "full" else rows.to(torch.bfloat16).float()
        torch.testing.assert_close(
            round_trip(rows, RowFormat(encoding, precision)),
            expected,
            rtol=0,
            atol=0,
            equal_nan=True,
        )
    for row_format in (RowFormat(encoding, "int8"), RowFormat(encoding, "int4")):
        for row in (*rows, torch.tensor([1e300], dtype=torch.float64)):
            with pytest.raises(ValueError, match="finite"):
                encode(row[None], row_format)


def test_negative_zero_is_a_zero_to_sparse_only() -> None:
    rows = torch.tensor([[-0.0, 2.0, -0.0, -0.0, -0.0, -0.0, -0.0, -0.0, -0.0]])
    assert torch.equal(bits(round_trip(rows, RowFormat("dense"))), bits(rows))
    assert torch.equal(bits(round_trip(rows, SPARSE)), bits(rows + 0.0))
    assert row_sizes(rows, SPARSE).tolist() == row_sizes(rows.abs(), SPARSE).tolist()


def scales(*values: float) -> list[int]:
    return torch.tensor(values, dtype=torch.float32).view(torch.uint8).tolist()


@pytest.mark.parametrize(
    ("rows", "row_format", "written"),
    [
        # Columns 3 and 9 of 12: 1 low bit would take 2 * 2 + 5 = 9 bits, 2 take 3 * 2 + 2 = 8.
        # High bits: 3 >> 2 = 0 sets bit 0 + 0, 9 >> 2 = 2 sets bit 2 + 1, of four. Low bits:
        # 3 & 3 = 11, 9 & 3 = 01.
        ([[0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0]], SPARSE, [2 * 2 + 1, 0b0111_1001]),
        # A bitmap, a scale and values.
        (
            [[0, 127, 0, 0, -2, 3, 0]],
            RowFormat("sparse", "int8"),
            [2 * 3, 0b0110010, *scales(1), 127, 256 - 2, 3],
        ),
        # Two codes a byte: three values take two bytes, low half first; rows start at a byte.
        (
            [[14, -2, 6], [-7, 3, 7]],
            RowFormat("dense", "int4"),
            [*scales(2, 1), (16 - 1) << 4 | 7, 3, 3 << 4 | (16 - 7), 7],
        ),
        (
            [[0, 7, 0, 0, -2, 3, 0]],
            RowFormat("sparse", "int4"),
            [2 * 3, 0b0110010, *scales(1), (16 - 2) << 4 | 7, 3],
        ),
    ],
    ids=["binary list", "bitmap", "dense int4", "sparse int4"],
)
def test_bytes_by_hand(rows: list[list[float]], row_format: RowFormat, written: list[int]) -> None:
    block = torch.tensor(rows, dtype=torch.float32)
    assert encode(block, row_format).tolist() == written
    assert torch.equal(round_trip(block, row_format), block)


def test_what_int8_rounds_to_zero_is_not_written() -> None:
    """The 1 is a hundredth of the scale: it is not written, and the row is not binary."""
    rows = torch.zeros(1, 64)
    rows[0, [3, 5]] = torch.tensor([1.0, 12_700.0])
    assert row_sizes(rows, RowFormat("sparse", "int8")).tolist() == [1 + 1 + 4 + 1]
    assert round_trip(rows, RowFormat("sparse", "int8")).nonzero().tolist() == [[0, 5]]
    assert round_trip(rows, RowFormat("sparse", "int8"))[0, 5] == 12_700


def test_wide_rows_have_long_headers() -> None:
    rows = torch.zeros(2, 40_000)
    rows[0, [0, 39_999]] = 1
    rows[1] = 3
    assert torch.equal(round_trip(rows, SPARSE), rows)
    assert row_sizes(rows, SPARSE).tolist() == [4 + 4, 4 + 160_000]


@given(blocks(), formats)
def test_blocks_of_many_chunks(rows: torch.Tensor, row_format: RowFormat) -> None:
    in_one_chunk, sizes = round_trip(rows, row_format), row_sizes(rows, row_format)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coding, "_CHUNK_VALUES", 3 * max(1, rows.shape[1]))
        assert torch.equal(round_trip(rows, row_format), in_one_chunk)
        assert row_sizes(rows, row_format).tolist() == sizes.tolist()


@given(blocks(), formats, st.data())
def test_truncated_and_overlong_blocks_are_refused(
    rows: torch.Tensor, row_format: RowFormat, data: st.DataObject
) -> None:
    written = encode(rows, row_format)
    with pytest.raises(ValueError, match="block of"):
        decode(
            torch.cat([written, torch.zeros(1, dtype=torch.uint8)]),
            tuple(rows.shape),
            rows.dtype,
            row_format,
        )
    if len(written):
        cut = written[: data.draw(st.integers(0, len(written) - 1))]
        with pytest.raises(ValueError, match="block of"):
            decode(cut, tuple(rows.shape), rows.dtype, row_format)


@given(blocks(), formats, st.integers(0, 2**32 - 1))
def test_garbled_blocks_raise_nothing_but_value_error(
    rows: torch.Tensor, row_format: RowFormat, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    written = encode(rows, row_format)
    where = rng.random(len(written)) < rng.choice([0.01, 0.1, 1.0])
    written[torch.from_numpy(where)] = torch.from_numpy(
        rng.integers(0, 256, int(where.sum()), dtype=np.uint8)
    )
    try:
        back = decode(written, tuple(rows.shape), rows.dtype, row_format)
    except ValueError:
        return
    assert back.shape == rows.shape


@pytest.mark.parametrize(
    ("block", "width", "message"),
    [
        ([2 * 13], 12, "announces 13 columns in rows of 12"),
        (
            [2 * 2 + 1, 0b0111_0001],
            12,
            "2 values are announced, the code has 1",
        ),  # one high bit for two columns
        ([2 * 2 + 1, 0b0111_0011], 12, "out of order"),  # columns 3 and 1
        ([2 * 2 + 1, 0b1111_0011], 12, "out of order"),  # column 3 twice
        ([2 * 2 + 1, 0b0111_1001], 11, None),  # columns 3 and 9
        ([2 * 2 + 1, 0b1111_1001], 11, "beyond the width"),  # columns 3 and 11
        ([2 * 3 + 1, 0b0011], 7, "bitmap"),
        ([2 * 3 + 1, 0b1000_0011], 7, "bitmap"),  # a bit beyond the last column
    ],
)
def test_impossible_columns_are_refused(block: list[int], width: int, message: str | None) -> None:
    buffer = torch.tensor(block, dtype=torch.uint8)
    if message is None:
        assert decode(buffer, (1, width), torch.float32, SPARSE).nonzero()[:, 1].tolist() == [3, 9]
        return
    with pytest.raises(ValueError, match=message):
        decode(buffer, (1, width), torch.float32, SPARSE)


# --- columns of different scales ----------


def table(*sizes: float, zeros: float = 0) -> torch.Tensor:
    """Normal columns [200, n] of these standard deviations, some cells of which are zero."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((200, len(sizes))) * sizes * (rng.random((200, len(sizes))) >= zeros)
    return torch.from_numpy(rows.astype(np.float32))


@pytest.mark.parametrize(
    ("rows", "exponents"),
    [
        (table(1, 1, 55), [0, 0, 6]),
        (table(0.25, 4000), [-2, 12]),
        (table(1, 10), None),  # seen beside each other in four bits
        (torch.cat([table(1, 9, 400, zeros=0.9), table(2)], dim=1), [8, 8, 8, 1]),
        (table(1, 9, 300, zeros=0.9), None),  # mostly zero: columns of one kind
        (torch.cat([table(1, 60), torch.zeros(200, 1)], dim=1), [0, 6, 0]),
        (torch.full((4, 2), torch.nan), None),
        (torch.empty(0, 3), None),
        (torch.tensor([[1e30, 1e-30]] * 3), [100, -100]),
    ],
)
def test_columns_that_would_be_lost_get_exponents(
    rows: torch.Tensor, exponents: list[int] | None
) -> None:
    chosen = choose_exponents(rows, "int4")
    assert (None if chosen is None else chosen.tolist()) == exponents
    assert choose_exponents(rows, "full") is None


@pytest.mark.parametrize("as_csr", [False, True])
def test_divided_columns_come_back(as_csr: bool) -> None:
    rows = table(1, 60, 3000, zeros=0.3)
    exponents = choose_exponents(rows, "int4")
    undivided = csr_array(rows.numpy()) if as_csr else rows.clone()
    for encoding in ENCODINGS:
        row_format = RowFormat(encoding, "full")
        block = encode(divide_columns(undivided, exponents), row_format)
        block = torch.cat([exponents.view(torch.uint8), block])
        back = decode_scaled(block, (200, 3), torch.float32, row_format)
        assert torch.equal(back, rows)
        undivided = csr_array(rows.numpy()) if as_csr else rows.clone()
    with pytest.raises(ValueError, match="ends before"):
        decode_scaled(block[:2], (200, 3), torch.float32, RowFormat())


@pytest.mark.parametrize(
    ("weights", "size"),
    [
        ([], 2),
        ([2.5] * 1000, 2 + 4),
        ([1.0, 3.0] * 500, 2 + 8 + 125),
        (np.arange(5) + 0.5, 2 + 20),  # a table would be longer
        (np.arange(1000) % 256, 2 + 1024 + 1000),
        (np.arange(1000) % 257, 2 + 4000),
        (np.random.default_rng(0).random(999), 2 + 4 * 999),
    ],
)
def test_weights_come_back_in_so_many_bytes(weights: list[float], size: int) -> None:
    values = np.array(weights, np.float32)
    code = encode_weights(values)
    assert len(code) == size
    np.testing.assert_array_equal(decode_weights(code, len(values)), values)


def test_a_code_of_another_length_is_refused() -> None:
    code = encode_weights(np.array([1.0, 3.0] * 8, np.float32))
    with pytest.raises(ValueError, match="11 bytes for 16 weights of 2 values"):
        decode_weights(code[:-1], 16)


without_hurry = settings(deadline=None)  # other processes may hold the cores


@st.composite
def sets(draw: st.DrawFn) -> tuple[IntArray, int]:
    """Sorted values, some repeated, and their exclusive upper bound."""
    universe = draw(st.sampled_from([1, 2, 3, 8, 100, 1 << 20, 1 << 40]))
    values = draw(st.lists(st.integers(0, universe - 1), max_size=40))
    return np.array(sorted(values), dtype=np.int64), universe


@pytest.mark.parametrize("at_once", [VALUES_PER_BLOCK, 8])
@without_hurry
@given(sorted_values=sets())
def test_values_come_back(sorted_values: tuple[IntArray, int], at_once: int) -> None:
    values, universe = sorted_values
    with (
        mock.patch.multiple(elias_fano, VALUES_PER_BLOCK=at_once, BITS_PER_BLOCK=at_once),
        torch_threads(2),
    ):
        code = encode_sorted(values, universe)
        assert decode_sorted(code, len(values), universe).tolist() == values.tolist()
    assert code.dtype == np.uint8
    assert len(code) == encoded_size(len(values), universe)


@pytest.mark.parametrize("place", range(1, 17))
def test_values_that_fall_are_refused_wherever_they_do(place: int) -> None:
    values = np.array([5] * place + [3] * (17 - place))
    code = encode_sorted(values, 1 << 20)  # 16 bits of each are low ones
    with (
        mock.patch.object(elias_fano, "VALUES_PER_BLOCK", 8),
        pytest.raises(ValueError, match="not ascending"),
    ):
        decode_sorted(code, 17, 1 << 20)


@without_hurry
@given(st.integers(0, 10_000), st.integers(1, 1 << 40))
def test_a_code_is_at_most_two_bits_a_value_and_their_logarithm(count: int, universe: int) -> None:
    bits = count * (2 + max(0.0, math.log2(universe / max(count, 1)))) if count else 0
    assert encoded_size(count, universe) <= (bits + 7.001) / 8


@pytest.mark.parametrize(
    ("values", "universe", "code"),
    [
        ([], 9, []),
        ([], 0, []),
        ([0], 1, [0b1]),
        ([0, 1, 3], 4, [0b100101]),  # 0, 1, 3 and their ranks 0, 1, 2: bits 0, 2, 5
        ([2, 2, 2], 3, [0b11100]),
        ([5], 8, [0b0110]),  # 5 >> 2 sets bit 1 of two; then 01, what is left of 5, in two bits
    ],
)
def test_codes_by_hand(values: list[int], universe: int, code: list[int]) -> None:
    assert encode_sorted(np.array(values, dtype=np.int64), universe).tolist() == code


@pytest.mark.parametrize(
    ("code", "count", "universe", "message"),
    [
        ([0b1, 0], 1, 1, "1 values below 1 take 1 bytes, not 2"),
        ([], 1, 1, "take 1 bytes, not 0"),
        ([0], 0, 5, "take 0 bytes, not 1"),
        ([0b0], 1, 1, "1 values are announced, the code has 0"),
        ([0b100101], 2, 5, "2 values are announced, the code has 3"),
        ([0b1110], 1, 7, "not ascending below 7"),  # 7
        (
            [0b1101100, 0],
            2,
            16,
            "not ascending below 16",
        ),  # 11, then 8: the last four bits are 11 00
        ([], 1, 0, "1 values are announced, the code has 0"),
    ],
)
def test_bad_codes_are_refused(code: list[int], count: int, universe: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode_sorted(np.array(code, dtype=np.uint8), count, universe)


@without_hurry
@given(sets(), st.data())
def test_what_is_read_would_be_written_so(
    sorted_values: tuple[IntArray, int], data: st.DataObject
) -> None:
    """A damaged code is rejected or decodes to values with that code, except for the padding."""
    values, universe = sorted_values
    code = encode_sorted(values, universe)
    for bit in (
        data.draw(st.sets(st.integers(0, max(8 * len(code) - 1, 0)), max_size=3))
        if len(code)
        else ()
    ):
        code[bit // 8] ^= 1 << bit % 8
    try:
        read = decode_sorted(code, len(values), universe)
    except ValueError:
        return
    assert all(0 <= value < universe for value in read)
    written = encode_sorted(read, universe)
    assert written.tolist()[:-1] == code.tolist()[:-1]
    assert not len(code) or written[-1] & code[-1] == written[-1]
