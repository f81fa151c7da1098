"""Converts one column of a table, all of its rows at once.

A csv has texts, of which those that are numbers are kept as numbers where that loses nothing;
parquet has types. K rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from partitioning.errors import InputError
from partitioning.graph.array_checks import (
    MAX_EXACT,
    Array,
    Ints,
    are_rounded,
    are_whole,
    check_integers,
    refuse,
)
from partitioning.graph.schema import Source

if TYPE_CHECKING:
    import pyarrow as pa

BLANK = (
    *("", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None"),
    *("#N/A", "<NA>", "\\N"),  # of Excel, pandas, and MySQL and Postgres
)
"""Texts that mean a blank cell in a column of numbers."""
NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$|^[+-]?(?i:nan|inf|infinity)$"
DECIMAL_COMMA = r"^[+-]?(\d+(,\d*)?|,\d+)([eE][+-]?\d+)?$"
GROUPED = r"^[+-]?\d{1,3}([., '\x{2019}\x{a0}\x{202f}]\d{3})+([.,]\d+)?$"
"""A number whose thousands are set apart, such as 1,234.5 or 1 234,5."""
INVISIBLE = (
    "".join(chr(code) for code in range(0x3001) if chr(code).isspace())
    + "\0\u200b\u200c\u200d\u2060\ufeff"
)
"""Letters that an id cannot have alone: spaces, also of no width."""
TRUE, FALSE = ("true", "yes", "y", "t"), ("false", "no", "n", "f")
ABOVE_ZERO = "^[^eE]*[1-9]"
"""Matches the texts of numbers that are not 0."""
SMALLEST = 5e-324
"""The smallest float64 above 0."""
POWERS = 10 ** np.arange(1, 19, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Cells:
    """One column of a table."""

    path: Source
    """The table, for messages."""
    name: str
    data: "pa.ChunkedArray"

    def __len__(self) -> int:
        return len(self.data)

    @property
    def where(self) -> str:
        return f"{self.path}: column `{self.name}`"

    @property
    def kind(self) -> str:
        """Return number, boolean, text, list, date, blank or the name of another type.

        A date may also be a time or a duration. In a blank column every cell is null, or there is
        none.
        """
        from pyarrow import types

        kind = self.data.type
        kinds = {
            "number": types.is_integer(kind) or types.is_floating(kind),
            "boolean": types.is_boolean(kind),
            "text": types.is_string(kind),
            "list": types.is_list(kind) or types.is_fixed_size_list(kind),
            "date": types.is_temporal(kind),
        }
        if self.data.null_count == len(self):
            return "blank"
        return next((name for name, fits in kinds.items() if fits), str(kind))

    @property
    def known(self) -> NDArray[np.bool_]:
        """Whether each cell has a value, [K]; a NaN is one."""
        valid: NDArray[np.bool_] = self.data.is_valid().to_numpy()
        return valid

    def refuse(self, row: int, expected: str, shown_cells: Any = None) -> NoReturn:
        """Raise an InputError for the cell in a row; `expected` may begin with a comma.

        `shown_cells`: what to show in place of the cell.
        """
        try:
            value = self.data[row].as_py() if shown_cells is None else shown_cells
        except (OverflowError, ValueError):  # a time beyond the year 9999
            value = self.data[row].value
        value = float(value) if isinstance(value, np.floating) else value
        is_whole = isinstance(value, float) and value.is_integer() and abs(value) < MAX_EXACT
        text = "blank" if value is None else repr(int(value) if is_whole else value)
        text = text if len(text) <= 60 else f"{text[:57]}..."
        comma = "" if expected.startswith(",") else "; "
        raise InputError(f"{self.where}, row {row} is {text}{comma}{expected}")

    def refuse_first(self, wrong: NDArray[np.bool_], expected: str) -> None:
        """Raise an InputError for the first cell that is wrong, [K], if there is one."""
        if wrong.any():
            self.refuse(int(wrong.argmax()), expected)

    def numbers(self, expected: str = "expected a number") -> Array:
        """Return the cells as numbers [K] of their dtype, else float64, NaN where blank.

        InputError for the first other cell, and for infinity in a column of texts.
        """
        import pyarrow.compute as pc

        if self.kind == "blank":
            return np.full(len(self), np.nan)
        if self.kind in ("number", "boolean"):
            values: Array = self.data.to_numpy()
            values = values.astype(np.float64) if values.dtype == object else values
        else:
            text = trim(self.texts(expected))
            fits = pc.match_substring_regex(text, NUMBER)
            self.refuse_first(pc.invert(fits).fill_null(False).to_numpy(), expected)
            values = np.asarray(to_float64(text).to_numpy())
            self.refuse_first(np.isinf(values), expected)
        return values

    def whole_numbers(self, expected: str) -> Ints:
        """Return the cells as int64 [K], also whole floats; InputError for the first other cell.

        That may be a blank one, or a float that several integers are rounded to.
        """
        self._refuse_rounded()
        values = self.numbers(expected)
        if values.dtype.kind == "f":
            self.refuse_first(~np.isfinite(values), expected)
            refuse(values, ~are_whole(values), self.where, expected)
            return values.astype(np.int64)
        return check_integers(values, self.where)

    def with_digits(self) -> "Cells":
        """Return texts with 1 for the words TRUE, 0 for FALSE and null for BLANK; others as is."""
        return replace(self, data=words_to_digits(trim(self.data))) if self.kind == "text" else self

    def flags(self) -> NDArray[np.bool_]:
        """Return True and False, or 1 and 0, as bool [K]; a blank cell is False.

        InputError for another value.
        """
        expected = "expected True or False, or 1 or 0"
        values = self.with_digits().numbers(expected)
        self.refuse_first((values != 0) & (values != 1) & ~np.isnan(values), expected)
        return np.asarray(values == 1)

    def texts(self, expected: str = "expected a number or a text: write it as one") -> Any:
        """Return the cells as pyarrow texts, whole floats without .0, null where null.

        InputError for a list or bytes.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        if self.kind not in ("number", "boolean", "text", "date", "blank"):
            self.refuse(int(self.known.argmax()), f", of type {self.data.type}; {expected}")
        if self.kind == "boolean":
            return pc.if_else(self.data, "True", "False")
        whole = self.to_integers() if pa.types.is_floating(self.data.type) else None
        return (whole or self).data.cast(pa.string())

    def factorize(self) -> tuple[Ints, list[str]]:
        """Return int64 positions [K] in the list of different texts, and this list.

        Texts are in the order in which they appear. -1 where a cell is missing; a text of blanks is
        a text. InputError for lists or bytes.
        """
        data = self.texts().dictionary_encode()
        if not data.num_chunks:
            return np.empty(0, np.int64), []
        codes = [chunk.indices.fill_null(-1).to_numpy() for chunk in data.chunks]
        return np.concatenate(codes).astype(np.int64), data.chunk(0).dictionary.to_pylist()

    def to_integers(self) -> "Cells | None":
        """Return the cells as int64; None unless each is an integer as Python writes it, or 1.0.

        None also for a null cell, and an integer beyond int64.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        data = self.data
        if data.null_count or (self.kind not in ("number", "text") and len(self)):
            return None
        if pa.types.is_floating(data.type) and not are_whole(data.to_numpy()).all():
            return None
        try:
            if self.kind == "text":
                data = pc.replace_substring_regex(trim(data), r"^(-?\d+)\.0*$", r"\1")
            integers = data.cast(pa.int64())
        except pa.ArrowInvalid:
            return None
        is_same = self.kind != "text" or pc.all(pc.equal(integers.cast(pa.string()), data)).as_py()
        # NaN as a text is null now.
        return replace(self, data=integers) if is_same and not integers.null_count else None

    def to_whole(self, expected: str) -> "Cells":
        """Return the cells as int64, also whole floats and texts of whole numbers.

        InputError for others and blanks, and for 007, which is a name. expected: what the message
        ends with, for most of them.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        integers = self.to_integers()
        if integers is None:
            if self.kind == "text":
                is_padded = pc.match_substring_regex(self.data, r"^\s*[+-]?0\d")
                padded = is_padded.fill_null(False).to_numpy()
                self.refuse_first(padded, f", a name by its leading zeros; {expected}")
            return replace(self, data=pa.chunked_array([self.whole_numbers(expected)]))
        return integers

    def pieces(self) -> Iterator[Array]:
        """Yield the cells piece by piece: as int64, or objects of str, a third of the memory.

        InputError for lists or bytes.
        """
        from pyarrow import types

        data = self.data if types.is_int64(self.data.type) else self.texts()
        for chunk in data.chunks:
            yield chunk.to_numpy(zero_copy_only=False)

    def ids(self) -> Array:
        """Return ids: int64 [K], or names, object [K]; InputError for a blank one."""
        self.check_ids()
        integers = self.to_integers()
        if integers is None:
            integers = replace(self, data=self.texts())
        return np.concatenate(
            [np.empty(0, integers.data.type.to_pandas_dtype()), *integers.pieces()]
        )

    def check_ids(self) -> None:
        """Raise InputError for a blank cell, or a float that several ids are rounded to."""
        import pyarrow.compute as pc
        from pyarrow import types

        self._refuse_rounded()
        blank = ~self.known
        if self.kind == "text":
            blank |= pc.equal(pc.utf8_trim(self.data, INVISIBLE), "").fill_null(True).to_numpy()
        elif types.is_floating(self.data.type):
            blank |= np.isnan(self.data.to_numpy())
        if blank.any():
            row = int(blank.argmax())
            raise InputError(f"{self.where}, row {row} is blank; expected a node's id")

    def _refuse_rounded(self) -> None:
        """Raise InputError for the first float that several integers are rounded to."""
        from pyarrow import types

        if types.is_floating(self.data.type):
            values = self.data.to_numpy()
            expected = f", a {values.dtype} that several integers round to; write integers or texts"
            self.refuse_first(are_rounded(values), expected)

    def labels(self) -> Array | tuple[Ints, list[str]]:
        """Return classes as numbers, NaN or -1 where blank; or as `factorize` does.

        That is so if some are texts, lists, or numbers that float64 does not hold. InputError for a
        list whose texts have | , or ; and for a float that several integers are rounded to.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        if self.kind == "blank":
            return np.full(len(self), np.nan)
        if self.kind == "list" and not pa.types.is_nested(self.data.type.value_type):
            inner = pc.binary_join(self.data.cast(pa.list_(pa.string())), "|")
            marks = pc.count_substring_regex(inner, "[|;,]").fill_null(0).to_numpy()
            lengths = pc.list_value_length(self.data).fill_null(0).to_numpy()
            self.refuse_first(marks >= np.maximum(lengths, 1), "write labels without | , and ;")
            texts = pc.binary_join_element_wise("[", inner, "]", "")
            return replace(self, data=texts).factorize()
        if self.kind != "number":
            return self.factorize()
        self._refuse_rounded()
        values: Array = self.data.to_numpy()  # floats also where an integer is blank
        has_rounded = values.dtype.kind == "f" and are_rounded(values).any()
        return self.factorize() if has_rounded else values


def trim(text: Any) -> Any:
    """Return texts without blanks around them, null where a text is one of BLANK."""
    import pyarrow as pa
    import pyarrow.compute as pc

    trimmed = pc.utf8_trim_whitespace(text)
    is_blank = pc.is_in(trimmed, pa.array(BLANK))
    return pc.if_else(is_blank, pa.scalar(None, trimmed.type), trimmed)


def words_to_digits(text: Any) -> Any:
    """Return texts with 1 for the words TRUE and 0 for FALSE; other texts as they are."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for words, digit in ((TRUE, "1"), (FALSE, "0")):
        text = pc.if_else(pc.is_in(pc.utf8_lower(text), pa.array(words)), digit, text)
    return text


