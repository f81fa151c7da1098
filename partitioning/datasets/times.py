"""Reads a column of times as numbers.

Numbers stay as they are; dates become seconds since 1970, in UTC where they have no zone; durations
become seconds.

Dates with the year first are ISO 8601, dates with dots have the day first. Of 01/02/2024 and
01-02-2024 the whole column decides: day and month are in the order that fits all of its cells.
"""

import datetime
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from partitioning.array_checks import Array
from partitioning.datasets.frames import ReadAgain
from partitioning.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

CLOCK = (
    r"(?P<hour>\d\d?):(?P<minute>\d\d)(?::(?P<second>\d\d(?:[.,]\d+)?))?\s*(?P<half>[ap]m)?"
    r"\s*(?:z|utc|gmt|(?P<zone>[+-]\d\d(?::?\d\d)?))?"
)
DATE = re.compile(
    r"(?:(?P<year>\d{4})([-/.])(?P<month>\d\d?)\2(?P<day>\d\d?)"
    rf"|(?P<one>\d\d?)(?P<mark>[-/.])(?P<two>\d\d?)(?P=mark)(?P<last>\d{{4}}))(?:[T ,]\s*{CLOCK})?",
    re.IGNORECASE,
)
ISO = re.compile(r"\d{4}-\d\d(-\d\d([T ].*)?)?|\d{8}T.*")
"""Texts that pandas reads fast, all of ISO 8601."""
WITH_MONTH = re.compile(
    r"(?=.*\b\d{4}\b).*\b(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)", re.I
)
"""Texts with a year and the name of a month, such as 31 Jan 2024."""
EXPECTED = (
    "expected a date, such as 2024-01-31, 2024-01-31T12:00:00 or 31.01.2024, with the year in four"
    " digits"
)
DAY = 86400.0
EPOCH = datetime.date(1970, 1, 1).toordinal()
ORDERS = ("day", "month")


def is_date(cell: Any) -> bool:
    """Return whether a cell is text in the form of a date, in numbers."""
    return isinstance(cell, str) and DATE.fullmatch(cell.strip()) is not None


def to_seconds(times: Array) -> NDArray[np.float64]:
    """Return datetime64 as seconds since 1970, NaN for NaT."""
    seconds = times.astype("datetime64[us]").astype(np.int64) / 1e6
    return np.where(np.isnat(times), np.nan, seconds)


