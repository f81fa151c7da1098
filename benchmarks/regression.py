"""Node regression beside PyG's GraphSAGE trained end to end: R2 on test, standardised targets.

    python benchmarks/regression.py --seeds 5
    python benchmarks/regression.py --seeds 2 --methods "" "dropout=0.2" "model.norm=none"

Each of --methods is one run of ours per seed, with these further settings, on 4 random partitions.
The graphs, of which each seed draws targets, noise and split (60 / 20 / 20 %):

    smoothed   Cora, with 16 principal components of its words as features; the target is a smooth
               function of some, averaged over a node and its neighbours, and noise of a tenth of
               its deviation
    houses     a table of 3,000 houses, 12 % of the cells of three columns blank; the price depends
               on the house's columns, its town, and the condition of the neighbouring houses

All methods train and validate on the same nodes. PyG SAGE has 2 layers of the same width, full
batch, Adam with the same rate and weight decay, the mean squared error, and the epoch with the
least validation loss; its columns of the table are filled, standardised and one-hot encoded by
scikit-learn.
"""

import tempfile
from importlib.metadata import version
from pathlib import Path

import common
import numpy as np
import pandas as pd
import scipy.sparse as sp
import torch
from accounts import neighbour_mean
from numpy.typing import NDArray
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.metrics import r2_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from torch.nn import functional

from partitioning import datasets
from retexo.settings.compose import compose

HOUSES, STREETS, BLANK = 3_000, 12_000, 0.12
NUMBERS = ["size", "condition", "year", "floor"]
WIDTH, RATE, DECAY, EPOCHS, PATIENCE = 64, 0.01, 5e-4, 1000, 100
"""Of PyG SAGE."""
Rows = NDArray[np.float64]
Ends = tuple[NDArray[np.int64], NDArray[np.int64]]


def draw_split(num_nodes: int, rng: np.random.Generator) -> NDArray[np.str_]:
    return rng.choice(["train", "val", "test"], num_nodes, p=[0.6, 0.2, 0.2])


def write_smoothed(folder: Path, rng: np.random.Generator) -> tuple[Rows, Ends, Rows, NDArray]:
    """Write Cora with new targets as an npz; return features, edges, targets [N], split."""
    cora = datasets.load_graph(compose(["dataset_name=cora"]))
    words = common.dense_features(cora).astype(np.float64)
    centred = words - words.mean(axis=0)
    rows = np.linalg.svd(centred, full_matrices=False)[0][:, :16] * np.sqrt(len(words))
    src, dst = cora.edges.src, cora.edges.dst
    edges = sp.csr_array((np.ones(len(src)), (dst, src)), shape=(len(rows),) * 2)
    edges = edges + sp.eye_array(len(rows))
    mean = (edges @ rows @ (rng.normal(size=(16, 3)) / 4)) / edges.sum(axis=1)[:, None]
    smooth = np.sin(mean[:, 0]) + mean[:, 1] * np.tanh(mean[:, 2])
    values = smooth + 0.1 * smooth.std() * rng.normal(size=len(rows))
    split = draw_split(len(rows), rng)
    masks = {f"{name}_mask": split == name for name in ("train", "val", "test")}
    np.savez(folder / "smoothed.npz", src=src, dst=dst, feat=rows, label=values, **masks)
    return rows, (src, dst), values, split


def write_houses(folder: Path, rng: np.random.Generator) -> tuple[Rows, Ends, Rows, NDArray]:
    """Write the tables of houses; return encoded features, edges, prices [N], split."""
    size, floor = rng.lognormal(4.5, 0.4, HOUSES), rng.integers(0, 12, HOUSES)
    condition, year = rng.normal(size=HOUSES), rng.integers(1900, 2021, HOUSES)
    town = rng.integers(0, 20, HOUSES)
    src = rng.integers(0, HOUSES, STREETS)
    near = np.argsort(town, kind="stable")  # four fifths of the neighbours are of the same town
    place = np.empty(HOUSES, np.int64)
    place[near] = np.arange(HOUSES)
    dst = near[np.clip(place[src] + rng.integers(-40, 41, STREETS), 0, HOUSES - 1)]
    dst = np.where(rng.random(STREETS) < 0.8, dst, rng.integers(0, HOUSES, STREETS))
    src, dst = src[src != dst], dst[src != dst]
    around = neighbour_mean(src, dst, np.stack([condition, condition**2], axis=1))
    price = 2_000 * size * (1 + 0.15 * condition + 0.4 * around[:, 0])
    price += 500 * (year - 1900) + rng.normal(0, 40_000, 20)[town] + 30_000 * around[:, 1]
    price += rng.normal(0, 15_000, HOUSES)
    houses = pd.DataFrame({"id": [f"H{row:04d}" for row in range(HOUSES)], "size": size})
    houses = houses.assign(condition=condition, year=year.astype(float), floor=floor)
    for name in ("size", "condition", "year"):
        houses.loc[rng.random(HOUSES) < BLANK, name] = np.nan
    split = draw_split(HOUSES, rng)
    houses = houses.assign(town=[f"T{number}" for number in town], price=price.round(), split=split)
    (folder / "houses").mkdir()
    houses.to_csv(folder / "houses" / "nodes.csv", index=False)
    names = houses["id"].to_numpy()
    streets = pd.DataFrame({"src": names[src], "dst": names[dst]})
    streets.to_csv(folder / "houses" / "edges.csv", index=False)
    numbers = make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler())
    towns = OneHotEncoder(sparse_output=False)
    encoder = make_column_transformer((numbers, NUMBERS), (towns, ["town"]))
    rows = encoder.fit(houses[split == "train"]).transform(houses)
    both = np.concatenate([src, dst]), np.concatenate([dst, src])
    return rows, both, houses["price"].to_numpy(), split


