"""Seeded damage to files, JSON, arrays and settings, which test_doors.py tries by the thousand.

A mutation of a file is a function of its path and a `random.Random`; it leaves the path in some
other state.
"""

import contextlib
import json
import math
import os
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]
Mutation = Callable[[Path, Random], None]
MASKS = ("train_mask", "val_mask", "test_mask")

# --- files ----------


def flip(path: Path, rng: Random) -> None:
    content = bytearray(path.read_bytes())
    if content:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def truncate(path: Path, rng: Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: rng.randrange(len(content) + 1)])


def zero(path: Path, rng: Random) -> None:
    """A sector that was never written."""
    content = bytearray(path.read_bytes())
    begin = rng.randrange(len(content) + 1)
    content[begin : begin + 512] = bytes(len(content[begin : begin + 512]))
    path.write_bytes(content)


def append(path: Path, rng: Random) -> None:
    path.write_bytes(path.read_bytes() + rng.randbytes(rng.choice([1, 33, 5000])))


def junk(path: Path, rng: Random) -> None:
    path.write_bytes(
        rng.choice(
            [b"", b"\0" * 100, rng.randbytes(300), b"\xff\xfe\x00", b"null", b"[]", b"{}", b"NaN"]
        )
    )


def nested(path: Path, rng: Random) -> None:
    """More brackets than a recursive parser takes."""
    path.write_text(rng.choice(["[", '{"a":']) * 200_000, encoding="utf-8")


def remove(path: Path, rng: Random) -> None:
    path.unlink()


def become_a_folder(path: Path, rng: Random) -> None:
    path.unlink()
    path.mkdir()


def become_a_fifo(path: Path, rng: Random) -> None:
    path.unlink()
    os.mkfifo(path)


def become_a_loop(path: Path, rng: Random) -> None:
    path.unlink()
    path.symlink_to(path.name)


def become_endless(path: Path, rng: Random) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def swap(path: Path, rng: Random) -> None:
    """The contents of two files of a folder change places."""
    other = rng.choice(files(path.parent))
    contents = path.read_bytes(), other.read_bytes()
    other.write_bytes(contents[0])
    path.write_bytes(contents[1])


BYTES: tuple[Mutation, ...] = (flip, flip, flip, truncate, truncate, zero, append, junk, swap)
KINDS: tuple[Mutation, ...] = (
    remove,
    become_a_folder,
    become_a_fifo,
    become_a_loop,
    become_endless,
    nested,
)


