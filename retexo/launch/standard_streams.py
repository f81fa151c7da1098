"""Drop output to standard streams that are closed, or whose reader has ended (`| head -1`)."""

import contextlib
import io
import os
import sys
from typing import Any


class _Dropping(io.FileIO):
    """A descriptor that becomes /dev/null once the pipe has no reader."""

    def write(self, data: Any, /) -> int:
        """Write data; after a broken pipe redirect this descriptor to /dev/null."""
        try:
            return super().write(data)
        except BrokenPipeError:
            with open(os.devnull, "wb") as null:  # noqa: PTH123
                os.dup2(null.fileno(), self.fileno())
            return super().write(data)


def keep_standard_streams() -> None:
    """Open closed standard streams on /dev/null, and let stdout and stderr drop what nobody reads.

    Call it first in a command: a file that it opens could get the number of a closed stream.
    Streams that were replaced stay.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        with contextlib.suppress(AttributeError, OSError):
            if stream is not None and stream.fileno() != number:
                continue  # replaced, as by a test
            raw = io.BufferedWriter(_Dropping(number, "w", closefd=False))
            setattr(
                sys,
                name,
                io.TextIOWrapper(
                    raw,
                    encoding=getattr(stream, "encoding", "utf-8"),
                    errors="backslashreplace",  # letters that the locale lacks
                    line_buffering=number == 2 or getattr(stream, "line_buffering", False),
                    write_through=getattr(stream, "write_through", False),
                ),
            )