GRAPHS = {
    "smoothed": (write_smoothed, ["dataset_file={}/smoothed.npz"]),
    "houses": (write_houses, ["dataset_file={}/houses", "columns.label=price", "symmetrize=true"]),
}


def train_ours(folder: Path, data: list[str], seed: int, method: list[str]) -> float:
    """R2 on test."""
    overrides = ["dataset_name=file", *(setting.format(folder) for setting in data)]
    overrides += [f"partition_dir={folder}/parts", "num_partitions=4", f"hidden_dim={WIDTH}"]
    overrides += ["task=node_regression"]
    settings = compose([*overrides, f"seed={seed}", *method], "node_classification_sage")
    common.read_partitions(settings)
    return float(common.train_in_threads(settings)["test"]["r2"])


def train_pyg(rows: Rows, ends: Ends, values: Rows, split: NDArray, seed: int) -> float:
    """R2 on test of PyG's GraphSAGE."""
    from torch_geometric.nn import SAGEConv
    from torch_geometric.utils import to_torch_csr_tensor

    torch.manual_seed(seed)
    train, val, test = (torch.from_numpy(split == name) for name in ("train", "val", "test"))
    edges = torch.from_numpy(np.stack(ends).astype(np.int64))
    adjacency = to_torch_csr_tensor(edges.flip(0), size=(len(rows),) * 2)
    x, y = (torch.from_numpy(array).float() for array in (rows, values))
    y = ((y - y[train].mean()) / y[train].std(correction=0))[:, None]
    layers = torch.nn.ModuleList([SAGEConv(x.shape[1], WIDTH), SAGEConv(WIDTH, 1)])
    optimizer = torch.optim.Adam(layers.parameters(), RATE, weight_decay=DECAY)
    least, best_epoch, kept = np.inf, 0, y
    for epoch in range(EPOCHS):
        optimizer.zero_grad()
        output = layers[1](functional.relu(layers[0](x, adjacency)), adjacency)
        loss = functional.mse_loss(output[val], y[val]).item()
        if loss < least:
            least, best_epoch, kept = loss, epoch, output.detach()
        elif epoch - best_epoch >= PATIENCE:
            break
        functional.mse_loss(output[train], y[train]).backward()
        optimizer.step()
    return float(r2_score(y[test], kept[test]))


def main() -> None:
    parser = common.parser(__doc__, seeds=5, options=[])
    parser.add_argument("--methods", nargs="*", default=[""], help="settings of each run of ours")
    parser.add_argument("--graphs", nargs="*", default=list(GRAPHS), choices=GRAPHS)
    options = parser.parse_args()
    print(f"{common.machine()}, PyG {version('torch_geometric')}, torch {torch.__version__}")
    measured: dict[tuple[str, str], list[float]] = {}
    for name, (write, data) in ((name, GRAPHS[name]) for name in options.graphs):
        for seed in range(options.seeds):
            with tempfile.TemporaryDirectory() as folder:
                graph = write(Path(folder), np.random.default_rng(seed))
                for method in options.methods:
                    overrides = [*options.options, *method.split()]
                    r2 = train_ours(Path(folder), data, seed, overrides)
                    measured.setdefault((name, f"ours {method}".strip()), []).append(r2)
                measured.setdefault((name, "PyG SAGE"), []).append(train_pyg(*graph, seed))
            last = {method: scores[-1] for (of, method), scores in measured.items() if of == name}
            line = ", ".join(f"{method} {value:.4f}" for method, value in last.items())
            print(f"{name}, seed {seed}: {line}", flush=True)
    print(f"R2, mean of {options.seeds} seeds")
    for (name, method), values in measured.items():
        print(f"{name:<10} {method:<40} {common.with_spread(np.array(values))}")


if __name__ == "__main__":
    main()
