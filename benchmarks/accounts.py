"""A fraud table of 20,000 accounts: ROC AUC and average precision on the accounts without a label.

    python benchmarks/accounts.py --seeds 5
    python benchmarks/accounts.py --seeds 5 --methods "" "hidden_dim=64 num_rounds=[100,100]"
    python benchmarks/accounts.py --write accounts      # the tables of seed 0, without training

Each of --methods is one run of ours per seed, with these further settings; --options are settings
of all of ours. The tables are nodes.csv and edges.csv of dataset_name=file: 3 % of the accounts are
fraudulent, 60 % of the labels are blank, 8 % of the cells of three columns are blank, countries
differ in risk, and risk depends on the account's own columns and, weakly, on the accounts that it
pays or is paid by. A quarter of the labels is for validation. All methods train and validate on the
same accounts, and are scored on those without a label:

    ours       as a user runs it: retexo.train on the tables, 4 random partitions, then predict
    logistic   scikit-learn's balanced LogisticRegression on own and neighbour-mean columns
    PyG SAGE   2 layers, full batch, balanced class weights, best epoch by validation ROC AUC

For both baselines blanks are filled with the median and marked, numbers standardised and countries
one-hot.
"""

import argparse
import contextlib
import io
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import common
import numpy as np
import pandas as pd
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from torch.nn import functional

import retexo

ACCOUNTS, PAYMENTS = 20_000, 60_000
POSITIVE, UNLABELLED, BLANK = 0.03, 0.6, 0.08
NUMBERS = ["age", "balance", "payments", "days_open"]
OURS = [
    "dataset_name=file",
    "symmetrize=true",
    "columns.id=account",
    "columns.label=fraud",
    "num_partitions=4",
]
WIDTH, DROPOUT, RATE, EPOCHS, PATIENCE = 64, 0.5, 0.01, 200, 30
"""Of PyG SAGE."""
Scores = NDArray[np.float64]
try:
    PYG = version("torch_geometric")
except PackageNotFoundError:
    PYG = ""


def draw(seed: int) -> tuple[pd.DataFrame, pd.DataFrame, NDArray[np.int64]]:
    """Draw the accounts, their payments, and the class [accounts] of every account."""
    rng = np.random.default_rng(seed)
    age = rng.integers(18, 91, ACCOUNTS)
    balance = rng.lognormal(7, 1.5, ACCOUNTS)
    payments = rng.poisson(rng.gamma(2, 6, ACCOUNTS))
    days_open = rng.integers(1, 4000, ACCOUNTS)
    codes = np.array([f"{first}{second}" for first in "ABCDE" for second in "MNRTX"])
    country = rng.choice(len(codes), ACCOUNTS, p=(share := 1 / np.arange(2, 27)) / share.sum())
    columns = np.stack([np.log(balance), np.log1p(payments), np.log(days_open), age], axis=1)
    columns = (columns - columns.mean(axis=0)) / columns.std(axis=0)
    risk = columns @ [-0.4, 0.6, -0.7, 0] + rng.normal(0, 0.5, len(codes))[country]
    risk += 0.3 * columns[:, 1] * (days_open < 400) + 0.2 * columns[:, 3] ** 2
    # The payer's risk draws the payee: half of the payments stay among accounts of similar risk.
    order = np.argsort(risk + rng.normal(0, 1.5, ACCOUNTS))
    near = rng.integers(0, ACCOUNTS, PAYMENTS)
    far = np.where(
        rng.random(PAYMENTS) < 0.5,
        np.clip(near + rng.integers(-500, 501, PAYMENTS), 0, ACCOUNTS - 1),
        rng.integers(0, ACCOUNTS, PAYMENTS),
    )
    src, dst = order[near], order[far]
    kept = src != dst
    src, dst = src[kept], dst[kept]
    around = neighbour_mean(src, dst, risk[:, None])[:, 0]
    total = risk + 1.2 * around + rng.normal(0, 2.2, ACCOUNTS)
    fraud = (total >= np.quantile(total, 1 - POSITIVE)).astype(np.int64)

    labelled = rng.random(ACCOUNTS) >= UNLABELLED
    split = np.where(rng.random(ACCOUNTS) < 0.75, "train", "val")
    nodes = pd.DataFrame(
        {
            "account": [f"A{number:05d}" for number in rng.permutation(ACCOUNTS)],
            "age": _with_blanks(age, rng),
            "balance": _with_blanks(balance.round(2), rng),
            "payments": payments,
            "days_open": _with_blanks(days_open, rng),
            "country": codes[country],
            "fraud": pd.array(np.where(labelled, fraud, -1), dtype="Int64"),
            "split": np.where(labelled, split, ""),
        }
    )
    nodes["fraud"] = nodes["fraud"].mask(~labelled)
    names = nodes["account"].to_numpy()
    return nodes, pd.DataFrame({"from": names[src], "to": names[dst]}), fraud


def _with_blanks(values: NDArray, rng: np.random.Generator) -> NDArray[np.float64]:
    return np.where(rng.random(len(values)) < BLANK, np.nan, values)


def neighbour_mean(src: NDArray, dst: NDArray, rows: NDArray) -> NDArray[np.float64]:
    """Mean of the rows [N, F] over the other ends of each account's payments; 0 without any."""
    ends = np.concatenate([dst, src]), np.concatenate([src, dst])
    edges = sp.csr_array((np.ones(len(ends[0])), ends), shape=(len(rows),) * 2)
    return (edges @ rows) / np.maximum(np.diff(edges.indptr), 1)[:, None]


