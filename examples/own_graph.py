"""Your own graph from Python: write an npz file, train on four partitions, predict some nodes.

python examples/own_graph.py [FOLDER]     # outputs/own-graph
"""

import sys
from pathlib import Path

import numpy as np

import retexo

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "outputs/own-graph")
folder.mkdir(parents=True, exist_ok=True)

# Three classes of nodes. Nine of ten edges are within a class; features are the class with noise.
rng = np.random.default_rng(0)
label = np.arange(900) % 3
src = rng.integers(900, size=4000)
dst = (src + 3 * rng.integers(300, size=4000) + (rng.random(4000) < 0.1)) % 900
feat = (2 * np.eye(3)[label] + rng.standard_normal((900, 3))).astype(np.float32)
np.savez(
    folder / "graph.npz", src=src, dst=dst, feat=feat, label=label
)  # docs/partitioning.md has other forms

data = {
    "dataset_name": "file",
    "dataset_file": folder / "graph.npz",
    "symmetrize": True,  # src, dst has each edge once
    "split": "fraction",
    "split.train": 0.6,
    "split.val": 0.2,
    "split.test": 0.2,
    "num_partitions": 4,
    "partition_dir": folder / "partitions",
}
retexo.run({"app": "partition_data", **data})
summary = retexo.train(
    {**data, "hidden_dim": 16, "num_rounds": [100], "hydra.run.dir": folder / "run"}
)
print(f"test accuracy {summary['test']['accuracy']:.3f}, {summary['bytes']['total']:,} bytes sent")

run = retexo.load_run(folder / "run")
table = run.predict(folder / "partitions" / "graph-random-vol-4", node_ids=[0, 1, 2])
print(
    "nodes",
    table.ids,
    "classes",
    table.classes,
    "probability",
    table.probabilities.max(axis=1).round(2),
)
