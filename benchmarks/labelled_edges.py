"""Classes and numbers of edges: scores and bytes beside PyG, gradient boosting and regressions.

    python benchmarks/labelled_edges.py payments --seeds 5
    python benchmarks/labelled_edges.py ratings --seeds 5
    python benchmarks/labelled_edges.py payments --seeds 5 --degrees

payments: 20,000 accounts and 100,000 payments, of which 2 % are fraud, driven by the amount
and by a hidden risk of both accounts, of which their columns show little. Risky accounts pay each
other more often. ratings: 3,000 users rate 1,500 items 60,000 times, by taste, genre and noise, of
which the users' columns show half.

A seed makes the data, draws the split (60, 20 and 20 %), partitions and parameters; test edges are
looked at once. Ours: `--config-name edge_classification` or `edge_regression`, 4 random partitions,
3 layers, --options, defaults else. PyG: two layers of SAGEConv (mean) over the training edges in
both directions, then an MLP of both ends and the edge's own columns, 64 wide, end to end, dropout
0.5 (payments; 0 for ratings), Adam, learning rate 0.01, weight decay 5e-4, classes weighted as
ours, at most 200 epochs, patience 30, best validation epoch. The others read the edge's and both
ends' columns. --degrees: features=[given,degree], and the others read the same columns of nodes.
Scores are printed on validation (val), by which one chooses, and on test.
"""

import copy
import tempfile
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import common
import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import average_precision_score, r2_score, roc_auc_score
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from retexo.settings.compose import compose

Array = NDArray[Any]
SETS = ("train", "val", "test")
METHODS = ("regression", "boosting", "PyG", "lazy", "full_graph")
SHARES = (0.6, 0.2, 0.2)
KEYS = {"val_": "val", "": "test"}
"""Sets that are scored, by what their scores begin with."""


class Data:
    """Columns of nodes and edges, ends, labels and the set of each edge."""

    def __init__(self, nodes: Array, ends: Array, own: Array, labels: Array, seed: int) -> None:
        self.nodes, self.ends, self.own, self.labels = nodes, ends, own, labels
        rng = np.random.default_rng([seed, 1])
        self.sets = rng.choice(3, size=len(labels), p=SHARES)

    @property
    def rows(self) -> Array:
        """The columns of each edge and of both its ends."""
        return np.hstack((self.own, *(self.nodes[end] for end in self.ends)))

    def with_degrees(self) -> "Data":
        """Return the data with log(1 + training edges) out of and into each node."""
        data, trained = copy.copy(self), self.ends[:, self.sets == 0]
        trained = trained[:, trained[0] != trained[1]]
        degrees = (np.bincount(end, minlength=len(self.nodes)) for end in trained)
        data.nodes = np.column_stack((self.nodes, *map(np.log1p, degrees)))
        return data

    def write(self, folder: Path) -> None:
        nodes = pd.DataFrame(self.nodes).add_prefix("x")
        nodes.assign(id=np.arange(len(nodes))).to_parquet(folder / "nodes.parquet")
        edges = pd.DataFrame({"src": self.ends[0], "dst": self.ends[1]})
        for column, values in enumerate(self.own.T):
            edges[f"own{column}"] = values
        edges = edges.assign(label=self.labels, split=np.array(SETS)[self.sets])
        edges.to_parquet(folder / "edges.parquet")


def make_payments(seed: int) -> Data:
    rng = np.random.default_rng([seed, 0])
    accounts, payments = 20_000, 100_000
    risk = rng.random(accounts) < 0.05
    ends = rng.integers(accounts, size=(2, payments))
    risky = np.flatnonzero(risk)
    among = rng.random(payments) < 0.05
    ends[:, among] = rng.choice(risky, size=(2, among.sum()))
    amount = rng.lognormal(size=payments)
    logits = -5.6 + 2.2 * risk[ends].sum(axis=0) + 0.6 * np.log(amount)
    labels = (rng.random(payments) < 1 / (1 + np.exp(-logits))).astype(np.int64)
    nodes = np.column_stack((rng.normal(size=accounts) + 0.8 * risk, rng.normal(size=accounts)))
    return Data(nodes, ends, np.log(amount)[:, None], labels, seed)


def make_ratings(seed: int) -> Data:
    rng = np.random.default_rng([seed, 0])
    users, items, ratings = 3_000, 1_500, 60_000
    taste, genre = rng.normal(size=(users, 4)), rng.normal(size=(items, 4))
    liked = rng.normal(size=items)
    ends = np.stack((rng.integers(users, size=ratings), rng.integers(items, size=ratings)))
    fit = (taste[ends[0]] * genre[ends[1]]).sum(axis=1) / 2
    stars = 3 + fit + 0.5 * liked[ends[1]] + 0.5 * rng.normal(size=ratings)
    noisy_taste = taste + rng.normal(size=taste.shape)
    nodes = np.zeros((users + items, 10))
    nodes[:users, :4], nodes[users:, 4:8], nodes[users:, 8] = noisy_taste, genre, liked
    nodes[:users, 9] = 1
    hour = rng.normal(size=(ratings, 1))
    return Data(nodes, ends + np.array([[0], [users]]), hour, stars, seed)


def run_ours(
    data: Data, seed: int, trainer: str, options: list[str], *, classes: bool
) -> dict[str, float]:
    task = "edge_classification" if classes else "edge_regression"
    with tempfile.TemporaryDirectory() as folder:
        data.write(Path(folder))
        overrides = ["dataset_name=file", f"dataset_file={folder}", f"partition_dir={folder}/parts"]
        overrides += ["num_layers=3", f"seed={seed}", f"trainer={trainer}"]
        overrides += ["stopping.metric=roc_auc"] if classes else []
        overrides += options
        run = common.train(compose(overrides, task), tempfile.mkdtemp(dir=folder))
    names = ("roc_auc", "average_precision") if classes else ("r2",)
    scores = {f"{key}{name}": run[part][name] for key, part in KEYS.items() for name in names}
    return scores | {"MB": run["bytes"]["total"] / 1e6}


