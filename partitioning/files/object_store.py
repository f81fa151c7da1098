"""Reads and writes objects of a store by their address: s3://, gs:// or https://.

s3:// and gs:// go through fsspec, which is imported when an address is first used (extra `remote`);
https:// through the downloader of the data sets, only for reading. Every wait has a time limit, and
every failure is an InputError with the setting, the address, the cause and the remedy. What arrives
instead of a file, such as a login page, is refused.
"""

import contextlib
import os
import re
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from partitioning.errors import InputError, first_line
from partitioning.files import download
from partitioning.files.file_io import (
    file_checksum,
    path_below,
    read_text,
    reading,
    written_beside,
)
from partitioning.setting_fields import refuse

PACKAGES = {"s3": "s3fs", "gs": "gcsfs"}
SCHEMES = (*PACKAGES, "https")
CONNECT_TIMEOUT, TIMEOUT = 10.0, 30.0
"""Seconds to connect, and without a byte from the store."""
ATTEMPTS = 3
"""Attempts of s3fs, each with one repetition by botocore."""
_UNKNOWN = (403, 404, 405, 410, 501)
"""HTTP statuses after which only a download can tell whether there is an object: a signed address
may allow GET alone, and some servers answer 403 for a missing object."""
_NETWORK = "check the network; then start again"
_REMEDIES = {
    "s3": (
        "check the network, and AWS_ENDPOINT_URL if it is set; then start again",
        "give these credentials the right to list, read and (for results) write there, or choose"
        " others (AWS_PROFILE, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY); for a public bucket"
        " FSSPEC_S3_ANON=true",
    ),
    "gs": (
        _NETWORK,
        "give these credentials the right to list, read and (for results) write there, or choose"
        " others (GOOGLE_APPLICATION_CREDENTIALS); for a public bucket FSSPEC_GS_TOKEN=anon",
    ),
    "https": (_NETWORK, "correct the address, of a file, or its signature"),
}
"""By scheme: of a broken connection, and of a refusal."""


@dataclass(frozen=True)
class Entry:
    """What a store says of an object."""

    size: int | None
    version: str
    """ETag or time of the last change; empty where the store says neither."""


def is_remote(value: str | None) -> bool:
    """Return whether a setting is an address; InputError is left to `Place`."""
    return value is not None and re.match(r"[A-Za-z][A-Za-z0-9+.-]*:(//|:)", value) is not None


