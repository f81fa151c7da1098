"""Rare classes, multi-label nodes, balanced classes: default and former objective, and rivals.

    python benchmarks/objectives.py --datasets DIR --graphs minesweeper anomaly_reddit --seeds 5

DIR holds NAME.npz and splits/NAME/0 ... as files. Each graph has its published splits,
four random partitions, and the defaults of the program. Rivals on the same splits: logistic
regression with balanced class weights on each node's own features and the mean of its neighbours',
with the penalty that validation chooses; and PyG's SAGEConv end to end (two layers of width 256,
dropout .4, LayerNorm, Adam .01), with the class weights that validation chooses. The former
objective stops by accuracy (micro-F1). Every method stops by the metric of its column `stops by`.
"""

import copy
import tempfile
from pathlib import Path
from typing import Any

import common
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from retexo.settings.compose import compose

FORMER = [
    "stopping.metric=micro_f1",
    "stopping.use_loss=false",
    "task.class_weights=none",
    "threshold=0.5",
]
WIDTH, RATE, DROPOUT, DECAY, PATIENCE, EPOCHS = 256, 0.01, 0.4, 5e-4, 20, 200
PLANETOID = "_planetoid"
"""Ending of the name of a graph with Planetoid's split: cora_planetoid."""
PENALTIES = (0.01, 0.1, 1.0, 10.0)
SCORES = (
    "roc_auc",
    "average_precision",
    "accuracy",
    "micro_f1",
    "macro_f1",
    "log_loss",
    "calibration_error",
)


def settings_of(args: Any, name: str, split: int, model: str, folder: str, more: list[str]) -> Any:
    """The settings of one run on one split of a graph."""
    graph = name.removesuffix(PLANETOID)
    tables, splits = args.datasets / graph, args.datasets / "splits" / name
    overrides = [f"dataset_name=file dataset_file={tables if tables.is_dir() else f'{tables}.npz'}"]
    if name != graph:
        overrides.append(f"split=files split.dir={write_planetoid_split(f'{tables}.npz', folder)}")
    elif splits.is_dir():
        published = splits / str(split)
        overrides.append(
            f"split=files split.dir={published if published.is_dir() else min(splits.iterdir())}"
        )
    elif name == "imdb":
        overrides.append("split=per_class split.train=100 split.val=300")
        overrides.append("split.test=2339")
    elif name in ("cora", "pubmed"):
        sizes = {"cora": (86, 300, 1806), "pubmed": (1461, 2190, 13144)}[name]
        overrides.append("split=per_class split.train={} split.val={}".format(*sizes))
        overrides.append(f"split.test={sizes[2]}")
    overrides.append(f"num_partitions=4 partition_dir={folder} seed={split} app=train")
    words = [word for text in overrides for word in text.split(" ")]
    return compose([*words, *more], f"node_classification_{model}")


def write_planetoid_split(graph: str, folder: str) -> Path:
    """Planetoid's split of a graph whose nodes have the order of its release.

    20 training nodes of each class first, then 500 for validation; the last 1,000 are test nodes.
    """
    split_dir = Path(f"{folder}-planetoid")
    split_dir.mkdir(parents=True, exist_ok=True)
    labels = np.load(graph)["label"]
    nodes, first = np.arange(len(labels)), 20 * (labels.max() + 1)
    assert (np.bincount(labels[:first]) == 20).all()
    for part, chosen in (("train", nodes[:first]), ("val", nodes[first:][:500])):
        np.save(split_dir / f"{part}.npy", chosen)
    np.save(split_dir / "test.npy", nodes[-1000:])
    return split_dir


