"""Directories that the public Retexo code or PyG's partitioner made train to the same result as
ours of the same assignment; test_edges.py has those of DGL.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import MASKS, dgl, dgl_directory, random_graph, run_main, thirds, write_partitions

from partitioning.directory.read_directory import find
from partitioning.errors import InputError
from retexo.apps import train
from retexo.settings.compose import compose

PARTS = np.random.default_rng(3).integers(3, size=40)
OVERRIDES = (
    "num_partitions=3",
    "hidden_dim=8",
    "num_rounds=[6]",
    "stopping=none",
    "dropout=0",
    "device=cpu",
    "cluster.threads=1",
    "optimizer._target_=torch.optim.SGD",
    "learning_rate=[0.1]",
    "+experiment=exact",
)


def trained(
    partition_dir: Path, run_dir: Path, *overrides: str
) -> tuple[dict[str, Any], list[float | None]]:
    """The summary, and the loss of every round."""
    summary = train.run(
        compose([*OVERRIDES, f"partition_dir={partition_dir}", *overrides]), run_dir
    )
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    return summary, [json.loads(line)["train_loss"] for line in lines]


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[float | None]]:
    folder = Path(tmp_path_factory.mktemp("ours"))
    directory = write_partitions(folder, random_graph(), thirds(40), PARTS, 3)
    return trained(directory.path, folder / "run")


def assert_same(found: Any, ours: Any) -> None:
    losses = [np.array(run[1], float) for run in (found, ours)]  # None, not computed, becomes NaN
    np.testing.assert_allclose(*losses, rtol=1e-4)
    assert found[0]["test"] == pytest.approx(ours[0]["test"], abs=1e-6)
    for kind in ("features", "embeddings", "gradients"):
        assert found[0]["bytes"]["by_kind"][kind] == ours[0]["bytes"]["by_kind"][kind]


def test_the_public_layout(ours: Any, tmp_path: Path) -> None:
    """PARTITION_DIR/NAME/NAME.json with a meta.json of counts, and degrees beside the features."""
    folder = tmp_path / "karateclub"
    dgl_directory(folder, random_graph(), thirds(40), PARTS)
    (folder / "toy.json").rename(folder / "karateclub.json")
    counts = {"n_feat": 6, "n_class": 3, **{f"n_{name.split('_')[0]}": 13 for name in MASKS}}
    (folder / "meta.json").write_text(json.dumps(counts))
    for path in folder.glob("part*/node_feat.dgl"):
        tensors = dgl.data.utils.load_tensors(str(path))
        rows = len(tensors["_N/label"])
        tensors |= {
            f"_N/{name}": torch.full((rows,), 7) for name in ("in_deg", "out_deg")
        }  # never those of the graph
        dgl.data.utils.save_tensors(str(path), tensors)
    assert_same(trained(tmp_path, tmp_path / "run", "dataset_name=karateclub"), ours)


SMALL = ("num_rounds=[2]", "device=cpu", "hidden_dim=16")


@pytest.mark.timeout(240)
def test_a_directory_of_pyg_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyg = pytest.importorskip("torch_geometric", reason="the extra pyg")
    from torch_geometric.distributed import Partitioner
    from torch_geometric.loader import ClusterData

    graph = random_graph()
    edges = torch.from_numpy(np.stack((graph.src, graph.dst)).astype(np.int64))
    data = pyg.data.Data(
        x=torch.from_numpy(graph.features), edge_index=edges, y=torch.from_numpy(graph.labels)
    )
    data.edge_attr = 100.0 * edges[0][:, None] + edges[1][:, None]
    parts = torch.from_numpy(np.random.default_rng(0).integers(0, 2, graph.num_nodes))
    monkeypatch.setattr(
        ClusterData, "_metis", lambda *_: parts
    )  # which needs pyg-lib or torch-sparse
    Partitioner(data, num_parts=2, root=str(tmp_path / "pyg")).generate_partition()
    check(tmp_path, graph)


def check(tmp_path: Path, graph) -> None:
    """The parts hold the graph; a missing label is named with its remedy; it trains."""
    root = tmp_path / "pyg"
    with pytest.raises(InputError, match=r"label\.pt: missing; .*torch\.save\(data\.y, PATH\)"):
        find([root], 2).read(0)
    for name, values in {"label": graph.labels, **thirds(graph.num_nodes)}.items():
        torch.save(torch.from_numpy(values), root / f"{name}.pt")
    torch.save(
        100.0 * torch.from_numpy(graph.src) + torch.from_numpy(graph.dst), root / "edge_attr.pt"
    )
    found = set()
    parts = list(map(find([root], 2).read, range(2)))
    for part in parts:
        rows = part.node_ids.numpy()
        assert (part.features.numpy() == graph.features[rows]).all()
        assert (part.labels.numpy() == graph.labels[rows]).all()
        halo = [
            parts[owner].node_ids[index]
            for owner, index in zip(part.halo_owner, part.halo_index, strict=True)
        ]
        ids = np.concatenate((rows, np.array(halo, dtype=np.int64)))
        ends = [torch.from_numpy(ids[end.numpy()]) for end in (part.src, part.dst)]
        assert part.edge_feat is not None
        assert torch.equal(part.edge_feat[:, 0], 100.0 * ends[0] + ends[1])
        found |= set(zip(ids[part.src.numpy()], ids[part.dst.numpy()], strict=True))
    assert found == {
        (src, dst) for src, dst in zip(graph.src, graph.dst, strict=True) if src != dst
    }
    ended = run_main("app=train", f"partition_dir={root}", "num_partitions=2", *SMALL, cwd=tmp_path)
    assert ended.rc == 0, ended.output
