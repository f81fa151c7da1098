"""Choose `experiment=lean` by validation accuracy and bytes, over models and graphs; test accuracy is not looked at.

    python benchmarks/choose_lean.py [--seeds 3] [--pubmed ../shared/datasets/pubmed.npz] [--models gcn sage gat]

A candidate is a row of settings on top of `+experiment=lean`. For each: mean best validation accuracy and mean
megabytes of all that is sent, 4 random parts, a new split a seed.
"""

import tempfile
from pathlib import Path

import common

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
    parser = common.parser(__doc__, seeds=3, pubmed=None, models=common.MODELS)
    parser.add_argument("--candidates", nargs="+", default=CANDIDATES)
    arguments = parser.parse_args()
    graphs = common.graphs(arguments.pubmed)
    print(f"{common.machine()}; 4 random parts; seeds 0 to {arguments.seeds - 1}; validation accuracy, MB")
    columns = [(graph, model) for graph in graphs for model in arguments.models]
    print(" ".join(f"{graph} {model}".rjust(16) for graph, model in columns))
    with tempfile.TemporaryDirectory() as folder:
        for candidate in arguments.candidates:
            options = ["+experiment=lean", *candidate.split()]
            cells = []
            for graph, model in columns:
                place = Path(folder) / graph
                place.mkdir(exist_ok=True)
                found = common.seed_runs(graphs[graph], model, arguments.seeds, options, place)
                accuracy = common.accuracies(found, "val").mean()
                cells.append(f"{accuracy:.4f} {common.megabytes(found):8.3f}".rjust(16))
            print(" ".join(cells), "|", candidate, flush=True)


if __name__ == "__main__":
    main()
