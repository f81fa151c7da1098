"""Choose `experiment=lean` by validation accuracy and bytes, over models and graphs; test accuracy is not looked at.

    python benchmarks/choose_lean.py [--seeds 3] [--pubmed ../shared/datasets/pubmed.npz] [--models gcn sage gat]

A candidate is a row of settings on top of `+experiment=lean`. For each: mean best validation accuracy and mean
megabytes of all that is sent, 4 random parts, a new split a seed.
"""

import argparse
import logging
import tempfile
from pathlib import Path

import numpy as np
import torch
from accuracy import PUBMED_SPLIT, runs

CANDIDATES = (
    "gradient.rank=8",
    "gradient.rank=8 stopping.patience=5",
    "gradient.rank=4 stopping.patience=5",
    "gradient.rank=2 stopping.patience=5",
    "gradient.rank=8 local_epochs=10",
    "gradient.rank=2 stopping.patience=3",
    "gradient.rank=4 stopping.patience=3",
    "gradient.rank=4 stopping.patience=3 local_epochs=10",
    "gradient.rank=4 stopping.patience=3 learning_rate=[0.003]",
    "gradient.rank=4 stopping.patience=5 learning_rate=[0.003]",
    "gradient.compression=none stopping.patience=3 learning_rate=[0.003]",
    "gradient=sync gradient.compression=none gradient.precision=fp32 exchange.precision=fp32 stopping.patience=30 "
    "local_epochs=1 learning_rate=[0.003]",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--pubmed", type=Path, help="PubMed as an npz of the form of dataset_name=file")
    parser.add_argument("--models", nargs="+", default=("gcn", "sage", "gat"))
    parser.add_argument("--candidates", nargs="+", default=CANDIDATES)
    arguments = parser.parse_args()
    logging.disable(logging.INFO)
    graphs = {"cora": ["dataset_name=cora"]}
    if arguments.pubmed:
        graphs["pubmed"] = ["dataset_name=file", f"dataset_file={arguments.pubmed.resolve()}", *PUBMED_SPLIT]
    print(f"torch {torch.__version__}; 4 random parts; seeds 0 to {arguments.seeds - 1}; validation accuracy, MB")
    columns = [(graph, model) for graph in graphs for model in arguments.models]
    print(" ".join(f"{graph} {model}".rjust(16) for graph, model in columns))
    with tempfile.TemporaryDirectory() as folder:
        for candidate in arguments.candidates:
            options = ["+experiment=lean", *candidate.split()]
            cells = []
            for graph, model in columns:
                place = Path(folder) / graph
                place.mkdir(exist_ok=True)
                found = runs(graphs[graph], model, arguments.seeds, options, place)
                accuracy = np.mean([summary["val"]["accuracy"] for summary in found])
                megabytes = np.mean([summary["bytes"]["total"] for summary in found]) / 1e6
                cells.append(f"{accuracy:.4f} {megabytes:8.3f}".rjust(16))
            print(" ".join(cells), "|", candidate, flush=True)


if __name__ == "__main__":
    main()
