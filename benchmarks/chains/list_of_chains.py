"""The chains of same_results.py: what is run on both sides."""

import graphs
from steps import Chain, Run, Step

COMMON = (
    "cluster.threads=1",
    "progress=none",
    "dataset_name=file",
    "partition_dir=parts",
)
SHORT = ("num_rounds=[8]", "hidden_dim=16")
APPS = ("partition_data", "plan", "train", "evaluate", "predict")


def config(model: str, task: str = "node_classification") -> str:
    return f"--config-name={task}_{model}"


def apps(
    *settings: str,
    only: tuple[str, ...] = APPS,
    parts: int = 3,
    file: str = "graph.npz",
    split: str = "split=given",
    short: tuple[str, ...] = SHORT,
) -> tuple[Step, ...]:
    """One run of each app with the same settings, in folders of their names."""
    given = (*COMMON, *short, split, f"dataset_file=input/{file}", f"num_partitions={parts}")
    return tuple(Run(app, (*settings, *given, *extra_of(app), f"app={app}")) for app in only)


def extra_of(app: str) -> tuple[str, ...]:
    return ("checkpoint_dir=train",) if app in ("evaluate", "predict", "export") else ()


WARM_UP = Chain("warm-up", graphs.plain, apps(parts=1))

CHAINS: tuple[Chain, ...] = (
    Chain("defaults", graphs.plain, apps(short=(), parts=4)),
    Chain("gcn-7-parts", graphs.plain, apps(config("gcn"), parts=7)),
    Chain("gcn-1-part", graphs.plain, apps(config("gcn"), parts=1)),
    Chain("sage-mean", graphs.weighted, apps(config("sage"))),
    Chain("sage-pool", graphs.plain, apps(config("sage"), "model.aggregator=pool")),
    Chain("gat", graphs.with_edge_features, apps(config("gat"))),
    Chain("gin", graphs.weighted, apps(config("gin"))),
    Chain("gcn-edge-features", graphs.with_edge_features, apps(config("gcn"))),
    Chain("several-labels", graphs.several_labels, apps(config("gcn"))),
    Chain("rare-class", graphs.rare_class, apps(config("sage"))),
)
