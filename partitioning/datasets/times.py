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

from partitioning.array_checks import Array, Ints
from partitioning.datasets.cells import Cells
from partitioning.errors import InputError

CLOCK = (
    r"(?P<hour>\d\d?):(?P<minute>\d\d)(?::(?P<second>\d\d(?:[.,]\d+)?))?\s*(?P<half>[ap]m)?"
    r"\s*(?:z|utc|gmt|(?P<zone>[+-]\d\d(?::?\d\d)?))?"
)
DATE = re.compile(
    r"(?:(?P<year>\d{4})([-/.])(?P<month>\d\d?)\2(?P<day>\d\d?)"
    rf"|(?P<one>\d\d?)(?P<mark>[-/.])(?P<two>\d\d?)(?P=mark)(?P<last>\d{{4}}))(?:[T ,]\s*{CLOCK})?",
    re.IGNORECASE,
)
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


def is_date(text: str) -> bool:
    """Return whether a text has the form of a date, in numbers."""
    text = text.strip()
    return DATE.fullmatch(text) is not None or not np.isnan(_parse_iso(text))


def to_seconds(times: Array) -> NDArray[np.float64]:
    """Return datetime64 as seconds since 1970, NaN for NaT."""
    seconds = times.astype("datetime64[us]").astype(np.int64) / 1e6
    return np.where(np.isnat(times), np.nan, seconds)


def read_times(cells: Cells) -> NDArray[np.float64]:
    """Return the times of a column [K], seconds since 1970, NaN where blank; numbers as they are.

    InputError for a cell that is none, or a date whose day may be the month.
    """
    import pyarrow as pa

    if cells.kind in ("number", "blank"):
        return np.asarray(cells.data.to_numpy(), np.float64)
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


def _parse_texts(cells: Cells, codes: Ints, texts: list[str]) -> NDArray[np.float64]:
    """Return the times of different texts; codes: which one each row has, [K]."""

    def refuse(place: int, expected: str) -> NoReturn:
        cells.refuse(int((codes == place).argmax()), expected, texts[place])

    numbers = np.array([_number(text) for text in texts])
    is_number = np.isfinite(numbers)
    if is_number.all():
        return numbers
    values = np.array([_parse_iso(text) for text in texts])
    values[is_number] = np.nan  # 20240131 beside dates
    named = [place for place, text in enumerate(texts) if WITH_MONTH.match(text)]
    values[named] = _parse_month_names([texts[place] for place in named])
    by_text: dict[int, dict[str, float]] = {}
    orders, unclear = dict.fromkeys(ORDERS, ""), ""
    for place in np.flatnonzero(np.isnan(values)).tolist():
        if is_number[place] or not texts[place]:
            continue
        match = DATE.fullmatch(texts[place])
        if match is None:
            refuse(place, EXPECTED)
        by_text[place] = seconds = _seconds(match)
        if match["mark"] not in ("/", "-"):
            continue
        kept = [order for order in orders if not np.isnan(seconds[order])]
        if not kept:
            refuse(place, _expect_order(seconds, orders))
        if np.isnan([*seconds.values()]).any():  # a text that rules the other order out
            orders = {order: orders[order] or texts[place] for order in kept}
        elif seconds["day"] != seconds["month"]:
            unclear = unclear or texts[place]
    if unclear and len(orders) > 1:
        raise InputError(
            f"{cells.where}: {unclear!r} may have the day or the month first, and so may all other"
            " rows; write 2024-01-31, or 31.01.2024"
        )
    if is_number.any():
        expected = "expected a number" if is_number[0] else EXPECTED
        refuse(int((is_number != is_number[0]).argmax()), f"{expected}, as in the rows before")
    for place, seconds in by_text.items():
        values[place] = seconds[next(iter(orders))]
        if np.isnan(values[place]):
            refuse(place, EXPECTED)
    return values


def _expect_order(seconds: dict[str, float], orders: dict[str, str]) -> str:
    """Return what a message expects of a text that is no date in the order of the others."""
    if np.isnan([*seconds.values()]).all():
        return EXPECTED
    order, example = next(iter(orders.items()))
    return f"expected the {order} first, as in {example!r}, in all rows; or write 2024-01-31"


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
    """Return the seconds since 1970 of texts with the name of a month, NaN of others."""
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


def _seconds(match: re.Match[str]) -> dict[str, float]:
    """Return the seconds since 1970 of a match of DATE, by what comes first, the day or the month.

    NaN where there is no such day or time.
    """
    if match["year"]:
        date = _seconds_of_day(match["year"], match["month"], match["day"])
        by_order = dict.fromkeys(ORDERS, date)
    else:
        year, one, two = match["last"], match["one"], match["two"]
        day_first = _seconds_of_day(year, two, one)
        is_dotted = match["mark"] == "."
        month_first = day_first if is_dotted else _seconds_of_day(year, one, two)
        by_order = {"day": day_first, "month": month_first}
    if match["hour"] is None:
        return by_order
    time = _seconds_of_clock(match)
    return {order: date + time for order, date in by_order.items()}


def _seconds_of_day(year: str, month: str, day: str) -> float:
    """Return the seconds from 1970 to the begin of a day; NaN where there is no such day."""
    try:
        return (
            datetime.date(int(year), int(month), int(day)).toordinal() - START.toordinal()
        ) * DAY
    except ValueError:
        return np.nan


def _seconds_of_clock(match: re.Match[str]) -> float:
    """Return the seconds since midnight in UTC, which may be below 0; NaN for no time of a day."""
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