@dataclass(eq=False)
class TimeReader:
    """A column of times. It survives a table's being read again."""

    path: Path
    name: str
    kind: str = ""
    """number, date or duration: that of the first cell."""
    orders: dict[str, str] = field(default_factory=lambda: dict.fromkeys(ORDERS, ""))
    """What comes first in 01/02/2024, by the cells until now; a text that rules the other out."""
    unclear: str = ""
    """A text that is another date in the other order."""
    used: set[str] = field(default_factory=set)
    """Orders by which cells were read."""

    def read(self, cells: "pd.Series[Any]") -> NDArray[np.float64]:
        """Return the times of a piece of the table, NaN where blank; its index counts the rows."""
        import pandas as pd

        kind = cells.dtype.kind
        known = cells.notna().to_numpy()
        if kind in "iufmM" and known.any():
            self._check_kind({"m": "duration", "M": "date"}.get(kind, "number"), cells, known)
        if kind in "iuf":
            return cells.to_numpy(np.float64)
        if kind == "m":
            durations: NDArray[np.float64] = cells.dt.total_seconds().to_numpy(np.float64)
            return durations
        if kind == "M":
            zoned = getattr(cells.dt, "tz", None) is not None
            plain = cells.dt.tz_convert("UTC").dt.tz_localize(None) if zoned else cells
            return to_seconds(plain.to_numpy())
        try:
            codes, different = pd.factorize(cells)
        except TypeError:  # lists and the like
            self._refuse(cells, known, EXPECTED)
        values = self._read_different(list(different), cells, codes)
        return np.array([*values, np.nan])[codes]

    def _read_different(
        self, cells: list[Any], column: "pd.Series[Any]", codes: Array
    ) -> NDArray[np.float64]:
        """Return the times of different cells of a piece of the table; codes: place by row."""
        import pandas as pd
        from pandas.tseries.api import guess_datetime_format

        values, is_number = np.full(len(cells), np.nan), np.zeros(len(cells), np.bool_)
        texts = {place: cell.strip() for place, cell in enumerate(cells) if isinstance(cell, str)}
        for fits, layout in ((ISO.fullmatch, "ISO8601"), (WITH_MONTH.match, "mixed")):
            rest = np.flatnonzero(np.isnan(values)).tolist()
            places = [place for place in rest if place in texts and fits(texts[place])]
            guessed = guess_datetime_format(texts[places[0]]) if places else None
            for each in dict.fromkeys((guessed if layout == "mixed" else None, layout)):
                places = [place for place in places if np.isnan(values[place])]
                if places and each is not None:
                    column_of_texts = pd.Series([texts[place] for place in places])
                    found = pd.to_datetime(column_of_texts, format=each, utc=True, errors="coerce")
                    values[places] = to_seconds(found.dt.tz_localize(None).to_numpy())
        rest = np.flatnonzero(np.isnan(values)).tolist()
        found_dates: dict[int, dict[str, float]] = {}
        for place in rest:
            match = DATE.fullmatch(texts[place]) if place in texts else None
            if match is not None:
                found_dates[place] = seconds = _seconds(match)
                if match["mark"] in ("/", "-") and not self._narrow_orders(seconds, match[0]):
                    self._refuse(column, codes == place, self._expected_order(seconds))
        order = next(iter(self.orders))
        for place in rest:
            cell = cells[place]
            if place in found_dates:
                values[place] = found_dates[place][order]
                if len({*found_dates[place].values()}) > 1:
                    self.used.add(order)
            elif isinstance(cell, datetime.datetime):
                values[place] = to_seconds(np.array([_without_zone(cell)], "datetime64[us]"))[0]
            elif isinstance(cell, datetime.date):
                values[place] = (cell.toordinal() - EPOCH) * DAY
            elif not isinstance(cell, bool):
                values[place], is_number[place] = _number(cell), True
        for place in np.flatnonzero(~np.isfinite(values)).tolist():
            self._refuse(column, codes == place, EXPECTED)
        for first in sorted({*is_number.tolist()}, reverse=bool(is_number[:1].any())):
            rows = np.append(is_number == first, False)[codes]
            self._check_kind("number" if first else "date", column, rows)
        return values

    def _narrow_orders(self, seconds: dict[str, float], text: str) -> bool:
        """Keep the orders of day and month in which a text is a date; False if there is none."""
        kept = [order for order in self.orders if not np.isnan(seconds[order])]
        if kept and np.isnan([*seconds.values()]).any():
            self.orders = {order: self.orders[order] or text for order in kept}
        elif kept and seconds["day"] != seconds["month"]:
            self.unclear = self.unclear or text
        return bool(kept)

    def _expected_order(self, seconds: dict[str, float]) -> str:
        """What a message expects of a text that is no date in the order of the others."""
        if np.isnan([*seconds.values()]).all():
            return EXPECTED
        order, example = next(iter(self.orders.items()))
        return f"expected the {order} first, as in {example!r}, in all rows; or write 2024-01-31"

    def _check_kind(self, kind: str, cells: "pd.Series[Any]", at: Array) -> None:
        self.kind = self.kind or kind
        if kind != self.kind:
            remedy = EXPECTED if self.kind == "date" else f"expected a {self.kind}"
            self._refuse(cells, at, f"{remedy}, as in the rows before")

    def _refuse(self, cells: "pd.Series[Any]", at: Array, expected: str) -> None:
        """Raise an InputError for the first of these cells."""
        row = int(np.flatnonzero(at)[0])
        raise InputError(
            f"{self.path}: column `{self.name}`, row {cells.index[row]} is"
            f" {str(cells.iloc[row])[:60]!r}; {expected}"
        )

    def finish(self) -> None:
        """Check that the column had one order of day and month; ReadAgain if it was found late."""
        if self.unclear and len(self.orders) > 1:
            raise InputError(
                f"{self.path}: column `{self.name}`: {self.unclear!r} may have the day or the month"
                " first, and so may all other rows; write 2024-01-31, or 31.01.2024"
            )
        used, self.used = self.used, set()
        if used - {next(iter(self.orders))}:
            raise ReadAgain


def _without_zone(time: datetime.datetime) -> datetime.datetime:
    """Return a time as that of UTC."""
    offset = time.utcoffset()
    return time if offset is None else time.replace(tzinfo=None) - offset


def _number(cell: Any) -> float:
    """Return a number, maybe as text; NaN for another cell."""
    try:
        return float(cell)
    except (TypeError, ValueError, OverflowError):
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
    try:
        return (datetime.date(int(year), int(month), int(day)).toordinal() - EPOCH) * DAY
    except ValueError:
        return np.nan


def _seconds_of_clock(match: re.Match[str]) -> float:
    """Return the seconds since midnight in UTC."""
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