def has_leading_zeros(text: "pa.Array") -> bool:
    """Return whether a text begins as 007 does, which is a code rather than a number."""
    import pyarrow.compute as pc

    return bool(pc.any(pc.match_substring_regex(text, r"^0\d")).as_py())


def as_numbers(text: "pa.Array") -> "pa.Array | None":
    """Return texts as float64, null where blank; None if one is no number."""
    import pyarrow as pa

    try:
        return to_float64(text)
    except pa.ArrowInvalid:
        pass
    try:
        return to_float64(trim(text))
    except pa.ArrowInvalid:
        return None


def to_float64(text: Any) -> Any:
    """Return texts as float64; ArrowInvalid if one is no number.

    What is above 0 is never returned as 0: 1e-400 is SMALLEST.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    values = text.cast(pa.float64())
    is_zero = pc.equal(values, 0)
    if pc.any(pc.match_substring_regex(text.filter(is_zero), ABOVE_ZERO)).as_py():
        is_small = pc.and_(is_zero, pc.match_substring_regex(text, ABOVE_ZERO))
        values = pc.if_else(is_small, SMALLEST, values)
    return values


def as_integers(text: "pa.Array") -> "pa.Array":
    """Return texts as int64 if each is an integer as Python writes it, null where blank.

    Else the texts, without blanks at their begin and quotes after these.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if pc.any(pc.starts_with(text, " ")).as_py():
        text = pc.replace_substring_regex(text, r'^ +(?:"(.*)"|(.*))$', r"\1\2")
    try:
        integers = text.cast(pa.int64())
    except pa.ArrowInvalid:
        return text
    values = integers.fill_null(0).to_numpy()
    lengths = pc.binary_length(text).fill_null(1).to_numpy()
    digits = 1 + np.searchsorted(POWERS, np.abs(values), side="right") + (values < 0)
    is_plain = (digits == lengths).all() and not (
        lengths.max(initial=0) >= 10 and pc.any(pc.match_substring(text, "x")).as_py()
    )  # 0x0000000A is 10 for pyarrow
    return integers if is_plain else text


