"""Reads a column of times as numbers.

Numbers stay as they are; dates become seconds since 1970, in UTC where they have no zone; durations
become seconds.

Dates with the year first are ISO 8601, dates with dots have the day first. Of 01/02/2024 and
01-02-2024 the whole column decides: day and month are in the order that fits all of its cells.
"""

import datetime
import re
import warnings
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from partitioning.errors import InputError
from partitioning.graph.array_checks import Array, Ints
from partitioning.read.cells import Cells

CLOCK = (
    r"(?P<hour>\d\d?):(?P<minute>\d\d)(?::(?P<second>\d\d(?:[.,]\d+)?))?\s*(?P<half>[ap]m)?"
    r"\s*(?:z|utc|gmt|(?P<zone>[+-]\d\d(?::?\d\d)?))?"
)
DATE = re.compile(
    r"(?:(?P<year>\d{4})([-/.])(?P<month>\d\d?)\2(?P<day>\d\d?)"
    rf"|(?P<one>\d\d?)(?P<mark>[-/.])(?P<two>\d\d?)(?P=mark)(?P<last>\d{{4}}))(?:[T ,]\s*{CLOCK})?",
    re.IGNORECASE,
)
SHORT = re.compile(r"\d\d?/\d\d?/\d\d")
"""Dates with a year of two digits, which are none of 1970 or 2070 for certain."""
ISO = re.compile(r"\d{4}-?(\d\d|W\d\d).*")
"""Texts that may be of ISO 8601."""
WITH_MONTH = re.compile(
    r"(?=.*\b\d{4}\b).*\b(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)", re.I
)
"""Texts with a year and the name of a month, such as 31 Jan 2024."""
EXPECTED = (
    "expected a date, such as 2024-01-31, 2024-01-31T12:00:00 or 31.01.2024, with the year in four"
    " digits"
)
DAY = 86400.0
START = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
ORDERS = ("day", "month")
FIRST_DAY, LAST_DAY = 19000101, 21001231
"""Numbers between them may be dates without dashes, such as 20240131."""


def are_dates(texts: list[str]) -> bool:
    """Return whether all texts have the form of a date; they come without blanks around them."""
    if not all(
        any(form.fullmatch(text) for form in (DATE, SHORT))
        or WITH_MONTH.match(text)
        or not np.isnan(_parse_iso(text))
        for text in texts
    ):
        return False
    named = [text for text in texts if WITH_MONTH.match(text)]
    return not np.isnan(_parse_month_names(named)).any()


def to_seconds(times: Array) -> NDArray[np.float64]:
    """Return datetime64 as seconds since 1970, NaN for NaT."""
    seconds = times.astype("datetime64[us]").astype(np.int64) / 1e6
    return np.where(np.isnat(times), np.nan, seconds)


def read_times(cells: Cells) -> NDArray[np.float64]:
    """Return the times of a column [K], seconds since 1970, NaN where blank.

    Numbers stay as they are, unless all are dates such as 20240131. Durations become seconds.
    InputError for a cell that is none, or a date whose day may be the month.
    """
    import pyarrow as pa

    if cells.kind in ("number", "blank"):
        numbers = np.asarray(cells.data.to_numpy(), np.float64)
        dates = parse_compact(numbers)
        return numbers if dates is None else dates
    kind = cells.data.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        unit = pa.timestamp("us", getattr(kind, "tz", None))
        seconds = cells.data.cast(unit, safe=False).cast(pa.int64()).to_numpy() / 1e6
        return np.asarray(seconds, np.float64)
    if pa.types.is_duration(kind):
        data = cells.data.cast(pa.duration("us"), safe=False)
        return np.asarray(data.cast(pa.int64()).to_numpy() / 1e6, np.float64)
    if cells.kind != "text":
        cells.refuse(int(cells.known.argmax()), EXPECTED)
    codes, texts = cells.factorize()
    return np.append(_parse_texts(cells, codes, [text.strip() for text in texts]), np.nan)[codes]


def parse_compact(numbers: Array) -> NDArray[np.float64] | None:
    """Return numbers such as 20240131 [K] as seconds since 1970; None unless all are such dates."""
    is_known = ~np.isnan(numbers)
    known = numbers[is_known]
    if not len(known) or known.min() < FIRST_DAY or known.max() > LAST_DAY:
        return None
    different, place = np.unique(known, return_inverse=True)
    seconds = np.full(len(numbers), np.nan)
    seconds[is_known] = np.array([_parse_iso(f"{day:.9g}") for day in different])[place]
    return None if (np.isnan(seconds) & is_known).any() else seconds


