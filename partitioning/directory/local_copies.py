"""Local copies of data sets and partition directories that lie in an object store.

A data set is copied as a whole, and again when the store has another version. Of a partition
directory first meta.json is copied, later the partitions that this machine needs, each file checked
by the checksum in meta.json. What is written to a store is complete once its last object, meta.json
or upload.json, is there.

    CACHE/<hash of the address>/copy.json   the address; of a data set, the versions of its files
    CACHE/<hash of the address>/NAME        the file or folder
"""

import contextlib
import hashlib
import json
import logging
import re
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from partitioning.directory.meta import Meta
from partitioning.errors import InputError
from partitioning.files.file_io import (
    exclusive,
    file_checksum,
    parse_json,
    path_below,
    read_json,
    write_durably,
)
from partitioning.files.json_shape import check_shape
from partitioning.files.object_store import Entry, Place

log = logging.getLogger(__name__)

RECORD, META, MANIFEST, CHECKSUM = "copy.json", "meta.json", "upload.json", ".sha256"
LEFT_OUT = ("state", ".lock")
"""First letters of names in a run directory that are not uploaded: saved states, lock files."""
PATIENCE = 3600.0
"""Seconds to wait for another process that makes the same copy."""


def place_of(place: Place, cache: Path) -> Path:
    """Return where the copy of an address is, or will be; InputError for a bucket or host alone."""
    if not place.name:
        raise InputError(f"{place}: expected a path after the bucket or host")
    digest = hashlib.sha256(place.url.rstrip("/").encode()).hexdigest()
    return cache / digest[:16] / place.name


# ---- data sets


def copy_data(place: Place, cache: Path) -> Path:
    """Copy a file, or all files below an address, unless the copy has the same versions.

    A file with NAME.sha256 beside it, as sha256sum writes it, has to have this checksum, and those
    of an uploaded run the checksums in its upload.json. Other processes wait up to PATIENCE.

    Returns:
        The copy, from which files that the store no longer has are removed.

    Raises:
        InputError: there is nothing, it cannot be read, a checksum is wrong or without its file, or
            the upload of a run has not ended.
    """
    target = place_of(place, cache)
    with exclusive(target.parent / ".lock", f"{place}: the copy {target}", PATIENCE):
        status = place.stat()
        if status is None and not place.can_list and not place.url.endswith("/"):
            status = Entry(None, "")  # the download says whether there is one
        if status is not None:
            beside = Place(place.setting, place.url + CHECKSUM)
            is_checked = "?" not in place.url and beside.stat() is not None
            checksums = {"": _read_checksum(beside)} if is_checked else {}
            _copy_changed(place, target, {"": status}, checksums)
            return target
        objects = place.objects()
        if not objects:
            raise InputError(f"{place}: there is no such object or folder; correct the address")
        checksums = _read_checksums(place, objects)
        missing = sorted(checksums.keys() - objects.keys())
        if missing:
            raise InputError(f"{place / missing[0]}: has a checksum, and is not there; upload it")
        files_to_copy = {
            name: entry
            for name, entry in objects.items()
            if name != MANIFEST and not name.endswith(CHECKSUM)
        }
        _copy_changed(place, target, files_to_copy, checksums)
    return target


def _read_checksum(place: Place) -> str:
    """Return the checksum in a file of sha256sum; InputError if it has none."""
    first = place.read_text("file of sha256sum").partition(" ")[0].strip().lower()
    if not re.fullmatch("[0-9a-f]{64}", first):
        raise InputError(
            f"{place}: begins with {first[:64]!a}; expected a sha256 in hex, as sha256sum writes it"
        )
    return first


def _read_checksums(place: Place, objects: dict[str, Entry]) -> dict[str, str]:
    """Return the checksums that a folder states of its files, by name.

    {} where it states none. InputError where the upload of a run has not ended, or a file with
    checksums is wrong.
    """
    checksums: dict[str, str] = {}
    if MANIFEST in objects:
        content = (place / MANIFEST).read_text("list of files")
        try:
            manifest = parse_json(content)
            check_shape(manifest, {"status": str, "sha256": {"*": str}}, "")
        except ValueError as error:
            raise InputError(f"{place / MANIFEST}: {error}; upload the run again") from None
        if manifest["status"] != "complete":
            raise InputError(f"{place}: the upload of this run has not ended; wait, or repeat it")
        checksums = manifest["sha256"]
    for name in objects:
        if name.endswith(CHECKSUM):
            checksums[name.removesuffix(CHECKSUM)] = _read_checksum(place / name)
    return checksums


def _copy_changed(
    place: Place, target: Path, entries: dict[str, Entry], checksums: dict[str, str]
) -> None:
    """Copy the files that differ in checksum, size or version; remove those that are gone.

    What is copied is recorded beside `target` and logged, file by file. InputError for a damaged
    record, a failed download, or one without the stated checksum.
    """
    record = target.parent / RECORD
    known = read_json(record).get("files") if record.is_file() else {}
    if not isinstance(known, dict):
        raise InputError(f"{record}: has no versions by file; remove its folder")
    files: dict[str, Any] = {}
    for name, entry in entries.items():
        path, stated = _path_of_copy(target, name, str(place)), checksums.get(name)
        stored = None
        with contextlib.suppress(OSError):  # there is no copy yet
            stored = file_checksum(path)
        files[name] = {**asdict(entry), "sha256": stored}
        is_same = entry.version and known.get(name) == files[name] and stated in (None, stored)
        if stored is None or not (is_same or stated == stored):
            log.info("copying %s to %s", (place / name).url, path)
            files[name]["sha256"] = (place / name).download(path, stated, entry.size)
            _write_json(record, {"url": place.url, "files": known | files})
    _write_json(record, {"url": place.url, "files": files})
    for name in known.keys() - files.keys():
        _path_of_copy(target, name, str(record)).unlink(missing_ok=True)