def read_decimal_commas(cells: Cells, separator: str) -> Cells:
    """Return a column of a csv with numbers such as 2,5 as numbers if semicolons separate cells.

    Another column stays as it is.

    Raises:
        InputError: all cells are numbers, some with a comma and others with a point; or some may
            have separators of thousands, or commas may separate something else.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    text = trim(cells.data)
    has_comma = pc.match_substring_regex(text, ",").fill_null(False)
    german = pc.match_substring_regex(text, DECIMAL_COMMA).fill_null(True)
    grouped = pc.match_substring_regex(text, r"^[+-]?\d{1,3}(\.\d{3})+(,\d*)?$").fill_null(False)
    number = pc.match_substring_regex(text, NUMBER).fill_null(True)
    if not pc.any(has_comma).as_py() or not pc.all(pc.or_(pc.or_(german, number), grouped)).as_py():
        return cells
    if separator != ";":
        remedy = (
            ", a decimal comma or a list; write the number with a point, or separate columns by"
            " semicolons"
        )
        cells.refuse(has_comma.index(True).as_py(), remedy)
    has_points_only_in_thousands = pc.all(pc.or_(german, grouped)).as_py()
    remedy = (
        ", a number with a separator of thousands; write it without"
        if has_points_only_in_thousands
        else ", a number with a decimal point, others have decimal commas; write one of them"
    )
    cells.refuse_first(pc.invert(german).to_numpy(), remedy)
    points = pc.replace_substring(text, ",", ".").cast(pa.float64())
    return Cells(cells.path, cells.name, points)
