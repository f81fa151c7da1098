"""What app=describe proposes about feature columns, and the pipeline that all sites fit."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from partitioning import datasets, node_split
from partitioning.errors import InputError
from partitioning.features.agreed import AgreedColumn, propose_columns, read_agreed
from partitioning.features.build import encode_tables, stored_columns
from partitioning.features.encoder import State
from partitioning.features.roles import MissingColumn
from partitioning.features.statistics import FittedRows
from partitioning.features.sums import (
    AddUp,
    Share,
    check_no_others,
    compute_share,
    describe_sums,
    fit_sums,
    share_nothing,
)
from partitioning.graph.graph_data import SPLITS, table_name
from partitioning.graph.schema import Rows, Schema, describe
from partitioning.partition_settings import ColumnSettings, DatasetSettings, FeatureSettings
from partitioning.sites.site_arrays import (
    SITE_TABLES,
    find_site_table,
    read_ids_and_masks,
    read_site_table,
)
from partitioning.sites.site_description import ARRAYS, Site
from partitioning.sites.site_folders import SiteFolders, read_sites


def describe_tables(dataset: DatasetSettings) -> tuple[dict[str, Any], list[str]]:
    """Propose the columns of the tables with features: nodes, edges, or nodes/TYPE.

    Returns:
        By table what columns.json holds, for a site's nodes; see partitioning/features/agreed.py.
        Lines on what reading decides: labels, split, roles of columns, and what is left out; none
        for a site.

    Raises:
        InputError: there is no such table, it cannot be read, or the folder holds several sites.
    """
    if dataset.dataset_name == "parts":
        sites = read_sites(Path(dataset.dataset_file or ""))
        if len(sites) > 1:
            raise InputError(
                f"dataset_file={dataset.dataset_file}: holds several sites; describe one, such as"
                f" {sites[0].folder}"
            )
        return _describe_site(sites[0], dataset.columns, dataset.features.fit), []
    graph = datasets.read_graph(dataset)
    chosen, recipe = dataset.split, datasets.recipe(dataset.dataset_name).split
    is_unsplit = chosen.kind == "default" and recipe.kind == "given" and graph.train_mask is None
    if is_unsplit:  # the columns can be looked at before a split is chosen
        chosen = replace(chosen, kind="none")
    split = node_split.draw(graph, chosen, recipe)
    train = split.train
    rows = train if dataset.features.fit == "train" and train.any() else None
    sizes = ", ".join(f"{getattr(split, name).sum()} {name}" for name in SPLITS)
    if is_unsplit:
        sizes = "none in the data: training needs split=fraction, per_class or files"
    states = encode_tables(graph, dataset.features, train)[1]
    lines = [
        f"label: {graph.label_kind}, {graph.num_classes} classes, of"
        f" {graph.labelled.sum()} of {len(graph.labels)} nodes; split: {sizes}",
        *describe(states),
    ]
    tables: dict[str, tuple[Any, Schema | None, NDArray[np.bool_] | None]] = {}
    for name, table in graph.nodes.items():
        used = rows if name == graph.target else None
        if table.featured is not None:
            used = table.featured if used is None else table.featured & used
        tables[table_name(name)] = table.features, table.schema, used
    described: set[int] = set()  # matrices, which an added reverse relation shares
    for edge_type, relation in graph.relations.items():
        if id(relation.edge_feat) not in described:
            tables[table_name(edge_type)] = relation.edge_feat, relation.schema, None
        described.add(id(relation.edge_feat))
    proposals = {}
    for name, (features, schema, used) in tables.items():
        if isinstance(features, np.ndarray) and schema is not None:
            left_out = states[name]["ignored"]
            kept = tuple(column for column in schema.columns if column.name not in left_out)
            if kept:
                proposals[name] = _propose(features, replace(schema, columns=kept), used)
    if not proposals:
        raise InputError(f"{graph.name}: has no table with feature columns to describe")
    return proposals, lines


def _propose(features: Rows, schema: Schema, rows: NDArray[np.bool_] | None) -> dict[str, Any]:
    """Propose the columns of a table. rows: bool [N], which to look at; None: all."""
    used = np.arange(len(features)) if rows is None else np.flatnonzero(rows)
    return propose_columns(FittedRows(features, schema, used), schema)


def _describe_site(site: Site, columns: ColumnSettings, fit: str) -> dict[str, Any]:
    """Propose the columns of a site's table of features; InputError where it has none.

    fit: `features.fit`.
    """
    return {"nodes": _propose(*_read_to_fit(site, columns, fit))}


def _share_of_site(
    site: Site,
    agreed: Sequence[AgreedColumn],
    columns: ColumnSettings,
    features: FeatureSettings,
) -> Share:
    """Compute what a site adds to the sums to which all sites fit one pipeline.

    A site without nodes needs no table, and adds nothing.

    Args:
        agreed: The columns, the same at all sites.
        columns: `columns.id` and `columns.ignore` of the site's table.
        features: How to scale and fill, and on which nodes to fit.

    Raises:
        InputError: it has nodes and no table, or one with other columns or numbers than agreed.
    """
    path = find_site_table(site)
    if path is None and not len(read_ids_and_masks(site)[0]):
        return share_nothing(agreed, features)
    roles = [{"name": column.name, "role": column.role} for column in agreed]
    columns = stored_columns({"nodes": {"columns": roles, "ignored": {}, "roles": {}}}, columns)
    try:
        rows, schema, used = _read_to_fit(site, columns, features.fit)
    except MissingColumn as error:
        raise InputError(
            f"{path}: there is no column `{error.pattern}`, which features.spec names as"
            f" {error.role}; add it, or take it out of that file at all sites"
        ) from error
    check_no_others(schema, agreed)
    return compute_share(rows, schema, used, agreed, features)


def _read_to_fit(
    site: Site, columns: ColumnSettings, fit: str
) -> tuple[Rows, Schema, NDArray[np.bool_] | None]:
    """Return raw features [I, W] of a table, their schema, and the rows to fit on (None: all).

    InputError where there is no table, or it does not fit part.npz.
    """
    path = find_site_table(site)
    if path is None:
        raise InputError(
            f"{site.folder}: has no {' or '.join(SITE_TABLES)} to describe; features in {ARRAYS}"
            " are taken as they are"
        )
    ids, masks = read_ids_and_masks(site)
    rows, schema = read_site_table(path, ids, columns)
    return rows, schema, masks["train_mask"] if fit == "train" else None


# --- by sums ----------


@dataclass(frozen=True)
class SharedTables:
    """Tables of the sites on this machine, to which all sites fit one pipeline by sums."""

    columns: tuple[AgreedColumn, ...]
    features: FeatureSettings
    shares: dict[int, Share]
    """By rank."""

    @classmethod
    def read(cls, dataset: DatasetSettings, sites: SiteFolders, ranks: range) -> Self:
        """Read the columns that `features.spec` names, and compute the shares of the sites `ranks`.

        Nothing is sent. InputError without such a file, or if a table does not fit it.
        """
        features = dataset.features
        if not features.spec or not sites.is_plain:
            raise InputError(
                f"features.spec={features.spec}: app=describe needs a file here, columns.json,"
                " and sites of a graph with one node type"
            )
        agreed = read_agreed(Path(features.spec))
        shares = {
            rank: _share_of_site(sites.site_of(rank), agreed, dataset.columns, features)
            for rank in ranks
        }
        return cls(agreed, features, shares)

    @property
    def compared(self) -> dict[str, str]:
        """What has to be the same at all sites, by column."""
        return {column.name: f"column {at}: {column}" for at, column in enumerate(self.columns)}

    def has_rows(self, rank: int) -> bool:
        return self.shares[rank].num_rows > 0

    def fit(self, rank: int, add_up: AddUp) -> State:
        """Fit the pipeline, the same at all sites; see `fit_sums`."""
        return fit_sums(self.shares[rank], self.columns, self.features, add_up)

    def describe(self) -> list[str]:
        """Return lines that say which sums the sites add up."""
        return describe_sums(self.columns, self.features)
