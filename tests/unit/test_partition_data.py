"""app=partition_data: made once, used again, and never lost without being asked."""

from pathlib import Path

import pytest
from support import random_graph, save_npz, thirds

from partitioning.errors import InputError
from partitioning.storage import Meta
from retexo.apps import partition_data
from retexo.config import compose


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_npz(tmp_path / "toy.npz", random_graph(), thirds(40))
    return tmp_path


def made(folder: Path, *overrides: str) -> Meta:
    arguments = [
        "app=partition_data",
        "dataset_name=file",
        f"dataset_file={folder}/toy.npz",
        f"partition_dir={folder}/parts",
    ]
    return partition_data.run(compose([*arguments, "num_partitions=2", *overrides]).partition)


def modified(folder: Path) -> list[int]:
    return [path.stat().st_mtime_ns for path in sorted((folder / "parts").rglob("*"))]


def test_the_same_settings_use_what_is_there(folder: Path) -> None:
    first = made(folder)
    before = modified(folder)
    assert made(folder) == first
    assert modified(folder) == before


@pytest.mark.parametrize("override", ["partition.seed=5", "split.seed=6", "symmetrize=true"])
def test_other_settings_are_refused_and_named(folder: Path, override: str) -> None:
    made(folder)
    before = modified(folder)
    with pytest.raises(InputError) as error:
        made(folder, override)
    name, value = override.split("=")
    assert name in str(error.value)
    assert str(True if value == "true" else value) in str(error.value)
    assert "overwrite=true" in str(error.value)
    assert modified(folder) == before
    assert made(folder, override, "overwrite=true").request[name] == (True if value == "true" else int(value))


def test_changed_data_are_refused(folder: Path) -> None:
    made(folder)
    save_npz(folder / "toy.npz", random_graph(seed=9), thirds(40))
    with pytest.raises(InputError, match="dataset_file"):
        made(folder)


def test_a_foreign_directory_is_not_replaced(folder: Path) -> None:
    (folder / "parts" / "toy-random-vol-2").mkdir(parents=True)
    (folder / "parts" / "toy-random-vol-2" / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="not written by this program"):
        made(folder)
    assert (folder / "parts" / "toy-random-vol-2" / "thesis.txt").exists()


def test_damage_is_found_before_use(folder: Path) -> None:
    made(folder)
    path = folder / "parts" / "toy-random-vol-2" / "part0" / "graph.dgl"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(InputError, match="missing or damaged"):
        made(folder)


def test_equal_settings_make_equal_directories(folder: Path) -> None:
    digests = [made(folder, f"partition_dir={folder}/{name}").digest() for name in ("a", "b")]
    assert digests[0] == digests[1]
