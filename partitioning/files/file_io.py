"""Reads users' files with clear errors; checksums, JSON, lock files, safe renames."""

import contextlib
import csv
import ctypes
import errno
import fcntl
import hashlib
import json
import logging
import lzma
import os
import secrets
import shutil
import socket
import stat
import struct
import time
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from tokenize import TokenError
from typing import IO, Any, Literal

from safetensors import SafetensorError

from partitioning.errors import InputError, first_line

log = logging.getLogger(__name__)

GIB = 2**30
SHA256 = "sha256"
"""Field of an object of JSON: the sha256 of its other fields."""
RETRY_INTERVAL = 0.01
"""Seconds between two attempts to take a lock."""
UNREADABLE = (
    OSError,
    ValueError,
    TypeError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    RuntimeError,
    SyntaxError,
    TokenError,
    ArithmeticError,
    csv.Error,
    struct.error,
    lzma.LZMAError,
    SafetensorError,
    zipfile.BadZipFile,
    zlib.error,
)
"""Exceptions of readers on damaged files; RecursionError, NotImplementedError are RuntimeErrors."""


def open_regular(path: Path, mode: str = "rb", **text: Any) -> Any:
    """Open a regular file; opening a FIFO would wait for its other end.

    Text is UTF-8, whatever the locale. A file is not written through a symbolic link, which could
    point out of the folder.

    Raises:
        OSError: ENXIO for a path that is not a regular file, ELOOP for writing to a link.
    """
    encoding = {} if "b" in mode else {"encoding": "utf-8"}
    return open(path, mode, opener=_open_regular, **(encoding | text))


def _open_regular(path: str, flags: int) -> int:
    """Open a path by os.open.

    Raises OSError if it is not a regular file, or a link that would be written.
    """
    writes = flags & (os.O_WRONLY | os.O_RDWR)
    try:
        descriptor = os.open(
            path, flags | os.O_NONBLOCK | os.O_CLOEXEC | (os.O_NOFOLLOW if writes else 0), 0o666
        )
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket, or a FIFO that nobody reads
            raise OSError(errno.ENXIO, "not a regular file", path) from None
        if error.errno == errno.ELOOP and Path(path).is_symlink() and writes:
            raise OSError(
                errno.ELOOP, "a symbolic link, and files are not written through links", path
            ) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.ENXIO, "not a regular file", path)
    return descriptor


def read_bytes(path: Path) -> bytes:
    """Return the content of a regular file."""
    with open_regular(path) as file:
        content: bytes = file.read()
    return content


def read_text(path: Path) -> str:
    """Return the text of a regular file in UTF-8."""
    return read_bytes(path).decode()


def load_npy(path: Path, mmap_mode: Literal["r", "c"] | None = None) -> Any:
    """Load the array of a regular npy file; ValueError for Python objects.

    mmap_mode: r maps it, c with changes that stay in this process; None reads it into memory.
    """
    import numpy as np  # a sixth of a second, which --help does not need

    with open_regular(path) as file:
        if mmap_mode is None:
            return np.load(file, allow_pickle=False)
        # NumPy maps files by name only. This name is the open file, whatever replaces the path.
        name = f"/proc/self/fd/{file.fileno()}"
        return np.load(name, allow_pickle=False, mmap_mode=mmap_mode)


@contextlib.contextmanager
def reading(
    path: Path, kind: str, remedy: str = "write it anew", where: str | None = None
) -> Iterator[None]:
    """Convert exceptions of a reader into an InputError that names the file.

    Args:
        kind: the expected format, as in "npy array".
        where: the file in messages, for instance with its setting; None: its path.

    Raises:
        InputError: the file cannot be read, is not a regular file, or the path is impossible.
    """
    where = str(path) if where is None else where
    with explaining(where, kind, remedy):
        if not stat.S_ISREG(path.stat().st_mode):
            raise ValueError("not a regular file")
        yield