def train_ours(folder: Path, nodes: pd.DataFrame, seed: int, options: list[str]) -> Scores:
    """Train on the tables in a folder; return the probability of fraud of each account, [N]."""
    run = tempfile.mkdtemp(dir=folder)
    parts = f"{run}/parts"
    settings = [f"dataset_file={folder}", f"partition_dir={parts}", f"hydra.run.dir={run}/run"]
    with contextlib.redirect_stdout(io.StringIO()):
        retexo.train([*OURS, *settings, f"seed={seed}", *options], "node_classification_sage")
    table = retexo.load_run(f"{run}/run").predict(
        next(Path(parts).iterdir()), node_ids=list(nodes["account"])
    )
    return table.probabilities[:, 1].astype(np.float64)


def encode(nodes: pd.DataFrame) -> NDArray[np.float64]:
    """Encode the columns, fitted on the training accounts; [N, F]."""
    numbers = make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler())
    countries = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    encoder = make_column_transformer((numbers, NUMBERS), (countries, ["country"]))
    return encoder.fit(nodes[nodes["split"] == "train"]).transform(nodes)


def train_logistic(rows: NDArray, around: NDArray, labels: NDArray, train: NDArray) -> Scores:
    """The baseline's probability of fraud of each account, [N]."""
    columns = np.hstack([rows, around])
    model = LogisticRegression(class_weight="balanced", max_iter=1000)
    return model.fit(columns[train], labels[train]).predict_proba(columns)[:, 1]


def train_pyg(
    rows: NDArray, ends: tuple[NDArray, NDArray], labels: NDArray, split: NDArray, seed: int
) -> Scores:
    """PyG's GraphSAGE: log-odds of fraud of each account, [N]."""
    from torch_geometric.nn import SAGEConv
    from torch_geometric.utils import to_torch_csr_tensor

    torch.manual_seed(seed)
    edges = torch.from_numpy(np.stack([np.concatenate(ends), np.concatenate(ends[::-1])]))
    adjacency = to_torch_csr_tensor(edges.flip(0), size=(len(rows), len(rows)))
    x, y = torch.from_numpy(rows.astype(np.float32)), torch.from_numpy(labels.copy())
    train, val = np.flatnonzero(split == "train"), np.flatnonzero(split == "val")
    weights = len(train) / (2 * torch.bincount(y[train], minlength=2).float())
    layers = torch.nn.ModuleList([SAGEConv(x.shape[1], WIDTH), SAGEConv(WIDTH, 2)])
    optimizer = torch.optim.Adam(layers.parameters(), RATE, weight_decay=5e-4)

    def forward() -> torch.Tensor:
        hidden = functional.relu(layers[0](x, adjacency))
        return layers[1](functional.dropout(hidden, DROPOUT, layers.training), adjacency)

    best, best_epoch, kept = -1.0, 0, np.zeros(0)
    for epoch in range(EPOCHS):
        layers.train()
        optimizer.zero_grad()
        functional.cross_entropy(forward()[train], y[train], weights).backward()
        optimizer.step()
        layers.eval()
        with torch.no_grad():
            logits = forward()
        scores = (logits[:, 1] - logits[:, 0]).double().numpy()
        auc = roc_auc_score(labels[val], scores[val])
        if auc > best:
            best, best_epoch, kept = auc, epoch, scores
        elif epoch - best_epoch >= PATIENCE:
            break
    return kept


def score_seed(seed: int, options: argparse.Namespace) -> dict[str, Scores]:
    """The scores [N] of each method, and `labels` and `asked`: the accounts without a label."""
    nodes, edges, fraud = draw(seed)
    split = nodes["split"].to_numpy()
    scores = {"labels": fraud, "asked": split == ""}
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), nodes, edges)
        for method in options.methods:
            settings = [*options.options, *method.split()]
            scores[f"ours {method}".strip()] = train_ours(Path(folder), nodes, seed, settings)
    rows, position = encode(nodes), pd.Series(np.arange(len(nodes)), nodes["account"])
    ends = position[edges["from"]].to_numpy(), position[edges["to"]].to_numpy()
    around = neighbour_mean(*ends, rows)
    scores["logistic"] = train_logistic(rows, around, fraud, split == "train")
    if PYG:
        scores["PyG SAGE"] = train_pyg(rows, ends, fraud, split, seed)
    return scores


def write(folder: Path, nodes: pd.DataFrame, edges: pd.DataFrame) -> None:
    """Write the two tables."""
    folder.mkdir(exist_ok=True)
    nodes.to_csv(folder / "nodes.csv", index=False)
    edges.to_csv(folder / "edges.csv", index=False)


def main() -> None:
    parser = common.parser(__doc__, seeds=5, options=[])
    parser.add_argument("--methods", nargs="*", default=[""], help="settings of each run of ours")
    parser.add_argument("--write", type=Path, help="write the tables of seed 0 into this folder")
    options = parser.parse_args()
    if options.write:
        write(options.write, *draw(0)[:2])
        return
    print(f"{common.machine()}, scikit-learn {version('scikit-learn')}, PyG {PYG or 'missing'}")
    measured: dict[str, list[tuple[float, float]]] = {}
    for seed in range(options.seeds):
        scored = score_seed(seed, options)
        labels, asked = scored.pop("labels"), scored.pop("asked")
        for method, scores in scored.items():
            pair = [
                f(labels[asked], scores[asked]) for f in (roc_auc_score, average_precision_score)
            ]
            measured.setdefault(method, []).append(tuple(pair))
            print(f"seed {seed} {method:<40} {pair[0]:.4f} {pair[1]:.4f}", flush=True)
    print(f"{f'mean of {options.seeds} seeds':<40} {'ROC AUC':<18} average precision")
    for method, pairs in measured.items():
        auc, precision = map(common.with_spread, np.array(pairs).T)
        print(f"{method:<40} {auc:<18} {precision}")


if __name__ == "__main__":
    main()
