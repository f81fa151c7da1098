"""Nodes without features: test accuracy with generated features, 5 seeds, 4 random partitions.

    nice python benchmarks/no_features.py [--seeds 5] [--pubmed pubmed.npz] [--lastfm FOLDER]
        [--models sage] [--graphs cora blocks] [--kinds degree positional]

Cora and PubMed without their features; `blocks`, a stochastic block model of 4,000 nodes whose
classes show in its edges only; and the friendships of last.fm (HetRec 2011), from parquet tables
nodes/user, edges/user__friend__user, user__listens__artist and user__tags__artist. There a
user's class is the most frequent tag of the artists they listen to, among the 8 most frequent
tags, else blank; an edge's weight is the overlap of both users' plays.
"""

import contextlib
import itertools
import tempfile
from pathlib import Path

import common
import numpy as np
import pandas as pd

from retexo.settings.compose import compose

KINDS = ("given", "degree", "random", "positional", "[degree,random]", "[degree,positional]")
BLOCKS = [
    "dataset_name=synthetic",
    "synthetic.nodes=4000",
    "synthetic.edges=20000",
    "synthetic.features=1",
    "synthetic.classes=6",
    "synthetic.homophily=0.6",
    "split=fraction",
    "split.train=0.2",
    "split.val=0.1",
    "split.test=0.7",
]
CLASSES = 8


def write_lastfm(source: Path, folder: Path) -> list[str]:
    """Write tables for dataset_name=file: edges with src, dst and weight.

    Labels with id and label.
    """
    users = pd.read_parquet(source / "nodes/user.parquet")
    names = ("friend__user", "listens__artist", "tags__artist")
    friends, plays, tags = (
        pd.read_parquet(source / f"edges/user__{name}.parquet") for name in names
    )
    of_artist = tags.groupby("dst")["tag"].agg(lambda tag: tag.mode().iloc[0]).rename("tag")
    heard = (
        plays.join(of_artist, on="dst", how="inner")
        .groupby(["src", "tag"])["weight"]
        .sum()
        .reset_index()
    )
    top = heard.sort_values("weight").drop_duplicates("src", keep="last").set_index("src")["tag"]
    named = top[top.isin(top.value_counts().index[:CLASSES])].map("tag {}".format)
    users.assign(label=users["id"].map(named)).to_parquet(folder / "labels.parquet")
    plays["share"] = plays["weight"] / plays.groupby("src")["weight"].transform("sum")
    shares = (
        plays.set_index(["src", "dst"])["share"]
        .unstack(fill_value=0)
        .reindex(users["id"], fill_value=0)
    )
    rows = dict(zip(users["id"], shares.to_numpy(), strict=True))
    overlap = [
        np.minimum(rows[src], rows[dst]).sum()
        for src, dst in zip(friends["src"], friends["dst"], strict=True)
    ]
    friends.assign(weight=np.round(0.01 + np.array(overlap), 3)).to_parquet(
        folder / "edges.parquet"
    )
    return [
        "dataset_name=file",
        f"dataset_file={folder}",
        "symmetrize=true",
        "split=fraction",
        "split.train=0.5",
        "split.val=0.2",
        "split.test=0.3",
    ]


def main() -> None:
    parser = common.parser(__doc__, seeds=5, pubmed=None, models=["sage"], options=[])
    parser.add_argument("--lastfm", type=Path, help="folder of last.fm tables")
    parser.add_argument("--graphs", nargs="+", help="graphs to run (default all)")
    parser.add_argument("--kinds", nargs="+", default=KINDS)
    options = parser.parse_args()
    lastfm = options.lastfm and options.lastfm.resolve()
    pubmed = options.pubmed and options.pubmed.resolve()
    print(common.machine())
    with tempfile.TemporaryDirectory() as temporary, contextlib.chdir(temporary):
        graphs = {**common.graphs(pubmed), "blocks": BLOCKS}
        if lastfm:
            (Path(temporary) / "friends").mkdir()
            graphs["lastfm"] = write_lastfm(lastfm, Path(temporary) / "friends")
        for (name, data), model, kind in itertools.product(
            graphs.items(), options.models, options.kinds
        ):
            if (kind == "given" and name in ("blocks", "lastfm")) or name not in (
                options.graphs or graphs
            ):
                continue
            summaries = []
            for seed in range(options.seeds):
                folder = f"partition_dir={temporary}/{name}-{options.kinds.index(kind)}-{seed}"
                settings = compose(
                    [*data, f"features={kind}", f"seed={seed}", folder, *options.options],
                    f"node_classification_{model}",
                )
                common.partition(settings)
                summaries.append(common.train_in_threads(settings))
            features = (
                np.mean([summary["bytes"]["by_kind"]["features"] for summary in summaries]) / 1e6
            )
            test = common.with_spread(common.accuracies(summaries, "test"))
            print(
                f"{name:<8} {model:<5} {kind:<20} test {test}   {features:.3f} MB of features",
                flush=True,
            )


if __name__ == "__main__":
    main()
