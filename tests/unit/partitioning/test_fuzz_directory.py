"""Whatever happens to the files of a partition directory: an InputError, or what was written is read."""

import functools
import itertools
import json
import shutil
import tempfile
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from support import dgl_directory, random_graph, save_npz, snapshot, thirds

from partitioning.directory.types import Partition
from partitioning.errors import InputError
from retexo.apps import partition_data
from retexo.apps.partitions import open_directory
from retexo.config.compose import compose
from retexo.config.settings import Settings
from retexo.training.graph_info import num_classes

pytestmark = pytest.mark.timeout(600)  # seconds on a quiet machine; other work may have the cores
FUZZ = {
    "phases": (Phase.reuse, Phase.generate),  # an example is short already
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
}
NAME = "toy-random-vol-3"
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 50), st.sampled_from([10**30, 1e300]), st.floats(), st.text(max_size=5)
)
values = st.one_of(scalars, st.lists(scalars, max_size=3), st.dictionaries(st.text(max_size=3), scalars, max_size=2))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with whole/NAME, other/NAME (of another seed) and theirs/NAME (DGL's own, without checksums)."""
    folder = Path(tmp_path_factory.mktemp("fuzz"))
    save_npz(folder / "toy.npz", random_graph(), thirds(40))
    for name, seed in (("whole", 42), ("other", 7)):
        partition_data.run(settings_for(folder, folder / name, f"partition.seed={seed}").partition)
    dgl_directory(folder / "theirs" / NAME, random_graph(), thirds(40), np.arange(40) % 3)
    return folder


def settings_for(folder: Path, partition_dir: Path, *overrides: str) -> Settings:
    data = ("dataset_name=file", f"dataset_file={folder}/toy.npz", "num_partitions=3")
    return compose([*data, f"partition_dir={partition_dir}", *overrides])


@functools.cache
def composed(folder: Path) -> Settings:
    return settings_for(folder, folder / "whole")


def settings_for_copy(folder: Path, place: Path) -> Settings:
    """As composed once, with another partition_dir: composing takes longer than reading."""
    configured = composed(folder)
    return replace(configured, partition=replace(configured.partition, dir=str(place)))


def read_all(configured: Settings) -> list[Partition]:
    """All that app=train reads of a directory before it starts workers, and what the workers read."""
    directory = open_directory(configured)
    directory.digest()
    directory.verify(range(3))
    partitions = [directory.read(part) for part in range(3)]
    for partition in partitions:
        assert (partition.labels < num_classes(partition, directory)).all()
    return partitions


@functools.cache
def whole(folder: Path) -> list[Partition]:
    return read_all(composed(folder))


def same(one: Partition, other: Partition) -> bool:
    pairs = ((getattr(one, field.name), getattr(other, field.name)) for field in fields(Partition))
    return all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs)


# --- damage ------------------------------------------------------------------------------------------------------------  # noqa: E501


def pick(folder: Path, number: int) -> Path:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return files[number % len(files)]


def flip(folder: Path, number: int, where: int, _value: Any) -> None:
    path = pick(folder, number)
    content = bytearray(path.read_bytes())
    content[where % len(content)] ^= 1 << (number % 8)
    path.write_bytes(content)


def truncate(folder: Path, number: int, where: int, _value: Any) -> None:
    path = pick(folder, number)
    content = path.read_bytes()
    path.write_bytes(content[: where % len(content)])


def remove(folder: Path, number: int, _where: int, _value: Any) -> None:
    pick(folder, number).unlink()


def remove_part(folder: Path, number: int, _where: int, _value: Any) -> None:
    shutil.rmtree(folder / f"part{number % 3}", ignore_errors=True)


def swap(folder: Path, number: int, where: int, _value: Any) -> None:
    one, other = pick(folder, number), pick(folder, where)
    contents = one.read_bytes(), other.read_bytes()
    other.write_bytes(contents[0])
    one.write_bytes(contents[1])


def foreign(folder: Path, number: int, _where: int, _value: Any) -> None:
    """A file of another partitioning in place of this one's."""
    path = pick(folder, number)
    theirs = folder.parents[1] / "other" / NAME / path.relative_to(folder)
    if theirs.is_file():
        shutil.copy(theirs, path)


