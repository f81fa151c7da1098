"""Put the files of a public data set in place before its library looks for them.

The libraries' own downloads are avoided: DGL retries five times without a time limit; OGB asks on
the terminal above 1 GB, which blocks a batch job, and uses plain http. A broken download is resumed
a few times. If it fails, the message has the URL and the place of the file, so that the user can
put it there. The checksum of each file is kept beside it (published_checksums.py).
"""

import contextlib
import io
import logging
import re
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any, ClassVar

from numpy.lib.format import MAGIC_PREFIX

from partitioning.errors import InputError
from partitioning.files.file_io import (
    explaining,
    open_regular,
    reading,
    rename_durably,
    written_beside,
)
from partitioning.files.published_checksums import check_published, check_unchanged
from partitioning.files.unpacked_size import check_unpacked_size

log = logging.getLogger(__name__)

TIMEOUT = 30.0
"""Seconds without a byte from the server."""
SLOWEST = 4096
"""Bytes per second. A slower download fails, TIMEOUT after its start at the earliest."""
ATTEMPTS = 4
FIRST_WAIT = 1.0
"""Seconds before the second attempt; each further wait is twice as long."""
BUSY = (408, 429)
"""HTTP statuses below 500 that another attempt can change."""
LARGEST_FILE, LARGEST_ZIP = 1 << 30, 128 << 30
"""Bytes. The largest known zip, ogbn-papers100M, has about 60 GB."""
FETCH_AGAIN = "remove it, and fetch it again"
GZIP, ZIP, PARQUET = b"\x1f\x8b", b"PK", b"PAR1"
BEGINNINGS = {
    ".npz": ZIP,
    ".zip": ZIP,
    ".npy": MAGIC_PREFIX,
    ".parquet": PARQUET,
    ".gz": GZIP,
    ".tgz": GZIP,
}
"""How files begin, by the suffix of their names."""


@dataclass(frozen=True)
class Remote:
    """A file to download and its place."""

    url: str
    path: Path
    limit: ClassVar[int] = LARGEST_FILE

    @property
    def is_local(self) -> bool:
        """Whether nothing has to be downloaded."""
        return self.path.exists()

    @property
    def by_hand(self) -> str:
        """What to do where the file cannot be downloaded."""
        return f"fetch {self.url} and put it at {self.path}"

    def prepare(self, dataset: str, max_gib: float) -> Path:
        """Return the path of the file, whose checksum is recorded at its first use.

        InputError for a file that changed since.
        """
        check_unchanged(self.path, self.url)
        return self.path


@dataclass(frozen=True)
class Archive(Remote):
    """A zip to download and the folder of its contents."""

    folder: Path
    needed: tuple[str, ...]
    """Files that the folder must have, as relative paths."""
    limit = LARGEST_ZIP

    @property
    def is_local(self) -> bool:
        return self.folder.exists() or self.path.exists()

    @property
    def by_hand(self) -> str:
        return f"{super().by_hand}, or unpack it so that {self.folder / self.needed[0]} exists"

    def prepare(self, dataset: str, max_gib: float) -> Path:
        """Return the folder; the zip is unpacked if it is missing.

        Raises:
            InputError: the zip grows by more than `max_gib` GiB, changed, or is damaged; or a file
                is missing.
        """
        if not self.folder.exists():
            self._unpack(max_gib)
        missing = [name for name in self.needed if not (self.folder / name).is_file()]
        if missing:
            raise InputError(
                f"dataset_name={dataset}: {self.folder} lacks {', '.join(missing)}; remove the"
                f" folder and {self.by_hand}"
            )
        return self.folder

    def _unpack(self, max_gib: float) -> None:
        """Unpack beside the folder, then rename it, so that no incomplete folder remains; log it.

        InputError for a zip that grows by more than `max_gib` GiB, changed, or is damaged.
        """
        log.info("unpacking %s", self.path)
        with explaining(str(self.path), "zip", f"remove it and {self.by_hand}"):
            check_unpacked_size(self.path, max_gib)
            check_unchanged(self.path, self.url)
            with tempfile.TemporaryDirectory(dir=self.path.parent, prefix=".unpack-") as name:
                inside = Path(name) / "inside"
                with open_regular(self.path) as packed, zipfile.ZipFile(packed) as archive:
                    archive.extractall(inside)
                rename_durably(self._find_content(inside), self.folder)

    def _find_content(self, unpacked: Path) -> Path:
        """Return the folder of an unpacked zip that has the first needed file.

        It is the top folder, or one right below; ValueError if none has it.
        """
        for folder in (unpacked, *sorted(path for path in unpacked.iterdir() if path.is_dir())):
            if (folder / self.needed[0]).is_file():
                return folder
        raise ValueError(f"it has no {self.needed[0]}")


def ensure(dataset: str, files: Sequence[Remote], max_gib: float) -> list[Path]:
    """Download the files that are missing; return each file, or the folder of an unpacked zip.

    Args:
        max_gib: The setting dataset_max_gib.

    Raises:
        InputError: a file cannot be downloaded, unpacked, or has changed since its first use.
    """
    missing = [file for file in files if not file.is_local]
    by_hand = "; ".join(file.by_hand for file in missing)
    for file in missing:
        fetch(file.url, file.path, by_hand, f"dataset_name={dataset}: ", file.limit)
    return [file.prepare(dataset, max_gib) for file in files]


