"""Loads Cora, the only data set in this repository (scripts/build_cora.py makes the asset)."""

from pathlib import Path

from partitioning.graph.graph_data import GraphData
from partitioning.partition_settings import DatasetSettings
from partitioning.read.array_files import read_arrays
from partitioning.read.raw import OF_EDGES, OF_NODES, build_named

CORA = Path(__file__).parent / "assets" / "cora.npz"


def load(settings: DatasetSettings) -> GraphData:
    """Cora: 2,708 papers, 10,556 directed edges, 1,433 binary word features, 7 subjects.

    Features are not normalised.

    Classes are numbered as in the Planetoid release; `node_ids` are the papers' own ids.
    """
    return build_named(settings, read_arrays(CORA, (*OF_NODES, *OF_EDGES)), {})
