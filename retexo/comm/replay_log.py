"""The messages that a worker received outside the rounds, on disk, in order: a resumed run reads them from there.

Training is deterministic, so a worker that repeats the same steps asks for the same messages. The file holds its form,
the digest of the run, then one record per message: a header, and the bytes from all peers by rank.
"""

import os
import struct
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np

from partitioning.files import open_regular, why_unwritten
from retexo.comm.transport import Pieces, fill
from retexo.comm.wire import ByteArray
from retexo.errors import TrainingError

HEADER = struct.Struct("<QII")
"""Of a record: bytes that follow, their checksum, and that of what this worker sent."""
BLOCK = 1 << 12
"""Bytes whose words are added up before a CRC-32 is taken of the sums."""
RELEASED_FROM = 1 << 20
"""Bytes of a record that does not stay in memory."""
FORM = b"\5"
"""How a file begins; not those of before the first release, whose messages are others."""


class ReplayLog:
    """A file that is read to its end, then appended to."""

    def __init__(self, path: Path, identity: str) -> None:
        """identity: hex digest of the run; a file of another run or form, or none, counts as empty."""
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
            if file.read(len(self._start)) != self._start:
                return ends
            length = self.path.stat().st_size
            while len(header := file.read(HEADER.size)) == HEADER.size:
                size, expected, _ = HEADER.unpack(header)
                if (
                    size > length - file.tell()
                    or checksum([np.frombuffer(file.read(size), np.uint8)]) != expected
                ):
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

    def next(self, sent: int, received: Pieces) -> bool:
        """Write into `received` what came when messages with the checksum `sent` went out; False at the log's end."""
        if self._last is not None or self._position == len(
            self
        ):  # what is being written is the last
            return False
        self._file.seek(self._ends[self._position])
        size, _, sent_before = HEADER.unpack(self._file.read(HEADER.size))
        if sent != sent_before or size != sum(map(len, received)):
            raise TrainingError(
                f"{self.path}: record {self._position} is not of what this run does; begin anew, without resume"
            )
        fill(received, np.frombuffer(self._file.read(size), np.uint8))
        self._position += 1
        return True

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
    """CRC-32 of a message's length and of the sum of 64-bit words of each BLOCK, wherever the message is cut.

    A CRC-32 of all its bytes would take six times as long.
    """
    value, rest = sum(map(len, pieces)) % (1 << 32), np.zeros(0, np.uint8)
    for piece in pieces:
        content: ByteArray = np.concatenate((rest, piece)) if len(rest) else piece
        blocks, rest = np.split(content, [len(content) // BLOCK * BLOCK])
        value = zlib.crc32(blocks.view(np.uint64).reshape(-1, BLOCK // 8).sum(axis=1), value)
    return zlib.crc32(rest.data, value)
