"""Cut the bundled Cora graph into site folders, to try dataset_name=parts on one machine.

python examples/make_sites.py FOLDER NAME NAME ...
"""

import sys
from pathlib import Path

import numpy as np

from partitioning import datasets, node_split
from partitioning.errors import InputError
from partitioning.site_folders import write_sites
from retexo.settings.compose import compose


def main(base: Path, names: list[str]) -> None:
    settings = compose(["dataset_name=cora"])
    graph = datasets.load_graph(settings)
    split = node_split.draw(graph, settings.split, datasets.recipe("cora").split)
    masks = {"train_mask": split.train, "val_mask": split.val, "test_mask": split.test}
    assignment = np.random.default_rng(0).integers(len(names), size=graph.num_nodes)
    for folder in write_sites(base, graph, masks, assignment, names):
        print(f"{folder}: {', '.join(sorted(file.name for file in folder.iterdir()))}")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    try:
        main(Path(sys.argv[1]), sys.argv[2:])
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