def become_a_folder(folder: Path, number: int, _where: int, _value: Any) -> None:
    path = pick(folder, number)
    path.unlink()
    path.mkdir()


def edit(folder: Path, number: int, where: int, value: Any) -> None:
    """Another value somewhere in one of the two JSON files, or none."""
    files = [path for path in (folder / "meta.json", folder / f"{NAME}.json") if path.is_file()]
    if not files:
        return
    path = files[number % len(files)]
    try:
        content = json.loads(path.read_text())
    except ValueError:
        return
    places = list(spots(content))
    if not places:
        return
    container, key = places[where % len(places)]
    if value == "remove":
        del container[key]
    else:
        container[key] = value
    path.write_text(json.dumps(content))


def spots(content: Any) -> Any:
    """Every (container, key) of a JSON value."""
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in list(items):
        yield content, key
        yield from spots(value)


DAMAGES = (flip, truncate, remove, remove_part, swap, foreign, become_a_folder, edit, edit, edit)
damages = st.lists(
    st.tuples(st.sampled_from(DAMAGES), st.integers(0, 99), st.integers(0, 9999), st.one_of(values, st.just("remove"))),
    min_size=1,
    max_size=2,
)


def damaged(folder: Path, source: str, damage: list[Any]) -> Path:
    """A folder with a spoilt copy of a partition directory."""
    place = Path(tempfile.mkdtemp(dir=folder))
    shutil.copytree(folder / source / NAME, place / NAME)
    for spoil, number, where, value in damage:
        if any(path.is_file() for path in (place / NAME).rglob("*")):
            spoil(place / NAME, number, where, value)
    return place


@settings(max_examples=400, **FUZZ)
@given(damage=damages)
def test_damage_is_named_or_does_no_harm(made: Path, damage: list[Any]) -> None:
    originals = whole(made)
    place = damaged(made, "whole", damage)
    before = snapshot(place)
    configured = settings_for_copy(made, place)
    read = outcome(lambda: read_all(configured))
    if read is not None and (place / NAME / "meta.json").is_file():
        assert all(itertools.starmap(same, zip(read, originals, strict=True))), "other data was read"
    outcome(lambda: partition_data.run(configured.partition))
    assert before.items() <= snapshot(place).items(), "a file was lost or overwritten"
    shutil.rmtree(place)


@settings(max_examples=15, **FUZZ)
@given(damage=damages)
def test_damage_to_a_directory_of_dgl_ends_no_process(made: Path, damage: list[Any]) -> None:
    """Nobody took checksums of it, and DGL's reader crashes at some files."""
    place = damaged(made, "theirs", damage)
    before = snapshot(place)
    outcome(lambda: read_all(settings_for_copy(made, place)))
    assert snapshot(place) == before
    shutil.rmtree(place)


def test_a_file_that_dgl_crashes_on_is_refused(made: Path) -> None:
    place = damaged(made, "theirs", [])
    path = place / NAME / "part1" / "node_feat.dgl"
    content = path.read_bytes()
    for length in range(1, len(content), len(content) // 6):
        path.write_bytes(content[:length])
        outcome(lambda: read_all(settings_for_copy(made, place)))
    shutil.rmtree(place)


@pytest.mark.parametrize(
    ("field", "value"),
    [("num_classes", 1), ("num_classes", "3"), ("num_features", 7), ("task", "multilabel"), ("checksums", []),
     ("num_nodes", 41), ("parts", []), ("cut_edges", {}), ("request", "x")],
)  # fmt: skip
def test_what_the_fuzz_has_found_in_meta(made: Path, field: str, value: Any) -> None:
    place = damaged(made, "whole", [])
    path = place / NAME / "meta.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    with pytest.raises(InputError, match=r"meta\.json"):
        read_all(settings_for_copy(made, place))


def outcome(work: Any) -> Any:
    """What a function returns; None if it refuses, which it has to do with words."""
    try:
        return work()
    except InputError as error:
        if not str(error).strip():
            raise
        return None
