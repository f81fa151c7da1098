"""Put the files of a public data set in place before its library looks for them.

So no library downloads anything itself: DGL would ask five times without a time limit, OGB would ask on the terminal
above 1 GB, which hangs a batch job, and torch_geometric would not verify the server. What cannot be fetched is named,
with its address and its place, for the user to put there by hand.
"""

import contextlib
import io
import logging
import shutil
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from partitioning.errors import InputError
from partitioning.files import check_unpacked_size, open_regular

log = logging.getLogger(__name__)

TIMEOUT = 30.0
"""Seconds without a byte from the server."""


@dataclass(frozen=True)
class Archive:
    """A zip on the network and the folder that its contents belong in."""

    dataset: str
    url: str
    zip: Path
    folder: Path
    needed: tuple[str, ...]
    """Files that must be in the folder, as paths below it."""

    def ensure(self, max_gib: float) -> None:
        """Unpack the zip, fetching it before if it is not there, unless the folder exists already.

        max_gib: the setting dataset_max_gib.
        """
        if not self.folder.exists():
            if not self.zip.exists():
                fetch(self.url, self.zip, self.by_hand())
            self._unpack(max_gib)
        missing = [name for name in self.needed if not (self.folder / name).is_file()]
        if missing:
            raise InputError(
                f"dataset_name={self.dataset}: {self.folder} lacks {', '.join(missing)}; remove the folder and "
                f"{self.by_hand()}"
            )

    def by_hand(self) -> str:
        return f"fetch {self.url} and put it at {self.zip}, or unpack it so that {self.folder / self.needed[0]} exists"

    def _unpack(self, max_gib: float) -> None:
        """Unpack beside the folder, then rename: the folder is whole or not there."""
        log.info("unpacking %s", self.zip)
        try:
            check_unpacked_size(self.zip, max_gib)
            with tempfile.TemporaryDirectory(dir=self.zip.parent, prefix=".unpack-") as name:
                inside = Path(name) / "inside"
                with open_regular(self.zip) as packed, zipfile.ZipFile(packed) as archive:
                    archive.extractall(inside)
                self._top(inside).rename(self.folder)
        except (OSError, zipfile.BadZipFile, EOFError, zlib.error) as error:
            raise InputError(
                f"{self.zip}: cannot be unpacked ({error}); remove it and {self.by_hand()}"
            ) from None

    def _top(self, unpacked: Path) -> Path:
        """The folder in the zip that has the first needed file, the zip's own top or one below it."""
        for folder in (unpacked, *sorted(path for path in unpacked.iterdir() if path.is_dir())):
            if (folder / self.needed[0]).is_file():
                return folder
        raise InputError(f"{self.zip}: has no {self.needed[0]}; remove it and {self.by_hand()}")


@dataclass(frozen=True)
class Remote:
    """A single file on the network and its place."""

    url: str
    path: Path


def ensure_files(dataset: str, files: list[Remote]) -> None:
    """Fetch the files that are not in place."""
    missing = [file for file in files if not file.path.exists()]
    places = "; ".join(f"{file.url} -> {file.path}" for file in missing)
    for file in missing:
        fetch(
            file.url,
            file.path,
            f"fetch by hand and put in place: {places}",
            f"dataset_name={dataset}: ",
        )


def fetch(url: str, path: Path, by_hand: str, prefix: str = "") -> None:
    """Download one file, written beside its place and then renamed; InputError says what to do by hand."""
    log.info("downloading %s to %s", url, path)
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            urllib.request.urlopen(url, timeout=TIMEOUT) as answer,
            open_regular(part, "wb") as file,
        ):
            shutil.copyfileobj(answer, file, 1 << 20)
            expected = answer.headers.get("Content-Length")
        if expected is not None and part.stat().st_size != int(expected):
            raise OSError(f"{part.stat().st_size} of {expected} bytes arrived")
        part.rename(path)
    except (OSError, urllib.error.URLError, HTTPException, ValueError) as error:
        part.unlink(missing_ok=True)
        raise InputError(f"{prefix}cannot download {url} ({error}); {by_hand}") from None


@contextlib.contextmanager
def library(dataset: str, folder: Path) -> Iterator[None]:
    """Run a library's loader: what it prints is logged, what it raises becomes an InputError about its files."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            yield
    except InputError:
        raise
    except (
        Exception,
        SystemExit,
    ) as error:  # libraries raise whatever a damaged file makes them stumble over
        reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
        raise InputError(
            f"dataset_name={dataset}: the files in {folder} cannot be read ({reason}); remove them and fetch them again"
        ) from error
    finally:
        log.debug("%s: %s", dataset, printed.getvalue())