@contextlib.contextmanager
def explaining(where: str, kind: str, remedy: str) -> Iterator[None]:
    """Convert exceptions of a reader into an InputError; arguments as of `reading`."""
    try:
        yield
    except InputError:
        raise
    except UNREADABLE as error:
        if "allow_pickle" in str(error):
            raise InputError(
                f"{where}: not a readable {kind}, or it holds Python objects, which are never"
                " loaded; save numbers"
            ) from None
        reason = first_line(error)[:200]
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise InputError(f"{where}: {error.strerror}; free some space") from error
        if isinstance(error, LookupError | AttributeError):  # whose messages are names alone
            reason = f"{type(error).__name__}: {reason}"
        if isinstance(error, MemoryError):
            remedy = f"free memory, or where it is damaged {remedy}"
        raise InputError(f"{where}: not a readable {kind} ({reason}); {remedy}") from error


def check_path(setting: str, value: str) -> Path:
    """Return the path of a setting; InputError for an impossible path or a loop of links.

    Whether it exists is not checked.
    """
    try:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            Path(value).stat()
    except (OSError, ValueError) as error:
        raise InputError(f"{setting}={value!r}: cannot be a path ({error}); set another") from None
    return Path(value)


def is_unicode(text: str) -> bool:
    """Return whether a text has no lone surrogates, which no file and no log could hold."""
    return text.isascii() or text.encode(errors="ignore").decode() == text


def path_below(folder: Path, name: str, where: str) -> Path:
    """Join a folder and a file name that others wrote, in meta.json or in a store.

    Raises:
        InputError: the name is no plain path below the folder, such as `a/../b` or `/etc/passwd`;
            the message begins with `where`.
    """
    plain = PurePosixPath(name)
    is_plain = plain.as_posix() == name and plain.name != "" and not plain.is_absolute()
    if not is_plain or ".." in plain.parts or "\0" in name or not is_unicode(name):
        raise InputError(
            f"{where}: names the file {name!a}, which is no plain path below its folder; nothing is"
            " read or written there: get the original from who made it"
        )
    return folder / name


def why_unwritten(error: OSError) -> str:
    """Return cause and remedy of a failed write, for a message that begins with the path."""
    remedies = {
        errno.ENOENT: "its folder was removed meanwhile; start again",
        **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "let this process write there"),
    }
    cause = error.strerror or str(error)  # of NumPy's tofile
    return f"cannot be written: {cause}; {remedies.get(error.errno or 0, 'free some space')}"


def file_checksum(path: Path) -> str:
    """Return the sha256 (hex) of a file."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def with_checksum(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object of JSON with the sha256 of its fields as one more field."""
    return {**content, SHA256: json_checksum(content)}


def check_unchanged(content: dict[str, Any], path: Path, remedy: str) -> None:
    """Raise InputError unless an object has the fields that `with_checksum` saw; take that out.

    One without a checksum, as this program once wrote it, is taken as it is.
    """
    stated = content.pop(SHA256, None)
    if stated not in (None, json_checksum(content)):
        raise InputError(
            f"{path}: was changed since it was written (its {SHA256} is another); {remedy}"
        )


