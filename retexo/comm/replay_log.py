"""The messages that a worker received outside the rounds, on disk, in order: a resumed run reads them from there.

Training is deterministic, so a worker that repeats the same steps asks for the same messages. The file holds its form,
the digest of the run, then one record per message: a header, and the bytes from all peers by rank.
"""

import logging
import os
import struct
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import numpy as np

from partitioning.file_io import open_regular, why_unwritten
from retexo.comm.transport import Pieces, fill
from retexo.errors import TrainingError

logger = logging.getLogger(__name__)

HEADER = struct.Struct("<QII")
"""Of a record: bytes that follow, their checksum, and that of what this worker sent."""
CHUNK = 1 << 22
"""Bytes that are read at a time to check a record."""
RELEASED_FROM = 1 << 20
"""Bytes of a record that does not stay in memory."""
FORM = b"\7"
"""Format version. A log of an earlier version counts as empty: its checksums are others."""


class ReplayLog:
    """A file that is read to its end, then appended to."""

    def __init__(self, path: Path, identity: str) -> None:
        """identity: hex digest of the run and worker. A file of another one or of another format counts as empty."""
        self.path, self._start = path, FORM + bytes.fromhex(identity)
        self._ends = self._scan()
        """Where each intact record ends, behind the start of the file."""
        self._position = 0
        self._writer = ThreadPoolExecutor(1)
        self._last: Future[None] | None = None
        """Of the record that is being written."""
        self._file = open_regular(path, "r+b" if path.exists() else "w+b")
        self.truncate(len(self))

    def __len__(self) -> int:
        """Intact records."""
        self._wait()
        return len(self._ends) - 1

    def _scan(self) -> list[int]:
        ends = [len(self._start)]
        if not self.path.exists():
            return ends
        with open_regular(self.path) as file:
            start = file.read(len(self._start))
            if start != self._start:
                if start:
                    logger.warning(
                        "%s: of another run, worker or version; its messages are sent again",
                        self.path,
                    )
                return ends
            length = self.path.stat().st_size
            while len(header := file.read(HEADER.size)) == HEADER.size:
                size, expected, _ = HEADER.unpack(header)
                if size > length - file.tell() or _checksum_of_next(file, size) != expected:
                    break
                ends.append(file.tell())
        return ends

    def truncate(self, count: int) -> None:
        """Delete all but the first `count` records, and read from the first."""
        self._wait()
        del self._ends[count + 1 :]
        self._file.seek(0)
        self._file.write(self._start)
        self._file.truncate(self._ends[-1])
        self._position = 0

    def check_size(self, num_bytes: int) -> None:
        """TrainingError where the next record does not have this many bytes: before memory for them is asked for."""
        size = self._size_of_next()
        if size is not None and size != num_bytes:
            raise self._other_run()

    def next(self, sent: int, received: Pieces) -> bool:
        """Write into `received` what came when messages with the checksum `sent` went out; False at the log's end."""
        size = self._size_of_next()
        if size is None:
            return False
        self._file.seek(self._ends[self._position])
        _, _, sent_before = HEADER.unpack(self._file.read(HEADER.size))
        if sent != sent_before or size != sum(map(len, received)):
            raise self._other_run()
        fill(received, np.frombuffer(self._file.read(size), np.uint8))
        self._position += 1
        return True

    def _size_of_next(self) -> int | None:
        """Bytes of the next record, without its header; None at the log's end."""
        if self._last is not None or self._position == len(self):  # the last is being written
            return None
        first, end = self._ends[self._position : self._position + 2]
        return end - first - HEADER.size

    def _other_run(self) -> TrainingError:
        return TrainingError(
            f"{self.path}: record {self._position} is not of what this run does; begin anew, without resume"
        )

    def append(self, sent: int, received: Pieces, *, wait: bool = True) -> None:
        """Add what came when messages with the checksum `sent` went out.

        wait: until it is written; else it must not change before the next time, which waits and raises what went wrong.
        """
        self._wait()
        if wait:
            self._write(sent, received)
        else:
            self._last = self._writer.submit(self._write, sent, received)

    def _wait(self) -> None:
        """For the last record to be written."""
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def _write(self, sent: int, received: Pieces) -> None:
        size = sum(map(len, received))
        header = HEADER.pack(size, checksum(received), sent)
        try:
            self._file.seek(self._ends[-1])
            self._file.write(header)
            for piece in received:
                self._file.write(piece.data)
            self._file.flush()
            if size >= RELEASED_FROM and hasattr(os, "posix_fadvise"):
                # Written to the disk now, and its pages are free for what comes next: making new ones takes far longer.
                os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        except OSError as error:
            raise TrainingError(f"{self.path}: {why_unwritten(error)}") from error
        self._ends.append(self._file.tell())
        self._position += 1

    def close(self) -> None:
        self._wait()
        self._file.close()


def checksum(pieces: Pieces) -> int:
    """CRC-32 of a message, wherever it is cut.

    On an AMD EPYC zlib hashes 4.2 GB/s of 256 MiB, hashlib's SHA-256 1.8 and BLAKE2b 0.9; XXH3, a package more, 30.
    """
    value = 0
    for piece in pieces:
        value = zlib.crc32(piece.data, value)
    return value


def _checksum_of_next(file: BinaryIO, size: int) -> int:
    """The checksum of the next `size` bytes of a file."""
    value = 0
    for first in range(0, size, CHUNK):
        value = zlib.crc32(file.read(min(CHUNK, size - first)), value)
    return value