def score(data: Data, predictions: Array, *, classes: bool) -> dict[str, float]:
    """Return the scores of predictions of all edges, on validation and test."""
    scores = {}
    for key, part in KEYS.items():
        rows = data.sets == SETS.index(part)
        labels, predicted = data.labels[rows], predictions[rows]
        if classes:
            scores[f"{key}roc_auc"] = roc_auc_score(labels, predicted)
            scores[f"{key}average_precision"] = average_precision_score(labels, predicted)
        else:
            scores[f"{key}r2"] = r2_score(labels, predicted)
    return scores


def run_columns(data: Data, model: Any, *, classes: bool) -> dict[str, float]:
    """A model of the edge's and both ends' columns."""
    rows = StandardScaler().fit_transform(data.rows)
    model.fit(rows[data.sets == 0], data.labels[data.sets == 0])
    predictions = model.predict_proba(rows)[:, 1] if classes else model.predict(rows)
    return score(data, predictions, classes=classes)


class PyG(nn.Module):
    """Two layers of GraphSAGE, then an MLP of both ends and the edge's own columns."""

    def __init__(self, num_features: int, num_own: int, outputs: int, dropout: float) -> None:
        from torch_geometric.nn import SAGEConv

        super().__init__()
        self.convs = nn.ModuleList([SAGEConv(num_features, 64), SAGEConv(64, 64)])
        self.head = nn.Sequential(
            nn.Linear(2 * 64 + num_own, 64), nn.ReLU(), nn.Dropout(dropout), nn.Linear(64, outputs)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, nodes: Tensor, messages: Tensor, ends: Tensor, own: Tensor) -> Tensor:
        for conv in self.convs:
            nodes = self.dropout(conv(nodes, messages).relu())
        return self.head(torch.cat((nodes[ends[0]], nodes[ends[1]], own), dim=1))


def run_pyg(data: Data, seed: int, *, classes: bool) -> dict[str, float]:
    torch.manual_seed(seed)
    nodes, own = (
        torch.from_numpy(StandardScaler().fit_transform(matrix)).float()
        for matrix in (data.nodes, data.own)
    )
    ends, sets = torch.from_numpy(data.ends), torch.from_numpy(data.sets)
    messages = ends[:, sets == 0]
    messages = torch.cat((messages, messages.flip(0)), dim=1)
    labels = torch.from_numpy(data.labels)
    mean, scale = (0.0, 1.0) if classes else (labels.mean().item(), labels.std().item())
    counts = torch.bincount(labels[sets == 0]).float() if classes else torch.ones(1)
    loss_of: Callable[..., Tensor] = (
        nn.CrossEntropyLoss(counts.sum() / (2 * counts)) if classes else nn.MSELoss()
    )
    targets = labels if classes else ((labels - mean) / scale).float()[:, None]
    model = PyG(nodes.shape[1], own.shape[1], 2 if classes else 1, 0.5 if classes else 0.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    best, waited = -np.inf, 0
    kept: dict[str, float] = {}
    for _ in range(200):
        model.train()
        train_rows = sets == 0
        outputs = model(nodes, messages, ends[:, train_rows], own[train_rows])
        optimizer.zero_grad()
        loss_of(outputs, targets[train_rows]).backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            outputs = model(nodes, messages, ends, own)
        outputs = outputs.softmax(1)[:, 1] if classes else outputs[:, 0] * scale + mean
        scores = score(data, outputs.numpy(), classes=classes)
        value, waited = next(iter(scores.values())), waited + 1
        if value > best:
            best, waited, kept = value, 0, scores
        if waited >= 30:
            break
    return kept


def main() -> None:
    parser = common.parser(__doc__, seeds=5, options=[])
    parser.add_argument("data", choices=("payments", "ratings"))
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--degrees", action="store_true")
    arguments = parser.parse_args()
    classes = arguments.data == "payments"
    make = make_payments if classes else make_ratings
    options = [*arguments.options, *(["features=[given,degree]"] * arguments.degrees)]
    results: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for seed in range(arguments.seeds):
        data = make(seed)
        rival_data = data.with_degrees() if arguments.degrees else data
        linear: Any = LogisticRegression() if classes else LinearRegression()
        boosted: Any = (
            HistGradientBoostingClassifier(random_state=seed)
            if classes
            else HistGradientBoostingRegressor(random_state=seed)
        )
        runs: dict[str, Callable[..., dict[str, float]]] = {
            "regression": partial(run_columns, rival_data, linear),
            "boosting": partial(run_columns, rival_data, boosted),
            "PyG": partial(run_pyg, rival_data, seed),
            "lazy": partial(run_ours, data, seed, "lazy", options),
            "full_graph": partial(run_ours, data, seed, "full_graph", options),
        }
        for name in arguments.methods:
            for metric, value in runs[name](classes=classes).items():
                results[name][metric].append(value)
                print(f"seed {seed}: {name}: {metric} {value:.4f}", flush=True)
    for name, scores in results.items():
        cells = (
            f"{metric} {common.with_spread(np.array(values))}" for metric, values in scores.items()
        )
        print(f"{name}: {', '.join(cells)}")
    print(common.machine())


if __name__ == "__main__":
    main()
