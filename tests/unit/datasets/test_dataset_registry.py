"""Names, recipes, the bundled Cora, symmetrising, and what the package imports."""

import importlib.util
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import dataset_settings, need_dgl

from partitioning import datasets
from partitioning.datasets import gnn_benchmark
from partitioning.datasets.bundled import CORA
from partitioning.datasets.symmetry import add_reverse_edges
from partitioning.errors import InputError
from partitioning.graph_data import GraphData
from partitioning.partition_settings import SyntheticSettings


def asked(name, file=None, symmetrize=None):
    return dataset_settings(
        name,
        file,
        dir="nowhere",
        symmetrize=symmetrize,
        synthetic=SyntheticSettings(100, 300, 4, 3, 0.8, 0, 2, 1),
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("coar", "dataset_name=coar: no such data set; did you mean cora"),
        ("OGBN-Arxiv", "did you mean ogbn-arxiv"),
        ("redit", "did you mean reddit"),
        ("roman_empire", "did you mean roman-empire"),
        ("wiki-cs", "did you mean wikics"),
        ("qqqqqq", "choose one of cora, .*file"),
    ],
)
def test_an_unknown_name_gets_the_nearest(name, message):
    with pytest.raises(InputError, match=message):
        datasets.load(asked(name))


def test_recipes_are_the_published_ones():
    assert datasets.canonical_name("cora") == "cora_torch"
    assert datasets.recipe("cora") is datasets.recipe("cora_torch")
    numbers = {name: datasets.recipe(name).split for name in datasets.NAMES}
    per_class = {
        name: (split.train_per_class, split.num_val, split.num_test)
        for name, split in numbers.items()
        if split.kind == "per_class" and name not in ("karateclub", *gnn_benchmark.FILES)
    }
    cora = (86, 300, 1806)
    assert per_class == {
        "cora": cora,
        "cora_torch": cora,
        "citeseer_torch": (178, 357, 1902),
        "pubmed_torch": (1461, 2190, 13144),
    }
    assert (numbers["synthetic"].train, numbers["synthetic"].val, numbers["synthetic"].test) == (
        0.08,
        0.02,
        0.9,
    )
    one_way = {name for name in datasets.NAMES if datasets.recipe(name).symmetrize}
    assert {name for name in one_way if name.startswith("og")} == {"ogbn-arxiv", "ogbn-papers100M"}


def test_the_asset_is_small():
    assert CORA.stat().st_size <= 150_000


def test_the_asset_is_written_with_the_same_bytes_every_time(tmp_path):
    script = Path(__file__).parents[3] / "scripts" / "build_cora.py"
    spec = importlib.util.spec_from_file_location("build_cora", script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with np.load(CORA, allow_pickle=False) as asset:
        arrays = dict(asset)
    for name in ("a.npz", "b.npz"):
        module.write_npz(tmp_path / name, arrays)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    with np.load(tmp_path / "a.npz", allow_pickle=False) as again:
        assert all((again[name] == arrays[name]).all() for name in arrays)


def multigraph(edges, num_nodes=5):
    ends = np.array(edges, dtype=np.int64).reshape(-1, 2)
    labels = np.zeros(num_nodes, dtype=np.int64)
    features = np.ones((num_nodes, 1), dtype=np.float32)
    return GraphData("toy", ends[:, 0], ends[:, 1], features, labels, 1, np.arange(num_nodes))


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=30))
def test_symmetrized_has_each_edge_as_often_as_the_more_frequent_direction(edges):
    graph = add_reverse_edges(multigraph(edges))
    before = Counter(edges)
    after = Counter(zip(graph.src.tolist(), graph.dst.tolist(), strict=True))
    expected = {(a, b): max(before[a, b], before[b, a]) for a in range(5) for b in range(5)}
    assert after == Counter({pair: count for pair, count in expected.items() if count})
    # the source's own edges come first, in their order
    kept = list(zip(graph.src.tolist(), graph.dst.tolist(), strict=True))[: len(edges)]
    assert kept == edges


def test_symmetrize_follows_the_setting():
    graph = datasets.load(asked("synthetic", symmetrize=True))
    assert graph.num_edges == 600  # nothing was missing


def test_heavy_libraries_are_not_imported_before_they_are_needed():
    code = (
        "import sys, partitioning.datasets, partitioning.node_split; "
        "heavy = {'torch', 'dgl', 'ogb', 'torch_geometric', 'pandas', 'sklearn'}; "
        "sys.exit(', '.join(heavy & set(sys.modules)) or None)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_dgl_needs_no_alias_and_says_nothing():
    need_dgl()
    code = (
        "import sys; from partitioning.dgl_import import import_dgl; dgl = import_dgl(''); assert"
        " dgl.__version__; sys.exit('setuptools.extern' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
