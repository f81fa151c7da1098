"""The chains of same_results.py: what is run on both sides.

A chain makes its graph, and then usually runs each app with the same settings. Networks are small
and rounds few: what is compared is the arithmetic, not what is learnt.
"""

from functools import partial

import functions
import graphs
from steps import Call, Chain, Run, Together

FILES = ("cluster.threads=1", "progress=none", "dataset_name=file", "partition_dir=parts")
SHORT = ("num_rounds=[8]", "hidden_dim=16")
SEVERAL_NODES = ("distributed.interface=lo", "distributed.master_port={port}")


def config(model: str, task: str = "node_classification") -> str:
    return f"--config-name={task}_{model}"


def apps(
    names: str,
    *settings: str,
    parts: int = 3,
    file: str = "graph.npz",
    split: str = "split=given",
    short: tuple[str, ...] = SHORT,
) -> tuple[Run, ...]:
    """One run of each app with the same settings, in a folder of its name. Later settings win."""
    common = (*FILES, *short, split, f"dataset_file=input/{file}", f"num_partitions={parts}")
    common = tuple(setting for setting in common if setting.split("=")[0] not in _names(settings))
    runs = []
    for app in names.split():
        trained = app in ("evaluate", "predict", "export")
        own = ("checkpoint_dir=train",) if trained else ()
        runs.append(Run(app, (*common, *settings, *own, f"app={app}")))
    return tuple(runs)


def _names(settings: tuple[str, ...]) -> set[str]:
    return {setting.split("=")[0] for setting in settings}


def run(name: str, app: str, *settings: str, parts: int = 3, status: int = 0) -> Run:
    """One more run of an app, in a folder of another name."""
    (app_run,) = apps(app, *settings, parts=parts)
    return Run(name, app_run.arguments, status)


WARM_UP = Chain("warm-up", graphs.plain, apps("plan train evaluate predict", parts=2))

TRAIN = "train predict"
PLAN = "plan train evaluate predict"
SCORED = "train evaluate predict"
TABLES = ("columns.label=subject", "symmetrize=true", "split=default")
LINKS = (
    "task.spectral=4",
    "task.negatives=16",
    "task=link_prediction",
    "split=default",
)
GCN = config("gcn")
LINKS_SAGE = config("sage", "link_prediction")


