"""One test for all doors: a reader of what others write gets a valid input with some mutations. It
accepts it, or refuses it by the program's own error, in seconds and little memory, and leaves
nothing behind.
"""

import contextlib
import logging
import os
import shutil
import signal
import stat
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import psutil

from partitioning.errors import InputError
from retexo.settings.messages import is_wrong_path

SECONDS, LIMIT = 10.0, 240.0
"""Of computing in which a reader has to end, and those after which it is interrupted, however busy
the machine is."""
MEMORY = 1 << 30
"""Bytes that a reader may take."""
LETTERS, LOGGED = 3_000, 20_000
"""Of an error's message, and of all that is logged."""

Content = dict[str, Any]
"""What was read, by names; values can be compared by ==."""


@dataclass(frozen=True)
class Change:
    """What a mutation did."""

    description: str
    touched: frozenset[str] | None = frozenset()
    """Names of the content that may differ from that of the valid input; None: all."""
    refused: bool = False
    """Whether nothing else than a refusal will do."""


@dataclass(frozen=True)
class Door:
    """A reader of what others write."""

    make: Callable[[Path], None]
    """Writes a valid input into an empty folder."""
    mutate: Callable[[Path, Random], Change]
    read: Callable[[Path], Content]
    """Reads the input in a folder. InputError: it is refused."""
    writes: tuple[str, ...] = ()
    """Folders of the input that reading changes where it accepts."""
    judge: Callable[[Content, Content, Change], str] | None = None
    """What is wrong with what was read, beside what the valid input has; empty: nothing."""


@dataclass
class Tried:
    """How one input ended."""

    seed: int
    description: str
    accepted: bool = False
    message: str = ""
    seconds: float = 0.0
    memory: int = 0
    wrong: list[str] = field(default_factory=list)


class Late(BaseException):
    """A reader did not end in time."""


@dataclass(frozen=True)
class Valid:
    """A valid input of a door, and its content."""

    door: Door
    folder: Path
    content: Content

    @classmethod
    def make(cls, door: Door, folder: Path) -> "Valid":
        """Write the input, read it once, and check that mutations of nothing change nothing."""
        folder.mkdir(parents=True)
        with _in(folder.parent / "beside"):
            door.make(folder)
        valid = cls(door, folder, {})
        tried, content = valid._enter(0, lambda *_: Change("nothing"))
        assert tried.accepted, (tried.message, tried.wrong)
        assert not tried.wrong, tried.wrong
        return cls(door, folder, content)

    def enter(self, seed: int) -> Tried:
        """Try one input, which is made from the seed alone."""
        return self._enter(seed, self.door.mutate)[0]

    def _enter(self, seed: int, mutate: Callable[[Path, Random], Change]) -> tuple[Tried, Content]:
        with tempfile.TemporaryDirectory(dir=self.folder.parent, prefix="door-") as name:
            sandbox = Path(name)
            place, beside = sandbox / "a" / "b" / "input", sandbox / "a" / "beside"
            beside.mkdir(parents=True)
            place.parent.mkdir()
            shutil.copytree(self.folder, place)
            (place.parent / "precious.txt").write_text("precious")
            with _in(beside):
                change = mutate(place, Random(seed))
            before, tried, content = (
                _list_files(sandbox),
                Tried(seed, change.description),
                Content(),
            )
            with _in(beside), _watched(tried):
                content = self.door.read(place)
                tried.accepted = True
            left = _differences(before, _list_files(sandbox))
            if tried.accepted:
                written = tuple(f"a/b/input/{folder}" for folder in self.door.writes)
                left = [path for path in left if not path.startswith(written)]
            tried.wrong += [f"left behind: {', '.join(left[:5])}"] if left else []
            tried.wrong += ["accepted"] * (tried.accepted and change.refused)
            if tried.accepted and self.content:
                judge = self.door.judge or compare
                tried.wrong += filter(None, [judge(self.content, content, change)])
            return tried, content


