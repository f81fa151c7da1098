"""Which partition directory is used: made where there is none, with the number of parts of the only
one there is.
"""

import logging
import shutil
from pathlib import Path

import pytest

from partitioning.errors import InputError
from retexo.apps import partition_data
from retexo.apps.find_partitions import open_directory, with_found_parts
from retexo.settings.compose import compose
from retexo.settings.run_settings import Settings

DATA = (
    "dataset_name=synthetic",
    "synthetic.nodes=60",
    "synthetic.edges=90",
    "synthetic.features=4",
    "split.seed=3",
)


@pytest.fixture(autouse=True)
def _fresh_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "place").mkdir()
    monkeypatch.chdir(tmp_path / "place")


def settings(*overrides: str) -> Settings:
    return with_found_parts(compose([*DATA, *overrides]))


def make(number: int, *overrides: str) -> None:
    partition_data.run(compose([*DATA, f"num_partitions={number}", *overrides]).partition)


def test_it_is_made_where_there_is_none_and_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    made = open_directory(settings())
    assert made.path == Path("data/partitions/synthetic-random-vol-4")
    assert f"no partition directory at {made.path}" in caplog.text
    caplog.clear()
    assert open_directory(settings()).digest() == made.digest()
    assert "no partition directory" not in caplog.text
    shutil.rmtree("data")
    assert open_directory(settings()).digest() == made.digest(), "made again it is another"


@pytest.mark.parametrize("name", ["reddit", "cora", "synthetic"])
def test_a_file_beside_another_name_is_not_ignored(name: str) -> None:
    """The first one is the default, the second comes with the code, and partitions of the third are
    there.
    """
    make(4)
    with pytest.raises(
        InputError, match=f"dataset_file=g.npz has no meaning with dataset_name={name}: .*=file"
    ):
        open_directory(compose([*DATA, f"dataset_name={name}", "dataset_file=g.npz"]))


def test_the_number_of_parts_of_the_only_directory() -> None:
    make(3)
    found = settings()
    cluster = found.train.cluster
    assert (found.partition.num_partitions, cluster.num_partitions, cluster.parts_per_node) == (
        3,
        3,
        3,
    )
    assert found.resolved["num_partitions"] == 3
    assert open_directory(found).num_parts == 3
    for given in ("num_partitions=2", "parts_per_node=2"):
        assert settings(given).partition.num_partitions == (2 if given.startswith("num") else 4)
    make(2)
    assert settings().partition.num_partitions == 4, "two fit, so neither is taken"
    make(4)
    assert settings().partition.num_partitions == 4


def test_a_directory_of_another_layout_says_its_number() -> None:
    make(2)
    Path("data/partitions/synthetic-random-vol-2").rename("elsewhere")
    assert settings("partition_dir=elsewhere").partition.num_partitions == 2


def test_the_published_place_is_read_unless_another_is_given() -> None:
    make(4, "partition_dir=../retexo-datasets/partitions/")
    assert open_directory(settings()).path == Path(
        "../retexo-datasets/partitions/synthetic-random-vol-4"
    )
    assert open_directory(settings("partition_dir=data/partitions")).path.parent == Path(
        "data/partitions"
    )


def test_several_nodes_and_a_download_are_refused_with_a_remedy() -> None:
    with pytest.raises(InputError, match=r"app=partition_data .* copy it to the others"):
        open_directory(settings("parts_per_node=2"))
    for name in ("reddit", "ogbn-arxiv", "pubmed_torch"):
        with pytest.raises(
            InputError, match=rf"app=partition_data dataset_name={name} .* dataset_name=cora"
        ):
            open_directory(with_found_parts(compose([f"dataset_name={name}"])))
    assert not Path("data").exists()


def test_features_of_a_type_are_compared_with_those_of_the_directory() -> None:
    data = ("dataset_name=synthetic_hetero", "synthetic.nodes=60", "synthetic.edges=90")
    kinds = "features={type1:degree}"
    partition_data.run(compose([*data, kinds]).partition)
    assert open_directory(compose([*data, kinds])).num_parts == 4
    with pytest.raises(InputError, match=r"features=.*random.* was made with features=.*degree"):
        open_directory(compose([*data, "features={type1:random}"]))