class Refused(OSError):
    """A download failed in a way that another attempt would not change, such as a wrong address."""


class SecureRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects from https only to https: few downloads have a published checksum."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: Any,
        newurl: str,
    ) -> urllib.request.Request | None:
        """Return the request that a redirect leads to; Refused if it leaves https."""
        if req.type == "https" and not newurl.lower().startswith("https:"):
            raise Refused(f"it redirects to {newurl}, which is not https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def fetch(url: str, path: Path, by_hand: str, prefix: str = "", limit: int = LARGEST_FILE) -> None:
    """Download one file, and log it; written beside its place, then renamed; `path` is replaced.

    Args:
        by_hand: what the user can do where the download fails.
        prefix: what the message begins with.
        limit: of the file, in bytes.

    Raises:
        InputError: the server is unreachable or too slow, length, checksum or kind of the file are
            wrong, or it cannot be written.
    """
    log.info("downloading %s to %s", url, path)
    try:
        with written_beside(path) as part:
            download_to(url, part, limit)
            check_content(part, path.name)
            check_published(part, url)
    except (OSError, HTTPException, ValueError) as error:
        raise InputError(f"{prefix}cannot download {url} ({error}); {by_hand}") from None


def download_to(url: str, part: Path, limit: int) -> None:
    """Download at most `limit` bytes into a file, in a few attempts with pauses and warnings.

    Each continues where the one before ended, if the server can. On failure `part` stays; what it
    had before the call is overwritten.

    Raises:
        OSError: or HTTPException, ValueError, if the last attempt fails, or another cannot help.
    """
    version = ""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            request = urllib.request.Request(url)
            received = part.stat().st_size if part.exists() else 0
            if received and version:
                request.add_header("Range", f"bytes={received}-")
                request.add_header("If-Range", version)
            opener = urllib.request.build_opener(SecureRedirects())
            with opener.open(request, timeout=TIMEOUT) as answer, open_regular(part, "ab") as file:
                version = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
                if answer.status != 206:
                    file.truncate(0)
                elif not re.match(rf"bytes {received}-", answer.headers.get("Content-Range", "")):
                    raise Refused("the server sends another piece than was asked for")
                _copy(answer, file, limit)
            return
        except (OSError, HTTPException) as error:
            status = error.code if isinstance(error, urllib.error.HTTPError) else None
            is_final = status is not None and status < 500 and status not in BUSY
            if is_final or isinstance(error, Refused) or attempt == ATTEMPTS:
                raise
            seconds = FIRST_WAIT * 2 ** (attempt - 1)
            log.warning("%s: %s; attempt %d follows in %g s", url, error, attempt + 1, seconds)
            time.sleep(seconds)


def check_content(path: Path, name: str) -> None:
    """Raise Refused for a web page, or a file that is not what the suffix of its name says.

    By its beginning; zip, npz and parquet by their end, too. Gzip is refused under other suffixes.
    """
    suffix = Path(name).suffix.lower()
    expected = BEGINNINGS.get(suffix, b"")
    with open_regular(path) as file:
        begin = file.read(512)
        file.seek(max(0, file.seek(0, io.SEEK_END) - len(expected)))
        end = file.read()
    if begin.lstrip().lower().startswith((b"<!doctype html", b"<html")):
        raise Refused("a web page arrived, of a login for instance, and no file")
    if begin.startswith(GZIP) and expected != GZIP:
        raise Refused("a file packed by gzip arrived, and its name does not end in .gz")
    if not begin.startswith(expected):
        raise Refused(f"what arrived is no {suffix} file")
    if (expected == PARQUET and end != PARQUET) or (
        expected == ZIP and not zipfile.is_zipfile(path)
    ):
        raise Refused("its end is missing")


def _copy(answer: Any, file: IO[bytes], limit: int) -> None:
    """Append the response to a file.

    Raises OSError if it is too slow, the file over `limit` bytes, or the response not of the
    announced length.
    """
    limit -= file.seek(0, io.SEEK_END)
    announced = answer.headers.get("Content-Length")
    expected = None if announced is None else int(announced)
    largest = limit if expected is None else min(limit, expected)
    if expected is not None and expected > limit:
        raise Refused(f"it has {expected} bytes; expected at most {limit}")
    received, began = 0, time.monotonic()
    while piece := answer.read1(1 << 20):
        received += file.write(piece)
        if received > largest:
            raise Refused(f"more than {largest} bytes arrived")
        if time.monotonic() - began > TIMEOUT + received / SLOWEST:
            raise OSError(f"less than {SLOWEST} bytes per second arrived")
    if expected is not None and received != expected:
        raise OSError(f"{received} of {expected} bytes arrived")


@contextlib.contextmanager
def open_published(path: Path) -> Iterator[IO[bytes]]:
    """Within the block, open a file of a public data set; errors there are an InputError."""
    with reading(path, "file of this data set", FETCH_AGAIN), open_regular(path) as file:
        yield file