def data_of(settings: Any) -> dict[str, Tensor]:
    """Features [N, F], edges [2, E], labels and masks of the whole graph."""
    graph, split = common.load_graph(settings)
    masks = {
        part: torch.zeros(graph.num_nodes, dtype=torch.bool) for part in ("train", "val", "test")
    }
    for part, mask in masks.items():
        mask[torch.from_numpy(np.asarray(getattr(split, part)))] = True
    edges = np.stack((graph.edges.src, graph.edges.dst))
    return {
        "x": torch.from_numpy(common.dense_features(graph).astype(np.float32)),
        "edges": torch.from_numpy(edges.astype(np.int64)),
        "labels": torch.from_numpy(np.asarray(graph.labels)),
        **masks,
    }


def score(probabilities: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """The scores of probabilities [n, C] by scikit-learn; labels [n] or [n, C]."""
    from sklearn import metrics

    several = labels.ndim == 2
    scores = {}
    if several or probabilities.shape[1] == 2:
        flat = (labels.ravel(), probabilities.ravel()) if several else (labels, probabilities[:, 1])
        scores["roc_auc"] = metrics.roc_auc_score(*flat)
        scores["average_precision"] = metrics.average_precision_score(*flat)
    predicted = probabilities > 0.5 if several else probabilities.argmax(axis=1)
    scores["accuracy"] = float((predicted == labels).mean())
    for average in ("micro", "macro"):
        scores[f"{average}_f1"] = metrics.f1_score(
            labels, predicted, average=average, zero_division=0
        )
    if not several:
        scores["log_loss"] = metrics.log_loss(
            labels, probabilities, labels=range(probabilities.shape[1])
        )
    return scores


def logistic_regression(data: dict[str, Tensor], metric: str) -> dict[str, float]:
    """Balanced, on own and neighbour-mean features."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.preprocessing import StandardScaler

    x, (src, dst) = data["x"], data["edges"]
    total = torch.zeros_like(x).index_add_(0, dst, x[src])
    degree = torch.bincount(dst, minlength=len(x)).clamp(min=1)[:, None]
    rows = torch.cat((x, total / degree), dim=1).numpy()
    rows = StandardScaler().fit(rows[data["train"]]).transform(rows)
    labels = data["labels"].numpy()
    best, chosen = -np.inf, {}
    for penalty in PENALTIES:
        model: Any = LogisticRegression(C=penalty, class_weight="balanced", max_iter=300)
        if labels.ndim == 2:
            model = OneVsRestClassifier(model)
        model.fit(rows[data["train"]], labels[data["train"]])
        scores = {
            part: score(model.predict_proba(rows[data[part]]), labels[data[part]])
            for part in ("val", "test")
        }
        if scores["val"][metric] > best:
            best, chosen = scores["val"][metric], scores["test"]
    return chosen


class Network(nn.Module):
    """Two SAGEConv layers of PyG with LayerNorm."""

    def __init__(self, num_features: int, num_classes: int) -> None:
        from torch_geometric.nn import SAGEConv

        super().__init__()
        self.first, self.last = SAGEConv(num_features, WIDTH), SAGEConv(WIDTH, num_classes)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        hidden = torch.relu(
            self.norm(self.first(functional.dropout(x, DROPOUT, self.training), edges))
        )
        out: Tensor = self.last(functional.dropout(hidden, DROPOUT, self.training), edges)
        return out


def pyg(data: dict[str, Tensor], metric: str, seed: int) -> dict[str, float]:
    """End to end, without class weights and with balanced ones; validation chooses."""
    fits = [fit_pyg(data, metric, seed, balanced=balanced) for balanced in (False, True)]
    return max(fits, key=lambda fit: fit[0])[1]


def fit_pyg(
    data: dict[str, Tensor], metric: str, seed: int, *, balanced: bool
) -> tuple[float, dict[str, float]]:
    """The best validation metric and its test scores."""
    torch.manual_seed(seed)
    x, labels = data["x"], data["labels"]
    several, train = labels.ndim == 2, data["train"]
    num_classes = labels.shape[1] if several else int(labels.max()) + 1
    positives = labels[train].sum(dim=0) if several else torch.bincount(labels[train])
    weight = None
    if balanced:
        weight = len(labels[train]) / positives.clamp(min=1)
        weight = weight - 1 if several else weight / num_classes
    network = Network(x.shape[1], num_classes)
    optimizer = torch.optim.Adam(network.parameters(), RATE, weight_decay=DECAY)
    best, best_epoch, kept = -np.inf, 0, network.state_dict()

    def scores_of(part: str) -> dict[str, float]:
        network.eval()
        with torch.no_grad():
            logits = network(x, data["edges"])[data[part]]
        probabilities = logits.sigmoid() if several else logits.softmax(dim=1)
        return score(probabilities.numpy(), labels[data[part]].numpy())

    for epoch in range(1, EPOCHS + 1):
        network.train()
        optimizer.zero_grad()
        logits = network(x, data["edges"])[train]
        if several:
            loss = functional.binary_cross_entropy_with_logits(
                logits, labels[train].float(), pos_weight=weight
            )
        else:
            loss = functional.cross_entropy(logits, labels[train], weight)
        loss.backward()
        optimizer.step()
        value = scores_of("val")[metric]
        if value > best:
            best, best_epoch, kept = value, epoch, copy.deepcopy(network.state_dict())
        elif epoch - best_epoch >= PATIENCE:
            break
    network.load_state_dict(kept)
    return best, scores_of("test")


def report(name: str, method: str, runs: list[dict[str, float]], metric: str) -> None:
    """Print one line: means and standard deviations over the splits."""
    cells = []
    for measure in SCORES:
        values = np.array([run.get(measure, np.nan) for run in runs], dtype=float)
        cells.append(f"{values.mean():.3f} ± {values.std():.3f}")
    extra = [f"{np.mean([run.get(key, np.nan) for run in runs]):.2f}" for key in ("rounds", "MB")]
    print(f"| {name} | {method} | {metric} | {' | '.join([*cells, *extra])} |", flush=True)


def main() -> None:
    parser = common.parser(__doc__, seeds=5, models=["gcn", "sage", "gat"], options=[])
    parser.add_argument("--datasets", type=Path, required=True)
    parser.add_argument("--graphs", nargs="+", required=True)
    parser.add_argument("--methods", nargs="+", default=["former", "default", "rivals"])
    args = parser.parse_args()
    args.datasets = args.datasets.resolve()
    print(common.machine())
    print(f"| graph | method | stops by | {' | '.join(SCORES)} | rounds | MB |")
    print("|---|---|---|" + "---|" * (len(SCORES) + 2))
    for name in args.graphs:
        with tempfile.TemporaryDirectory() as folder:
            run_graph(args, name, folder)


def run_graph(args: Any, name: str, folder: str) -> None:
    """All methods on all splits of a graph."""
    runs: dict[str, list[dict[str, float]]] = {}
    metric = "accuracy"
    for split in range(args.seeds):
        parts = f"{folder}/{split}"
        settings = settings_of(args, name, split, args.models[0], parts, args.options)
        common.partition(settings)
        for model in args.models:
            for method in ("former", "default"):
                if method in args.methods:
                    more = [*(FORMER if method == "former" else []), *args.options]
                    settings = settings_of(args, name, split, model, parts, more)
                    summary = common.train_in_threads(settings)
                    metric = summary["metric"] if method == "default" else metric
                    scores = {**summary["test"], "rounds": float(sum(summary["rounds"]))}
                    scores["MB"] = summary["bytes"]["total"] / 1e6
                    runs.setdefault(f"{model}, {method}", []).append(scores)
        if "rivals" in args.methods:
            data = data_of(settings)
            for method, rival in (("logistic regression", logistic_regression), ("PyG SAGE", pyg)):
                extra = (split,) if method == "PyG SAGE" else ()
                runs.setdefault(method, []).append(rival(data, metric, *extra))
    for method, method_runs in runs.items():
        report(name, method, method_runs, "micro_f1" if method.endswith("former") else metric)


if __name__ == "__main__":
    main()