NETWORKS = (
    Chain("defaults", graphs.plain, apps(PLAN, short=(), parts=4), weight=3),
    Chain("gcn-1-part", graphs.plain, apps(PLAN, GCN, parts=1)),
    Chain("gcn-7-parts", graphs.plain, apps(TRAIN, GCN, parts=7), weight=2),
    Chain("gcn-weights", graphs.weighted, apps(PLAN, GCN)),
    Chain("gcn-edge-features", graphs.with_edge_features, apps(PLAN, GCN)),
    Chain("sage-mean", graphs.weighted, apps(PLAN, config("sage"))),
    Chain("sage-pool", graphs.plain, apps(PLAN, config("sage"), "model.aggregator=pool")),
    Chain("gat", graphs.with_edge_features, apps(PLAN, config("gat"))),
    Chain("gat-concat", graphs.plain, apps(TRAIN, config("gat"), "model.head_merge=concat")),
    Chain("gin", graphs.weighted, apps(PLAN, config("gin"))),
    Chain(
        "rgcn",
        graphs.typed,
        (
            *apps(PLAN, config("rgcn"), "split=default", file="typed"),
            Call("functions", functions.predict_typed),
        ),
    ),
    Chain("rgat", graphs.typed, apps(TRAIN, config("rgat"), "split=default", file="typed")),
    Chain(
        "hetero-sage",
        graphs.typed,
        apps(TRAIN, config("hetero_sage"), "split=default", "num_layers=2", file="typed"),
    ),
)
TASKS = (
    Chain("several-labels", graphs.several_labels, apps(PLAN, GCN)),
    Chain("rare-class", graphs.rare_class, apps(PLAN, config("sage"))),
    Chain(
        "fixed-threshold",
        graphs.rare_class,
        apps(
            TRAIN,
            GCN,
            "threshold=0.3",
            "class_weights=balanced",
            "task.loss=focal",
        ),
    ),
    Chain("regression", graphs.regression, apps(PLAN, GCN, "task=node_regression")),
    Chain(
        "regression-huber",
        graphs.regression,
        apps(TRAIN, config("sage"), "task=node_regression", "task.loss=huber"),
    ),
    Chain(
        "links-sage",
        graphs.links_with_times,
        (
            *apps("plan train evaluate", LINKS_SAGE, *LINKS),
            *apps("predict", LINKS_SAGE, *LINKS, "predict.pairs=input/pairs.csv"),
            Call("functions", functions.predict_links),
        ),
    ),
    Chain(
        "links-time-mlp",
        graphs.links_with_times,
        apps(
            "train",
            config("gcn", "link_prediction"),
            *LINKS,
            "split.by=time",
            "task.scorer=mlp",
            "split.edges=[0.8,0.1,0.1]",
        ),
    ),
    Chain(
        "links-typed",
        graphs.typed,
        apps(
            "train evaluate",
            config("rgcn", "link_prediction"),
            *LINKS,
            "task.relation=author__writes__paper",
            "features=[given,positional]",
            file="typed",
        ),
    ),
)
TRAINING = (
    Chain("exact", graphs.plain, apps(PLAN, GCN, "+experiment=exact")),
    Chain("plain-exchange", graphs.plain, apps(PLAN, GCN, "exchange=plain")),
    Chain("published", graphs.plain, apps(PLAN, GCN, "+experiment=retexo")),
    Chain("lan", graphs.plain, apps(TRAIN, GCN, "network=lan", "exchange.precision=[int8,bf16]")),
    Chain("look-ahead", graphs.plain, apps(PLAN, config("sage"), "model.lookahead=1")),
    Chain(
        "layers-auto",
        graphs.plain,
        (
            *apps("train", GCN, "num_layers=auto", "max_layers=4"),
            run("predict", "predict", GCN, "checkpoint_dir=train"),
        ),
    ),
    Chain("batches", graphs.plain, apps(TRAIN, GCN, "batch_size=32")),
    Chain("local-steps", graphs.plain, apps(TRAIN, GCN, "gradient=local", "local_epochs=3")),
    Chain("smoothing-off", graphs.plain, apps(TRAIN, GCN, "smoothing.steps=0")),
    Chain(
        "optimizer",
        graphs.plain,
        apps(
            TRAIN,
            GCN,
            "optimizer._target_=torch.optim.SGD",
            "+optimizer.momentum=0.9",
            "lr=[0.1]",
            "scheduler=cosine",
            "model.norm=none",
            "model.activation=elu",
            "compute.precision=bf16",
        ),
    ),
    Chain("init", graphs.plain, (*apps("train", GCN), run("again", "train", GCN, "init=train"))),
    Chain("inductive", graphs.plain, apps(TRAIN, config("sage"), "split.inductive=true")),
    Chain(
        "seeds",
        graphs.plain,
        apps(
            "train",
            GCN,
            "seeds=[0,1]",
            "split=fraction",
            "split.train=0.5",
            "split.val=0.25",
            "split.test=0.25",
        ),
    ),
    Chain("full-graph", graphs.plain, apps(SCORED, GCN, "trainer=full_graph")),
    Chain(
        "full-graph-lean",
        graphs.plain,
        apps(TRAIN, config("gat"), "trainer=full_graph", "+experiment=lean"),
    ),
    Chain("bns", graphs.plain, apps(SCORED, config("sage"), "trainer=bns", "bns.p=0.3")),
    Chain("local", graphs.plain, apps(SCORED, GCN, "trainer=local")),
    Chain("fedgcn", graphs.plain, apps(SCORED, GCN, "trainer=fedgcn")),
    Chain("sign", graphs.plain, apps("train", GCN, "trainer=sign")),
    Chain(
        "sampled",
        graphs.plain,
        apps("train", config("sage"), "trainer=sampled", "batch_size=64"),
        weight=2,
        # DGL draws the neighbours: two runs of one commit differ, also in bytes of structure.
        varies=("train.checkpoint", "train.metrics", "train.summary"),
    ),
    Chain(
        "full-graph-typed",
        graphs.typed,
        apps(
            TRAIN,
            config("rgcn"),
            "trainer=full_graph",
            "split=default",
            "num_layers=2",
            file="typed",
        ),
    ),
)
MACHINES = (
    Chain("metis", graphs.plain, apps(TRAIN, GCN, "partition_method=metis", parts=4)),
    Chain("km1", graphs.plain, apps("plan train", config("gat"), "partition_method=km1")),
    Chain(
        "assigned",
        graphs.assigned,
        apps(PLAN, GCN, "partition_method=file", "partition_file=input/assignment.npy", parts=4),
    ),
    Chain("sockets", graphs.plain, apps(TRAIN, GCN, "distributed.backend=sockets")),
)