def files(folder: Path) -> list[Path]:
    """The regular files below a folder, in the order of their names."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file() and path.resolve().is_relative_to(folder)
    )


def damage(folder: Path, rng: Random) -> list[str]:
    """Apply one or two mutations to files below a folder; return their names."""
    done = []
    for _ in range(rng.choice([1, 1, 2])):
        paths = files(folder)
        if not paths:
            break
        path = rng.choice(paths)
        choices: list[Mutation] = [*BYTES, rng.choice(KINDS)]
        if path.suffix == ".json":
            choices += [edit_json] * len(choices)
        mutation = rng.choice(choices)
        done.append(f"{mutation.__name__} {path.relative_to(folder)}")
        mutation(path, rng)
    return done


# --- JSON and settings ----------

INTEGERS = (
    0,
    1,
    2,
    3,
    -1,
    7,
    50,
    1000,
    10**6,
    2**31,
    2**32,
    2**63 - 1,
    2**63,
    2**64,
    10**9,
    10**30,
    -(2**63),
)
FLOATS = (0.0, 0.5, 1.0, -0.5, 1e-300, 1e9, 1e18, 1e39, 1e300, math.nan, math.inf, -math.inf, -0.0)
WORDS = (
    "",
    "null",
    "true",
    "1",
    "1e3",
    "nan",
    "../x",
    "/etc/passwd",
    "/dev/zero",
    "a" * 300,
    "é",
    "a\nb",
    "a\0b",
    "???",
    "\x1b[31m",
    "${seed}",
    "${nowhere}",
    "${oc.env:NOWHERE}",
    "gcn",
    "gat",
    "local",
    "files",
    "fraction",
    "per_class",
    "file",
    "parts",
    "km1",
    "metis",
    "powersgd",
    "bf16",
    "int8",
    "plain",
    "pool",
    "torch.optim.SGD",
    "torch.optim.Muon",
    "os.system",
    "cora",
    "auto",
    "none",
    "cuda",
    "toy.npz",
    "whole",
    "\ud800",
)


def scalar(rng: Random) -> Any:
    return rng.choice(
        (
            None,
            True,
            False,
            rng.choice(INTEGERS),
            rng.randrange(-3, 50),
            rng.choice(FLOATS),
            rng.choice(WORDS),
        )
    )


def value(rng: Random) -> Any:
    """Mostly a scalar, sometimes a list or a mapping."""
    few = [scalar(rng) for _ in range(rng.randrange(4))]
    return rng.choice((scalar(rng), scalar(rng), scalar(rng), few, [few], {"a": scalar(rng)}))


def like(default: Any, rng: Random) -> Any:
    """Mostly a value of the same type, often far out."""
    if rng.random() < 0.25 or default is None or isinstance(default, bool | dict):
        return value(rng)
    if isinstance(default, list):
        return [like(default[0], rng) if default else scalar(rng) for _ in range(rng.randrange(4))]
    return rng.choice({int: INTEGERS, float: FLOATS}.get(type(default), WORDS))


def quoted(value: Any) -> str:
    """A value as Hydra reads it on a command line."""
    if isinstance(value, list):
        return f"[{','.join(map(quoted, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{quoted(entry)}' for key, entry in value.items())}}}"
    if isinstance(value, str):
        return "'" + value.replace("'", "\\'") + "'"
    return (
        "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
    )


def spots(content: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) of a JSON value."""
    items = (
        content.items()
        if isinstance(content, dict)
        else enumerate(content)
        if isinstance(content, list)
        else ()
    )
    for key, entry in list(items):
        yield content, key
        yield from spots(entry)


def edit_json(path: Path, rng: Random) -> None:
    """Another value somewhere, or none."""
    with contextlib.suppress(ValueError):
        content = json.loads(path.read_text(encoding="utf-8"))
        container, key = rng.choice(list(spots(content)) or [({0: 0}, 0)])
        if rng.random() < 0.15:
            del container[key]
        else:
            container[key] = like(container[key], rng)
        path.write_text(json.dumps(content), encoding="utf-8")


# --- arrays ----------


def edit_arrays(arrays: Arrays, rng: Random) -> str:
    """Something else in one array, in place; says what."""
    name = rng.choice(sorted(arrays))
    array = arrays[name]
    number = rng.choice([-1, -2, len(array), 2**31, 2**62, 10**9])
    as_float = array.astype(np.float64)
    changes: dict[str, Callable[[], Any]] = {
        "odd value": lambda: _put(
            array, number if array.dtype.kind in "iu" else not array.flat[0], rng
        ),
        "NaN": lambda: _put(as_float, np.nan, rng),
        "inf": lambda: _put(as_float, np.inf, rng),
        "too much": lambda: _put(as_float, 1e39, rng),
        "half": lambda: as_float + 0.5,
        "float": lambda: as_float,
        "short": lambda: array[:-1],
        "long": lambda: np.concatenate([array, array[:1]]),
        "empty": lambda: array[:0],
        "deep": lambda: array[:, None],
        "no axis": lambda: np.array(3),
        "transposed": lambda: array.T,
        "text": lambda: array.astype(str),
        "bytes": lambda: array.astype("S9"),
        "objects": lambda: array.astype(object),
        "complex": lambda: array.astype(complex),
        "time": lambda: array.astype(np.int64).astype("M8[s]"),
        "uint64": lambda: array.astype(np.int64).astype(np.uint64) + np.uint64(2**63),
        "int8": lambda: array.astype(np.int8),
        "big endian": lambda: array.astype(array.dtype.newbyteorder(">")),
        "half precision": lambda: array.astype("f2"),
        "record": lambda: np.zeros(len(array), [("a", "i8"), ("b", "f4")]),
        "permuted": lambda: rng_permuted(array, rng),
        "constant": lambda: np.zeros_like(array),
        "of another": lambda: arrays[rng.choice(sorted(arrays))],
        "missing": lambda: None,
    }
    what = rng.choice(sorted(changes))
    with contextlib.suppress(ValueError, TypeError), warnings.catch_warnings(action="ignore"):
        changed = changes[what]()
        if changed is None:
            del arrays[name]
        else:
            arrays[name] = changed
    return f"{what} in {name}"