@dataclass(frozen=True)
class Place:
    """An object, or all objects below an address, and the setting that names it.

    InputError for an address of another form; its methods raise it as the module says.
    """

    setting: str
    url: str

    def __post_init__(self) -> None:
        refuse(
            (
                self.scheme not in SCHEMES or "::" in self.url,
                f"{self}: expected an address that begins with s3://, gs:// or https://, or a path",
            ),
            (
                not self._path.strip("/ "),
                f"{self}: names no bucket or host; expected {self.scheme}://NAME/PATH",
            ),
            (
                not self.can_list and "#" in self.url,
                f"{self}: a file has no parts; take out the `#` and what follows",
            ),
        )

    def __str__(self) -> str:
        return f"{self.setting}={self.url}"

    def __truediv__(self, name: str) -> "Place":
        return Place(self.setting, f"{self.url.rstrip('/')}/{name}") if name else self

    @property
    def scheme(self) -> str:
        return self.url.partition("://")[0].lower()

    @property
    def name(self) -> str:
        """Return the last part of the path."""
        path = self._path if self.can_list else self._path.partition("?")[0]
        return PurePosixPath(path).name

    @property
    def can_list(self) -> bool:
        """Whether the store can list and write objects."""
        return self.scheme in PACKAGES

    @property
    def _path(self) -> str:
        return self.url.partition("://")[2]

    def stat(self) -> Entry | None:
        """Return what the store says of the object; None where there is none.

        Over https also None where only a download can tell.
        """
        with self._explain("read"):
            if not self.can_list:
                return None if self.url.endswith("/") else self._ask_head()
            try:
                info = self._filesystem().info(self._path.rstrip("/"))
            except FileNotFoundError as error:
                if "bucket does not exist" in str(error):
                    raise
                return None
            return _make_entry(info) if info["type"] == "file" else None

    def objects(self) -> dict[str, Entry]:
        """Return all objects below the address, by their path from there; {}: there are none.

        InputError for https, and for a name that is no plain path.
        """
        with self._explain("list"):
            root = self._path.rstrip("/")
            listing = self._filesystem().find(root, detail=True)
        objects = {
            path.removeprefix(f"{root}/"): _make_entry(info)
            for path, info in listing.items()
            if info["size"] or not f"{path}/".endswith(("//", f"{root}/"))  # a console's folder
        }
        for name in objects:
            path_below(Path(), name, str(self))
        return objects

    def folders(self) -> list[str]:
        """Return the sorted names of the folders right below the address, [] if it is missing."""
        with self._explain("list"):
            try:
                listing = self._filesystem().ls(self._path.rstrip("/"), detail=True)
            except FileNotFoundError as error:
                if "bucket does not exist" in str(error):
                    raise
                return []
        return sorted(
            PurePosixPath(info["name"]).name for info in listing if info["type"] == "directory"
        )

    def download(self, path: Path, sha256: str | None = None, size: int | None = None) -> str:
        """Copy the object to a file, written beside its place and then renamed.

        InputError, and no file, where what arrives is not what its name says, or not of the stated
        checksum (hex) or size. Returns its checksum.
        """
        with self._explain("read"), written_beside(path) as part:
            if self.can_list:
                self._filesystem().get_file(self._path, os.fspath(part))
            else:
                download.download_to(self.url, part, download.LARGEST_ZIP)
            arrived, checksum = part.stat().st_size, file_checksum(part)
            if size not in (None, arrived):
                raise OSError(f"{arrived} of {size} bytes arrived")
            if sha256 not in (None, checksum):
                raise InputError(
                    f"{self}: its sha256 is {checksum}, and {sha256} is stated for it: it is"
                    " damaged or of another version; upload it again"
                )
            download.check_content(part, self.name)
        return checksum

    def read_text(self, kind: str) -> str:
        """Return the whole text of an object, by way of a temporary file.

        Raises InputError, which calls the object `kind`, unless it is UTF-8.
        """
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "text"
            self.download(path)
            with reading(path, kind, "upload it again", where=str(self)):
                return read_text(path)

    def upload(self, path: Path) -> None:
        """Copy a file to the store, where it appears once it is complete."""
        with self._explain("write"):
            self._filesystem().put_file(os.fspath(path), self._path)

    def write(self, content: bytes) -> None:
        """Write a small object."""
        with self._explain("write"):
            self._filesystem().pipe_file(self._path, content)

    def remove(self) -> None:
        """Remove the object if there is one."""
        with self._explain("write"), contextlib.suppress(FileNotFoundError):
            self._filesystem().rm_file(self._path)

    def _filesystem(self) -> Any:
        """Return fsspec's file system for the address.

        InputError if a package is missing, or for https, where a file can only be read.
        """
        if not self.can_list:
            raise InputError(
                f"{self}: a folder cannot be listed over https, and nothing can be written over"
                " https; name a file, or choose s3:// or gs://"
            )
        package = PACKAGES[self.scheme]
        try:
            import fsspec

            options: dict[str, Any] = {"use_listings_cache": False}
            if self.scheme == "s3":
                options["config_kwargs"] = {
                    "connect_timeout": CONNECT_TIMEOUT,
                    "read_timeout": TIMEOUT,
                    "retries": {"max_attempts": 1},
                }
            system, _ = fsspec.url_to_fs(self.url, **options)
        except ImportError:
            extra = "pip install -e '.[remote]'"
            how = extra if package == "s3fs" else f"{extra} {package}"
            raise InputError(f"{self}: {self.scheme}:// needs the extra `remote`: {how}") from None
        system.retries = ATTEMPTS
        return system

    def _ask_head(self) -> Entry | None:
        """Ask for size and version of an https object by a HEAD request.

        Returns None if it does not exist, or the status leaves that open (_UNKNOWN).
        """
        request = urllib.request.Request(self.url, method="HEAD")
        opener = urllib.request.build_opener(download.SecureRedirects())
        try:
            with opener.open(request, timeout=TIMEOUT) as answer:
                length = answer.headers.get("Content-Length")
                version = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
                return Entry(None if length is None else int(length), version)
        except urllib.error.HTTPError as error:
            if error.code in _UNKNOWN:
                return None
            raise

    @contextlib.contextmanager
    def _explain(self, action: str) -> Iterator[None]:
        """Convert every exception of a store into an InputError with cause and remedy."""
        try:
            yield
        except InputError:
            raise
        except Exception as error:  # botocore's and aiohttp's have no common base
            broken, refused = _REMEDIES[self.scheme if self.can_list else "https"]
            is_client_error = isinstance(error, urllib.error.HTTPError) and error.code < 500
            is_forbidden = isinstance(error, PermissionError) or is_client_error
            if isinstance(error, FileNotFoundError):
                remedy = "correct the address, or make the bucket"
            elif is_forbidden or "Credentials" in type(error).__name__:
                remedy = refused
            elif isinstance(error, download.Refused):
                remedy = "look at what the address gives, and correct it"
            else:
                remedy = broken
            cause = first_line(error)[:300]
            raise InputError(f"{self}: cannot {action} ({cause}); {remedy}") from None


def _make_entry(info: dict[str, Any]) -> Entry:
    """Return size and version from what fsspec says of an object."""
    version = (
        info.get("ETag") or info.get("etag") or info.get("LastModified") or info.get("updated")
    )
    return Entry(info.get("size"), "" if version is None else str(version))