def make_nodes(name: str, *settings: str) -> Together:
    """Two nodes with two workers each."""
    return Together(
        tuple(
            run(
                f"{name}{rank}",
                "train",
                GCN,
                *settings,
                *SEVERAL_NODES,
                "parts_per_node=2",
                f"node_rank={rank}",
                parts=4,
            )
            for rank in range(2)
        )
    )


def make_sites(name: str, app: str, *settings: str) -> Together:
    """Three owners, who meet at the first one's hub, with certificates and secure sums."""
    return Together(
        tuple(
            Run(
                f"{name}-{site}",
                (
                    GCN,
                    *("cluster.threads=1", "progress=none", *SHORT),
                    *("dataset_name=parts", f"dataset_file=input/{site}"),
                    *("num_partitions=3", "parts_per_node=1", f"node_rank={rank}"),
                    *("distributed.interface=lo", "distributed.backend=sockets"),
                    *("distributed.hub=127.0.0.1:{port}", "gradient.secure=true"),
                    *("gradient.precision=fp32", "sites.max_rows_shared=0.99"),
                    f"distributed.credentials=input/credentials/{site}",
                    f"app={app}",
                    *settings,
                ),
            )
            for rank, site in enumerate(graphs.SITES)
        )
    )


RESUMED = (*apps("train", "checkpoint.every=2")[0].arguments, "hydra.run.dir=train")
DISTURBED = (
    Chain(
        "two-nodes",
        graphs.plain,
        (*apps("partition_data", parts=4), make_nodes("node")),
        weight=2,
    ),
    Chain(
        "sites-secure",
        graphs.sites,
        (
            Run("", ("credentials", "init", "input/credentials", "--sites", *graphs.SITES)),
            make_sites("train", "train"),
            make_sites("predict", "predict", "checkpoint_dir=train-north"),
        ),
        weight=3,
    ),
    Chain(
        "resume",
        graphs.plain,
        (
            Call("stopped", partial(functions.stop_training, RESUMED)),
            run("train", "train", GCN, "checkpoint.every=2", "resume=auto", "sleep_time=0.01"),
            run("predict", "predict", GCN, "checkpoint_dir=train"),
        ),
        weight=2,
    ),
    Chain(
        "restart",
        graphs.plain,
        (Call("killed", partial(functions.kill_worker, RESUMED)),),
        weight=2,
    ),
)
KINDS = {
    "parquet": ("columns.label=subject", "columns.embedding=vector", "columns.date=joined"),
    "gz": ("columns.label=subject", "features.scale=robust"),
    "excel": ("columns.label=subject", "features.scale=log", "features.missing=zero"),
    "snap": ("columns.label=label",),
    "spark": ("columns.label=subject", "edges.unknown=drop"),
    "labels": ("columns.label=[t0,t1,t2]",),
}
FRACTIONS = ("split=fraction", "split.train=0.5", "split.val=0.25", "split.test=0.25")
OBJECTS = {
    "pyg.npz": ("split=given",),
    "pyg-typed": ("features={author:degree}",),
    "dgl.npz": ("split=given",),
    "networkx.npz": ("features=[degree,positional]", *FRACTIONS),
    "scipy.npz": FRACTIONS,
    "pandas": TABLES,
}
CHANGED = tuple(
    f"update.{name}=input/{name}.csv"
    for name in (
        "new_nodes",
        "changed_nodes",
        "deleted_nodes",
        "new_edges",
        "changed_edges",
        "deleted_edges",
    )
)
DATA = (
    Chain(
        "tables",
        graphs.tables,
        (
            *apps(PLAN, config("sage"), *TABLES, file="tables"),
            run(
                "csv",
                "predict",
                *TABLES,
                "dataset_file=input/tables",
                "predict.format=csv",
                "checkpoint_dir=train",
                "predict.embeddings=true",
            ),
            run(
                "npy",
                "predict",
                "dataset_file=input/later",
                "split=none",
                "predict.format=npy",
                "checkpoint_dir=train",
                "partition_dir=later-parts",
                "symmetrize=true",
            ),
            Call("functions", functions.predict_new_nodes),
            Call("service", functions.ask_service, with_port=True),
        ),
        weight=2,
    ),
    Chain(
        "kinds-of-tables",
        graphs.tables_of_many_kinds,
        tuple(
            run(
                name,
                "partition_data",
                *settings,
                "symmetrize=true",
                f"dataset_file=input/{name}",
                f"partition_dir=parts-{name}",
                *FRACTIONS,
                parts=2,
            )
            for name, settings in KINDS.items()
        ),
    ),
    Chain(
        "made-features",
        graphs.without_features,
        tuple(
            run(name, "train", GCN, f"features={kinds}", f"partition_dir=parts-{name}", parts=2)
            for name, kinds in (("degree", "degree"), ("two", "[positional,random]"))
        ),
    ),
    Chain(
        "neighbours",
        graphs.tables,
        (run("train", "train", GCN, "dataset_file=input/tables", "features=neighbours", *TABLES),),
    ),
    Chain(
        "objects",
        graphs.plain,
        (
            Call("written", functions.write_objects),
            *(
                run(
                    f"of-{file.split('.')[0]}",
                    "partition_data",
                    *settings,
                    f"dataset_file=objects/{file}",
                    f"partition_dir=parts-{file}",
                    parts=2,
                )
                for file, settings in OBJECTS.items()
            ),
        ),
    ),
    Chain(
        "dgl-directory",
        graphs.plain,
        (
            Call("written", functions.write_dgl_directory),
            *apps(TRAIN, GCN, "partition_dir=input/by-dgl", parts=2),
        ),
    ),
    Chain(
        "describe",
        graphs.two_tables,
        (
            run("north", "describe", *TABLES, "dataset_file=input/north"),
            run("south", "train", GCN, *TABLES, "dataset_file=input/south"),
            run(
                "train",
                "train",
                GCN,
                *TABLES,
                "dataset_file=input/tables",
                "features.spec=south",
            ),
        ),
    ),
    Chain(
        "update",
        graphs.changes,
        (
            *apps("train", GCN, *TABLES, file="tables"),
            run(
                "before",
                "predict",
                *TABLES,
                "dataset_file=input/tables",
                "checkpoint_dir=train",
                "partition_dir=parts/tables-random-vol-3",
            ),
            Run("update", ("app=update", "partition_dir=parts/tables-random-vol-3", *CHANGED)),
            run(
                "after",
                "predict",
                *TABLES,
                "dataset_file=input/tables",
                "checkpoint_dir=train",
                "partition_dir=parts/tables-random-vol-3",
            ),
            Run(
                "rebalance",
                (
                    "app=partition_data",
                    "partition.from=parts/tables-random-vol-3",
                ),
            ),
        ),
        weight=2,
    ),
)
USE = (
    Chain(
        "functions", graphs.plain, (*apps("train", GCN), Call("functions", functions.predict_plain))
    ),
    Chain(
        "new-graph",
        graphs.new_graph,
        (
            *apps("train", config("gin")),
            run(
                "new",
                "predict",
                "dataset_file=input/new.npz",
                "split=none",
                "checkpoint_dir=train",
                "partition_dir=new-parts",
                "predict.precision=trained",
                parts=2,
            ),
        ),
    ),
    Chain(
        "export",
        graphs.plain,
        (
            *apps("train export", config("sage"), parts=2),
            run("onnx", "export", "export.format=onnx", "checkpoint_dir=train", parts=2),
            Call("functions", functions.run_exported),
        ),
    ),
)

CHAINS: tuple[Chain, ...] = (*NETWORKS, *TASKS, *TRAINING, *MACHINES, *DISTURBED, *DATA, *USE)
