"""Reads a site's feature table, a row per node, encoded by a pipeline that all sites fit.

partitioning/features/sums.py describes how they fit it together.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from partitioning.array_checks import Ints
from partitioning.datasets.node_tables import in_node_order, read_table
from partitioning.datasets.nodes import Nodes
from partitioning.datasets.tables import files_named
from partitioning.errors import InputError
from partitioning.features.build import stored_columns
from partitioning.features.encoder import State, apply_pipeline
from partitioning.features.schema import Rows, Schema
from partitioning.partition_settings import ColumnSettings
from partitioning.site_description import ARRAYS, Site

SUFFIXES = ("csv", "csv.gz", "parquet")
SITE_TABLES = tuple(f"features.{suffix}" for suffix in SUFFIXES)


@dataclass(frozen=True)
class SitePipeline:
    """How a site encodes its table."""

    state: State
    columns: ColumnSettings

    def read(self, path: Path, ids: Ints) -> Rows:
        """Return the features [I, F] of nodes by their ids [I]."""
        state = self.state | {"roles": {}}  # each site names its column of ids
        columns = stored_columns({"nodes": state}, self.columns)
        rows, schema = read_site_table(path, ids, columns)
        encoded: Rows = apply_pipeline(self.state, rows, schema).toarray()
        return encoded


def find_site_table(site: Site) -> Path | None:
    """Return the site's table of features; None if its part.npz has them."""
    return next(iter(files_named(site.folder, "features", SUFFIXES)), None)


def read_site_table(path: Path, ids: Ints, columns: ColumnSettings) -> tuple[Rows, Schema]:
    """Read the raw features [I, W] of nodes by their ids [I], NaN where blank or without a row.

    Raises:
        InputError: there is no id column, an id is unknown or repeated, or the table has labels.
    """
    table = read_table(path, columns)
    if table.ids is not None and table.ids.dtype == object:
        raise InputError(
            f"{path}: its ids are names; expected the numbers of `node_id` in {ARRAYS}"
        )
    if table.ids is None:
        raise InputError(f"{path}: there is no column `id`; set columns.id=NAME to the ids")
    others = sorted(table.values.keys() - {"feat"})
    if others:
        raise InputError(f"{path}: has {others[0]}, which {ARRAYS} holds; take the column out")
    if "feat" not in table.values or table.schema is None:
        raise InputError(f"{path}: has no feature column besides the ids")
    nodes = Nodes(len(ids), ids, grows=False, where=str(path))
    return np.asarray(in_node_order(table, nodes)["feat"], np.float32), table.schema