def _parse_texts(cells: Cells, codes: Ints, texts: list[str]) -> NDArray[np.float64]:
    """Return the times of different texts, in their order; InputError names a row that has none.

    codes: which text each row has, [K].
    """

    def refuse(place: int, expected: str) -> NoReturn:
        cells.refuse(int((codes == place).argmax()), expected, texts[place])

    numbers = np.array([_number(text) for text in texts])
    is_number = np.isfinite(numbers)
    if is_number.all():
        return numbers
    seconds = np.array([_parse_date(text) for text in texts])
    named = [place for place, text in enumerate(texts) if WITH_MONTH.match(text)]
    seconds[named] = _parse_month_names([texts[place] for place in named])[:, None]
    is_known = ~is_number & np.array([text != "" for text in texts])
    lacks = is_known[:, None] & np.isnan(seconds)
    if lacks.all(axis=1).any():
        refuse(int(lacks.all(axis=1).argmax()), EXPECTED)
    if lacks.any(axis=0).all():  # two texts rule out an order each
        (first, _), (place, order) = sorted(zip(lacks.argmax(axis=0), ORDERS, strict=True))
        example = f"as in {texts[first]!r}, in all rows; or write 2024-01-31"
        refuse(place, f"expected the {order} first, {example}")
    is_unclear = is_known & (seconds[:, 0] != seconds[:, 1])
    if is_unclear.any() and not lacks.any():
        raise InputError(
            f"{cells.where}: {texts[is_unclear.argmax()]!r} may have the day or the month first,"
            " and so may all other rows; write 2024-01-31, or 31.01.2024"
        )
    if is_number.any():
        expected = "expected a number" if is_number[0] else EXPECTED
        refuse(int((is_number != is_number[0]).argmax()), f"{expected}, as in the rows before")
    return np.asarray(seconds[:, int(lacks[:, 0].any())])


def _parse_date(text: str) -> tuple[float, float]:
    """Return the seconds since 1970 of a text, by what comes first in it, as in ORDERS.

    NaN where there is no such day or time.
    """
    iso = _parse_iso(text)
    match = DATE.fullmatch(text) if np.isnan(iso) else None
    if match is None:
        return iso, iso
    year, one, two = match["year"] or match["last"], match["one"], match["two"]
    time = _seconds_of_clock(match)
    day_first = time + _seconds_of_day(year, match["month"] or two, match["day"] or one)
    if match["mark"] not in ("/", "-"):
        return day_first, day_first
    return day_first, time + _seconds_of_day(year, one, two)


def _parse_iso(text: str) -> float:
    """Return the seconds since 1970 of a text of ISO 8601, NaN of another."""
    if not ISO.fullmatch(text):
        return np.nan
    try:
        time = datetime.datetime.fromisoformat(f"{text}-01" if len(text) == 7 else text)
    except ValueError:
        return np.nan
    return (time.replace(tzinfo=time.tzinfo or datetime.UTC) - START).total_seconds()


def _parse_month_names(texts: list[str]) -> NDArray[np.float64]:
    """Return the seconds since 1970 of texts, such as 2 Jan 2024, as pandas reads them, or NaN."""
    import pandas as pd

    with warnings.catch_warnings(action="ignore"):
        times = pd.to_datetime(
            pd.Series(texts, dtype="str"), format="mixed", utc=True, errors="coerce"
        )
    return to_seconds(times.dt.tz_localize(None).to_numpy())


def _number(text: str) -> float:
    """Return a number; NaN of another text."""
    try:
        return float(text)
    except ValueError:
        return np.nan


def _seconds_of_day(year: str, month: str, day: str) -> float:
    """Return the seconds from 1970 to the begin of a day; NaN where there is no such day."""
    try:
        return (
            datetime.date(int(year), int(month), int(day)).toordinal() - START.toordinal()
        ) * DAY
    except ValueError:
        return np.nan


def _seconds_of_clock(match: re.Match[str]) -> float:
    """Return the seconds since midnight in UTC, which may be below 0; NaN for no time of a day.

    0 without a clock.
    """
    if match["hour"] is None:
        return 0.0
    hour, minute = int(match["hour"]), int(match["minute"])
    second = float((match["second"] or "0").replace(",", "."))
    if match["half"]:
        if not 1 <= hour <= 12:
            return np.nan
        hour = hour % 12 + 12 * (match["half"].lower() == "pm")
    if hour > 23 or minute > 59 or second >= 60:
        return np.nan
    zone = (match["zone"] or "+00").replace(":", "").ljust(5, "0")
    offset = int(zone[0] + "1") * (int(zone[1:3]) * 3600 + int(zone[3:5]) * 60)
    return hour * 3600 + minute * 60 + second - offset