def _put(array: np.ndarray, value: Any, rng: Random) -> np.ndarray:
    changed = array.copy()
    changed.flat[rng.randrange(changed.size)] = value
    return changed


def rng_permuted(array: np.ndarray, rng: Random) -> np.ndarray:
    return array[rng.sample(range(len(array)), len(array))]


def save_npz(path: Path, arrays: Arrays, rng: Random | None = None) -> str:
    """Write arrays as an npz file; with `rng` sometimes a malformed one.

    With `rng` sometimes with a member twice, one that is no array, or one whose header lies.
    """
    np.savez(path, **arrays)  # type: ignore[arg-type]
    how = rng.choice(["", "", "", "", "twice", "no array", "header"]) if rng is not None else ""
    if how:
        with zipfile.ZipFile(path, "a") as archive, warnings.catch_warnings(action="ignore"):
            label = next(
                (f"{name}.npy" for name in arrays if name.endswith("label")), f"{min(arrays)}.npy"
            )
            header, lie = archive.read(label), rng and rng.choice([b"(-1,)", b"(9e9)"])
            content = {
                "twice": header,
                "no array": b"text",
                "header": header.replace(b"(40,)", lie),
            }[how]
            ids = label.replace("label", "node_id")
            archive.writestr({"twice": label, "no array": "more.txt", "header": ids}[how], content)
    return how


def is_graph(arrays: Arrays) -> bool:
    """Whether edges, features, labels and ids make sense: the reader's checks in another way."""
    try:
        arrays = {
            name: array.astype(np.float64) if array.dtype.kind in "OSU" else array
            for name, array in arrays.items()
        }
        label = arrays["label"]
        feat = arrays.get("feat", np.ones((len(label), 1)))
        ends = np.concatenate([arrays["src"], arrays["dst"]])
        ids = arrays.get("node_id", np.arange(len(label)))
        good = [
            feat.ndim == 2,
            feat.shape[1] > 0,
            len(feat) == len(label) > 0,
            feat.dtype.kind in "biuf",
            not np.isinf(feat.astype(np.float32)).any(),  # NaN is a blank cell
            _are_integers(ends),
            len(arrays["src"]) == len(arrays["dst"]),
            not len(ends) or 0 <= ends.min() <= ends.max() < len(label),
            _are_integers(ids),
            len(np.unique(ids)) == len(ids) == len(label),
            _are_labels(label),
        ]
        return all(good)
    except (KeyError, IndexError, TypeError, ValueError):
        return False


def _are_integers(array: np.ndarray) -> bool:
    kind = array.dtype.kind
    return array.ndim == 1 and (
        kind in "biu" or (kind == "f" and bool((array == np.floor(array)).all()))
    )


def _are_labels(label: np.ndarray) -> bool:
    """A class that is any integer or a time for each node, or a 0 or 1 for each of its labels."""
    if label.ndim == 2 and label.shape[1] > 1:
        return bool((np.isin(label, (0, 1)) | np.isnan(label.astype(float))).all())
    label = label.reshape(len(label), -1)[:, 0] if label.ndim == 2 else label
    known = label[~np.isnan(label)] if label.dtype.kind == "f" else label
    return (label.dtype.kind == "M" and label.ndim == 1) or _are_integers(known)