def json_checksum(content: Any) -> str:
    """Return the sha256 (hex) of a value of JSON, whatever the order of its fields."""
    as_read = json.loads(json.dumps(content))  # keys are texts
    return hashlib.sha256(json.dumps(as_read, sort_keys=True).encode()).hexdigest()


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: also for lone surrogates, and for an object that has a key twice: JSON's usual
            readers take the last one.
    """
    content = json.loads(text, object_pairs_hook=_make_object)
    json.dumps(content, ensure_ascii=False).encode()
    return content


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON by key; ValueError for a key that occurs twice."""
    content = dict(pairs)
    if len(content) < len(pairs):
        key = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {key[:100]!a} occurs twice; leave one out")
    return content


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; InputError if it has none or cannot be read."""
    with reading(path, "JSON file"):
        content = parse_json(read_text(path))
        if not isinstance(content, dict):
            raise TypeError(f"holds a JSON {type(content).__name__}, needs an object")
    return content


def _sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # the file system does not support fsync
            raise
    finally:
        os.close(descriptor)


def rename_durably(unfinished: Path, path: Path) -> None:
    """Rename a file or folder, replacing a file or an empty folder.

    Afterwards its content and its name are on the disk.
    """
    for entry in (*(unfinished.rglob("*") if unfinished.is_dir() else ()), unfinished):
        _sync(entry)
    unfinished.replace(path)
    _sync(path.parent)


@contextlib.contextmanager
def written_beside(path: Path) -> Iterator[Path]:
    """Yield where to write a new file or folder, which is renamed to `path` at the end.

    A file at `path` is replaced; a folder there has to be empty. On failure what was written is
    removed. Folders above are made.
    """
    unfinished = path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield unfinished
        rename_durably(unfinished, path)
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(unfinished) if unfinished.is_dir() else unfinished.unlink()


def write_durably(path: Path, text: str) -> None:
    """Write a text file beside its place, and rename it when it is complete."""
    with written_beside(path) as unfinished, open_regular(unfinished, "w") as file:
        file.write(text)


def exchange_durably(new: Path, old: Path) -> bool:
    """Let two folders change places in one step; return False where the system cannot do that.

    The new files are flushed to the disk before.
    """
    for path in (*new.rglob("*"), new):
        _sync(path)
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2  # of Linux; Python has no name for it
    except AttributeError:
        return False
    at_folder, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    if rename(at_folder, os.fsencode(new), at_folder, os.fsencode(old), exchange):
        return False
    _sync(old.parent)
    return True


@contextlib.contextmanager
def exclusive(lock: Path, where: str, patience: float = 0.0) -> Iterator[int]:
    """Hold a lock file and remove it at the end; the kernel releases it when this process dies.

    Folders that were made for the lock are removed if the body raises InputError. Where the file
    system has no locks, the log warns and nothing is locked.

    Args:
        patience: seconds to wait for another process that holds the lock.

    Yields:
        The file descriptor, for child processes that also hold the lock.

    Raises:
        InputError: another process holds it; the message begins with `where` and names pid, host
            and start.
    """
    new_folders = [folder for folder in lock.parents if not folder.exists()]  # the innermost first
    lock.parent.mkdir(parents=True, exist_ok=True)
    with _locked_file(lock, where, patience) as file:
        file.truncate(0)
        started = time.strftime("%Y-%m-%d %H:%M:%S")
        file.write(
            json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "started": started})
        )
        file.flush()
        refused = False
        try:
            yield file.fileno()
        except InputError:
            refused = True
            raise
        finally:
            lock.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # not empty
                for folder in new_folders if refused else ():
                    folder.rmdir()


def _locked_file(lock: Path, where: str, patience: float) -> IO[str]:
    """Open and lock a lock file, trying again for `patience` seconds; then InputError."""
    deadline = time.monotonic() + patience
    while True:
        file: IO[str] = open_regular(lock, "a+")
        try:
            _take_lock(file, lock, where)
            return file
        except InputError:
            file.close()
            if time.monotonic() >= deadline:
                raise
        time.sleep(RETRY_INTERVAL)


def _take_lock(file: IO[str], lock: Path, where: str) -> None:
    """Lock an open file; InputError if another process holds it or has just removed it.

    A file system without locks gives a warning.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InputError(
            f"{where}: in use by {_describe_owner(lock)}; wait for its end, or choose another"
        ) from None
    except OSError as error:
        log.warning(
            "%s: this file system has no locks (%s); let no other process write there",
            lock,
            error,
        )
    if not (lock.exists() and os.path.samestat(os.fstat(file.fileno()), lock.stat())):
        raise InputError(f"{where}: another process has just left it; try again")


def _describe_owner(lock: Path) -> str:
    """Return process, host and start of a lock's holder, for a message, or "another process"."""
    try:
        owner = json.loads(read_text(lock))
        host, started = str(owner["host"])[:100], str(owner["started"])[:30]
        return f"process {int(owner['pid'])} on {host!a}, which began at {started!a}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
