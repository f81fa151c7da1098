"""Users and items: recall@20 and NDCG@20 of a published split, with seconds and bytes.

The untrained methods, the network layer by layer and, with --lightgcn, LightGCN of PyG (He et al.,
SIGIR 2020: LGConv, three layers, 64 columns, BPR loss).

    OMP_NUM_THREADS=1 python benchmarks/user_items.py ../shared/datasets/gowalla/pairs.npz
    python benchmarks/user_items.py pairs.npz --lightgcn 3600

The npz file has `train` and `test`, int [2, n]: user and item of each pair. A random tenth of each
user's training pairs validates, as split.by=user draws it. Scores are of all users with test
pairs, and of the items that are no training item of theirs. Runs that exist in --out are not
repeated.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioning.links.score_ranks import measure_ranks, rank_rows

ROOT = Path(__file__).resolve().parents[1]
MEASURES = ("recall@20", "ndcg@20", "mrr")
SHARE = 0.1
"""Of each user's training pairs that validate."""
Pairs = NDArray[np.int64]


def split_pairs(path: Path) -> dict[str, Pairs]:
    """Return training, validation and test pairs, int64 [n, 2] each."""
    with np.load(path) as arrays:
        train, test = (arrays[name].astype(np.int64).T for name in ("train", "test"))
    order = np.random.default_rng(0).permutation(len(train))
    order = order[np.argsort(train[order, 0], kind="stable")]
    _, first, counts = np.unique(train[order, 0], return_index=True, return_counts=True)
    rank = np.arange(len(train)) - np.repeat(first, counts)
    is_val = np.zeros(len(train), np.bool_)
    is_val[order] = rank < np.repeat(np.rint(SHARE * counts), counts)
    return {"train": train[~is_val], "val": train[is_val], "test": test}