def _path_of_copy(target: Path, name: str, where: str) -> Path:
    """Return the path of a data set's file; the name is empty where the data set is one file."""
    return path_below(target, name, where) if name else target


# ---- partition directories


def mirror(place: Place, cache: Path) -> Path:
    """Return the local folder that stands for a folder of partition directories.

    The folder and its record, which `origin` reads, are written; nothing is downloaded. InputError
    for a bucket or host alone.
    """
    target = place_of(place, cache)
    target.mkdir(parents=True, exist_ok=True)
    record = target.parent / RECORD
    if not record.is_file():
        _write_json(record, {"url": place.url, "setting": place.setting})
    return target


def origin(directory: Path) -> Place | None:
    """Return the address that a folder, or one up to three above, stands for; None for no copy.

    InputError for a damaged record.
    """
    for folder in (directory, *directory.parents[:3]):
        record = folder.parent / RECORD
        if record.is_file():
            content = read_json(record)
            if "setting" in content:
                place = Place(str(content["setting"]), str(content.get("url")))
                return (
                    place
                    if directory == folder
                    else place / directory.relative_to(folder).as_posix()
                )
    return None


def find_stored(base: Path, named: str, other: str) -> None:
    """Copy the descriptions of the directories that a command may mean.

    These are the folder itself, `named`, `other`, and those that differ from `named` in the number
    of partitions, which https cannot list. `base` has to be of `mirror`.
    """
    place = origin(base)
    assert place is not None
    names = ["", named, other]
    if place.can_list:
        stem = f"{named.rpartition('-')[0]}-"
        names = ["", *(name for name in place.folders() if name == other or name.startswith(stem))]
    for name in names:
        refresh(base / name)


def refresh(directory: Path) -> bool:
    """Copy meta.json of a partition directory; return whether the store has the directory.

    False also for a directory that stands for no address. InputError where the store fails.
    """
    place = origin(directory)
    if place is None or (place / META).stat() is None:
        return False
    (place / META).download(directory / META)
    return True


def fetch_parts(directory: Path, meta: Meta | None, parts: Iterable[int]) -> None:
    """Copy the files of these partitions that are missing or have another checksum.

    They are logged. Nothing for a directory that stands for no address, or has no `meta`.
    InputError for a failed download.
    """
    place = origin(directory)
    if place is None or meta is None:
        return
    begins = tuple(f"part{part}/" for part in parts)
    for name, checksum in meta.checksums.items():
        path = path_below(directory, name, str(place))
        is_needed = name.startswith(begins) and name.endswith(".npy")
        if is_needed and not (path.is_file() and file_checksum(path) == checksum):
            log.info("copying %s to %s", (place / name).url, path)
            (place / name).download(path, checksum)


def announce_directory(directory: Path) -> None:
    """Announce an upload to the address that a partition directory stands for, if any.

    InputError, before the directory is made, where the store refuses to be written.
    """
    place = origin(directory)
    if place is not None:
        announce_upload(place)


def upload_directory(directory: Path, meta: Meta) -> None:
    """Write a partition directory to the address it stands for, if any; meta.json comes last.

    Prints the address. Until the end the address has no meta.json; then the upload.json of
    `announce_directory` is removed. InputError names the directory, from which it can be repeated.
    """
    place = origin(directory)
    if place is None:
        return
    try:
        (place / META).remove()
        for name in meta.checksums:
            log.info("writing %s", (place / name).url)
            (place / name).upload(path_below(directory, name, str(directory / META)))
        (place / META).upload(directory / META)
        (place / MANIFEST).remove()
    except InputError as error:
        raise InputError(
            f"{error}. The partitions are in {directory}: the same command uploads them"
        ) from None
    print(f"written to {place.url}")


# ---- results


def announce_upload(place: Place) -> None:
    """Write upload.json with the status `running`; InputError, before a run, if refused."""
    (place / MANIFEST).write(json.dumps({"status": "running", "sha256": {}}).encode())


def upload_run(place: Place, run_dir: Path) -> None:
    """Write the files of a finished run, but LEFT_OUT; upload.json with checksums comes last."""
    files: dict[str, str] = {}
    for path in sorted(path for path in run_dir.rglob("*") if path.is_file()):
        name = path.relative_to(run_dir).as_posix()
        if any(part.startswith(LEFT_OUT) for part in name.split("/")):
            continue
        files[name] = file_checksum(path)
        (place / name).upload(path)
    content = {"status": "complete", "sha256": files}
    (place / MANIFEST).write(json.dumps(content, indent=2).encode())


def _write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, json.dumps(content))