def compare(valid: Content, content: Content, change: Change) -> str:
    """Return what differs though the mutation did not touch it; empty: nothing."""
    if change.touched is None:
        return ""
    names = [name for name in {**valid, **content} if valid.get(name) != content.get(name)]
    untouched = sorted(set(names) - change.touched)
    return f"changes {', '.join(untouched)}" if untouched else ""


@contextlib.contextmanager
def _in(folder: Path) -> Iterator[None]:
    """Work in a folder, where temporary files go, too."""
    folder.mkdir(exist_ok=True)
    with contextlib.chdir(folder), mock.patch.object(tempfile, "tempdir", str(folder)):
        yield


@contextlib.contextmanager
def _watched(tried: Tried) -> Iterator[None]:
    """Note how the body ends: by which error, when, with how much memory, and what it left."""

    def interrupt(*_: Any) -> None:
        raise Late

    logged = _Logged()
    root = logging.getLogger()
    level = root.level
    children = {child.pid for child in psutil.Process().children(recursive=True)}
    root.addHandler(logged)
    root.setLevel(logging.INFO)
    handler = signal.signal(signal.SIGALRM, interrupt)
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    memory, start, begin = _peak(), time.process_time(), time.monotonic()
    limit = signal.setitimer(signal.ITIMER_REAL, LIMIT)[0]
    try:
        with mock.patch.object(logging.Handler, "handleError", logged.fail):
            yield
    except InputError as error:
        tried.message = str(error)
        if not tried.message.strip() or len(tried.message) > LETTERS:
            tried.wrong.append(f"an error of {len(tried.message)} letters")
        if tried.message.encode(errors="ignore").decode() != tried.message:
            tried.wrong.append("an error that is no Unicode text")
    except OSError as error:  # a path that cannot be used is the user's, as for a command
        tried.message = str(error)
        if not is_wrong_path(error):
            tried.wrong.append(repr(error)[:200])
    except Late:
        tried.wrong.append("no end")
    except Exception as error:
        tried.message = traceback.format_exc()
        tried.wrong.append(f"{type(error).__name__}: {str(error)[:200]}")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        tried.seconds, tried.memory = time.process_time() - start, max(0, _peak() - memory)
        signal.signal(signal.SIGALRM, handler)
        if limit:  # of pytest-timeout
            signal.setitimer(signal.ITIMER_REAL, max(0.1, limit - time.monotonic() + begin))
        root.removeHandler(logged)
        root.setLevel(level)
    too_much = {
        f"{tried.seconds:.0f} s": tried.seconds > SECONDS,
        f"{tried.memory / 2**20:.0f} MiB": tried.memory > MEMORY,
        f"{logged.letters} letters in the log": logged.letters > LOGGED,
    }
    tried.wrong += [excess for excess, is_wrong in too_much.items() if is_wrong]
    tried.wrong += logged.wrong
    left = [
        child for child in psutil.Process().children(recursive=True) if child.pid not in children
    ]
    if left:
        tried.wrong.append(f"a process stayed: {left}")


class _Logged(logging.Handler):
    """Counts what is logged, and finds what cannot be written or is a traceback."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.wrong = 0, list[str]()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.letters += len(record.getMessage().encode())
        except Exception as error:
            self.wrong.append(f"a log line that cannot be written: {error!r}")
        if record.exc_info:
            self.wrong.append("a traceback in the log")

    def fail(self, *_: Any) -> None:
        self.wrong.append("logging failed")


def _peak() -> int:
    """The most memory that this process had since clear_refs was written, in bytes."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def _list_files(folder: Path) -> dict[str, Any]:
    """Kind and content of everything below a folder, by path."""
    files_by_path: dict[str, Any] = {}
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(parent, name)
            mode = path.lstat().st_mode
            content: Any = stat.S_IFMT(mode)
            if stat.S_ISREG(mode):
                content = path.read_bytes()
            elif stat.S_ISLNK(mode):
                content = path.readlink()
            files_by_path[path.relative_to(folder).as_posix()] = content
    return files_by_path


def _differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Paths that are new, gone or changed."""
    return sorted(path for path in {**before, **after} if before.get(path) != after.get(path))