def write_tables(folder: Path, pairs: dict[str, Pairs]) -> list[str]:
    """Write the tables of the graph and the files of the split; return the settings."""
    every = np.concatenate(list(pairs.values()))
    for name in ("nodes", "edges", "split"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for column, kind in enumerate(("user", "item")):
        ids = np.arange(every[:, column].max() + 1)
        np.savetxt(folder / f"nodes/{kind}.csv", ids, "%d", header="id", comments="")
    tables = {"edges/user__has__item": every} | {f"split/{k}": rows for k, rows in pairs.items()}
    for name, rows in tables.items():
        path = folder / f"{name}.csv"
        np.savetxt(path, rows, "%d", delimiter=",", header="src,dst", comments="")
    return [
        *("dataset_name=file", f"dataset_file={folder}", "task.relation=user__has__item"),
        *("split=files", f"split.dir={folder / 'split'}", f"task.ranked={len(every)}"),
    ]


def run(out: Path, data: list[str], arguments: argparse.Namespace) -> dict[str, Any]:
    """Partition and train, unless it was done; return summary.json, and seconds of both."""
    folder = out / "run"
    settings = [*data, *arguments.settings, f"partition_dir={out / 'parts'}"]
    settings.append(f"num_partitions={arguments.parts}")
    seconds = out / "seconds.json"
    if not seconds.is_file():
        begin = time.perf_counter()
        main(*settings, "app=partition_data", "task=link_prediction", "overwrite=true")
        middle = time.perf_counter()
        config = ("--config-name", "link_prediction_sage", "app=train", "device=cpu")
        main(*config, *settings, f"hydra.run.dir={folder}", "checkpoint=none")
        spent = {"partitioning": middle - begin, "training": time.perf_counter() - middle}
        seconds.write_text(json.dumps(spent), encoding="utf-8")
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return summary | {"spent": json.loads(seconds.read_text(encoding="utf-8"))}


def main(*arguments: str) -> None:
    """Run main.py."""
    # The first argument of Hydra may be --config-name.
    subprocess.run([sys.executable, str(ROOT / "main.py"), *arguments], check=True)


def train_lightgcn(pairs: dict[str, Pairs], limit: float) -> tuple[dict[str, float], float, int]:
    """Train LightGCN until validation has not improved 10 times, or `limit` seconds.

    Returns:
        Its test scores, seconds and epochs.
    """
    import scipy.sparse as sp
    import torch
    from torch_geometric.nn import LGConv
    from torch_geometric.nn.conv.gcn_conv import gcn_norm

    torch.manual_seed(0)
    every = np.concatenate(list(pairs.values()))
    num_users, num_items = (every.max(axis=0) + 1).tolist()
    train = torch.from_numpy(pairs["train"])
    ends = torch.stack((train[:, 0], train[:, 1] + num_users))
    num_nodes, conv = num_users + num_items, LGConv(normalize=False)
    edges, weight = gcn_norm(
        torch.cat((ends, ends.flip(0)), dim=1), None, num_nodes, add_self_loops=False
    )
    adjacency = torch.sparse_coo_tensor(edges, weight, (num_nodes, num_nodes)).to_sparse_csr()
    start = torch.nn.Parameter(0.1 * torch.randn(num_nodes, 64))
    optimizer = torch.optim.Adam([start], lr=5e-3)

    class Propagate(torch.autograd.Function):
        """The adjacency is symmetric, so its gradient needs no transposed copy: 3 times faster."""

        @staticmethod
        def forward(_context: Any, rows: torch.Tensor) -> torch.Tensor:
            return conv(rows, adjacency)

        @staticmethod
        def backward(_context: Any, gradient: torch.Tensor) -> torch.Tensor:
            return conv(gradient.contiguous(), adjacency)

    def embed() -> torch.Tensor:
        layers: list[torch.Tensor] = [start]
        for _ in range(3):
            layers.append(Propagate.apply(layers[-1]))
        return torch.stack(layers).mean(dim=0)

    def score(split: str) -> dict[str, float]:
        with torch.no_grad():
            rows = embed().numpy()
        held_out = np.add(pairs[split], [0, num_users])
        shape = (num_users + num_items,) * 2
        known = sp.csr_array(
            (np.ones(len(every), np.bool_), np.add(every, [0, num_users]).T), shape
        )
        items = np.arange(num_users, num_users + num_items)
        ranks_and_places, *_ = rank_rows(
            lambda users: rows[users] @ rows[items].T, held_out, known, items
        )
        return measure_ranks(held_out[:, 0], ranks_and_places)

    begin, best, best_rows, epoch, failures = time.perf_counter(), -1.0, start.detach(), 0, 0
    while failures < 10 and time.perf_counter() - begin < limit:
        epoch += 1
        for batch in torch.randperm(len(train)).split(8192):
            users, positives = ends[:, batch]
            others = torch.randint(num_users, num_users + num_items, (len(batch),))
            rows = embed()
            margin = (rows[users] * (rows[positives] - rows[others])).sum(dim=1)
            norms = sum(start[nodes].square().sum() for nodes in (users, positives, others))
            loss = -torch.nn.functional.logsigmoid(margin).mean() + 5e-5 * norms / len(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if epoch % 10 == 0:
            value = score("val")["ndcg@20"]
            print(f"LightGCN, epoch {epoch}: validation NDCG@20 {value:.4f}", flush=True)
            failures = 0 if value > best else failures + 1
            if value > best:
                best, best_rows = value, start.detach().clone()
    with torch.no_grad():
        start.copy_(best_rows)
    return score("test"), time.perf_counter() - begin, epoch


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pairs", type=Path, help="npz file with train and test")
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument(
        "--settings", nargs="*", default=["task.spectral=512", "stopping.metric=ndcg@20"]
    )
    parser.add_argument("--lightgcn", type=float, metavar="SECONDS", help="also train LightGCN")
    parser.add_argument("--out", type=Path, default=Path("outputs/user_items"))
    args = parser.parse_args()
    split = split_pairs(args.pairs)
    out = args.out.resolve()
    summary = run(out, write_tables(out / "tables", split), args)
    rows = {**summary["baselines"], "layer by layer": summary["test"]}
    print(f"| | {' | '.join(MEASURES)} |\n|---|{'---|' * len(MEASURES)}")
    for name, scores in rows.items():
        print(f"| {name} | {' | '.join(f'{scores[measure]:.4f}' for measure in MEASURES)} |")
    if args.lightgcn:
        scores, spent, epochs = train_lightgcn(split, args.lightgcn)
        cells = " | ".join(f"{scores[measure]:.4f}" for measure in MEASURES)
        print(f"| LightGCN, {epochs} epochs, {spent:.0f} s | {cells} |")
    spent_text = ", ".join(f"{name} {value:.0f} s" for name, value in summary["spent"].items())
    print(f"\n{spent_text}; {summary['bytes']['total']:,} bytes: {summary['bytes']['by_kind']}")
