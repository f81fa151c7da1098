"""Registry of data sets. Each loader returns a GraphData.

| name | source | licence or origin |
|---|---|---|
| cora, cora_torch | bundled: assets/cora.npz | Sen et al. 2008 |
| file | the user's own: `dataset_file=`, see read/file.py | |
| parts | the folder of one site: `dataset_file=`, see partitioning/sites/site_folders.py | |
| synthetic, synthetic_hetero | synthetic.py, synthetic_hetero.py | |
| reddit, yelp, flickr | dgl.data | Hamilton et al. 2017; Zeng et al. 2020 |
| karateclub | dgl.data | Zachary 1977 |
| ogbl-collab, ogbl-citation2, ogbl-ppa, ogbl-ddi | ogb, for task=link_prediction | Hu et al. 2020 |
| ogbn-arxiv, -products, -proteins, -papers100M, -mag | ogb | Hu et al. 2020 |
| citeseer_torch, pubmed_torch, planetoid-* | Planetoid | Yang et al. 2016 |
| roman-empire, amazon-ratings, ... | heterophilous.py | Platonov et al. 2023 |
| amazon-*, coauthor-* | gnn_benchmark.py | Shchur et al. 2018 |
| wikics | wikics.py | Mernyei and Cangea 2020 |
| hgb-acm, hgb-dblp | hgb.py | Lv et al. 2021 |
| facebook, lastfm | torch_geometric | Rozemberczki et al. 2020, 2021 |
"""

import difflib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from partitioning.datasets import (
    bundled,
    dgl_source,
    gnn_benchmark,
    heterophilous,
    hgb,
    ogb_links,
    ogb_mag,
    ogb_source,
    pyg_source,
    synthetic,
    synthetic_hetero,
    wikics,
)
from partitioning.errors import InputError
from partitioning.features.build import add_kinds, encode_now, encode_tables
from partitioning.features.encoder import EncodedFeatures as EncodedFeatures
from partitioning.files.download import FETCH_AGAIN, Archive, Remote, ensure
from partitioning.files.file_io import explaining
from partitioning.graph.graph_data import GraphData
from partitioning.graph.reverse_relations import add_reverse_relations
from partitioning.graph.symmetry import add_reverse_edges
from partitioning.partition_settings import DatasetSettings, SplitSettings
from partitioning.read import file
from partitioning.read.labelled_edges import choose_message_edges
from partitioning.setting_fields import Setting as Setting
from partitioning.setting_fields import definitions

log = logging.getLogger(__name__)
OF_TABLES = ("labels.", "duplicates", "edges.", "columns.", "tables.")
"""Beginnings of the settings that only dataset_name=file has."""


@dataclass(frozen=True)
class Recipe:
    """How a data set is loaded and split in the published experiments, and which files it needs."""

    load: Callable[..., GraphData]
    """Loads from the settings and the places of `files`: a zip's folder, or each file."""

    split: SplitSettings
    symmetrize: bool = False
    """Whether the source has one direction per edge, so that reverse edges are added."""
    files: Callable[[str, str], Sequence[Remote]] = lambda _name, _folder: ()
    """What has to be downloaded, by name and dataset_dir."""
    target: str | None = None
    """The only type of nodes that has labels; None: it is in the files, or there is one type."""


def _in_list(archive: Callable[[str, str], Archive]) -> Callable[[str, str], list[Archive]]:
    """Turn a function that describes one archive into one that returns a list of archives."""
    return lambda name, folder: [archive(name, folder)]


def _refuse_to_load(settings: DatasetSettings) -> GraphData:
    """Raise InputError for dataset_name=parts, whose graph no process loads."""
    raise InputError(
        "dataset_name=parts: there is nothing to partition, each site's folder is its part; "
        "run app=train with dataset_file=FOLDER at each site"
    )


_GIVEN = SplitSettings("given")
_FIRST = SplitSettings("given", index=0)
_MUSAE = SplitSettings(
    "fraction", train=0.201, val=0.099, test=0.7
)  # 70 % test, then 33 % of the rest validation
_PYG, _OGB, _DGL = pyg_source.remotes, _in_list(ogb_source.archive), _in_list(dgl_source.archive)
_RECIPES = {
    "cora_torch": Recipe(bundled.load, SplitSettings("per_class", train=86, val=300, test=1806)),
    "citeseer_torch": Recipe(
        pyg_source.load_planetoid,
        SplitSettings("per_class", train=178, val=357, test=1902),
        files=_PYG,
    ),
    "pubmed_torch": Recipe(
        pyg_source.load_planetoid,
        SplitSettings("per_class", train=1461, val=2190, test=13144),
        files=_PYG,
    ),
    "planetoid-cora": Recipe(pyg_source.load_planetoid, _GIVEN, files=_PYG),
    "planetoid-citeseer": Recipe(pyg_source.load_planetoid, _GIVEN, files=_PYG),
    "planetoid-pubmed": Recipe(pyg_source.load_planetoid, _GIVEN, files=_PYG),
    "facebook": Recipe(pyg_source.load_musae, _MUSAE, files=_PYG),
    "lastfm": Recipe(pyg_source.load_musae, _MUSAE, files=_PYG),
    **{
        name: Recipe(heterophilous.load, _FIRST, symmetrize=True, files=heterophilous.remotes)
        for name in heterophilous.NAMES
    },
    **{
        name: Recipe(gnn_benchmark.load, split, symmetrize=True, files=gnn_benchmark.remotes)
        for name, split in gnn_benchmark.SPLITS.items()
    },
    "wikics": Recipe(wikics.load, _FIRST, symmetrize=True, files=wikics.remotes),
    **{name: Recipe(hgb.load, _GIVEN, files=_in_list(hgb.archive)) for name in hgb.FILES},
    "reddit": Recipe(dgl_source.load_reddit, _GIVEN, files=_DGL),
    "yelp": Recipe(dgl_source.load_saint, _GIVEN, files=_DGL),
    "flickr": Recipe(dgl_source.load_saint, _GIVEN, files=_DGL),
    "karateclub": Recipe(
        dgl_source.load_karate,
        SplitSettings("per_class", train=4, val=8, test=18),
    ),
    "ogbn-arxiv": Recipe(ogb_source.load, _GIVEN, symmetrize=True, files=_OGB),
    "ogbn-products": Recipe(ogb_source.load, _GIVEN, files=_OGB),
    "ogbn-proteins": Recipe(ogb_source.load, _GIVEN, files=_OGB),
    "ogbn-papers100M": Recipe(ogb_source.load, _GIVEN, symmetrize=True, files=_OGB),
    "ogbn-mag": Recipe(
        ogb_mag.load, _GIVEN, files=_in_list(ogb_mag.archive), target=ogb_mag.TARGET
    ),
    **{
        name: Recipe(ogb_links.load, _GIVEN, files=_in_list(ogb_links.archive))
        for name in ogb_links.SOURCES
    },
    "synthetic": Recipe(synthetic.load, SplitSettings("fraction", train=0.08, val=0.02, test=0.9)),
    "synthetic_hetero": Recipe(
        synthetic_hetero.load, SplitSettings("fraction", train=0.08, val=0.02, test=0.9)
    ),
    "file": Recipe(file.load, _GIVEN),
    "parts": Recipe(_refuse_to_load, _GIVEN),
}
_ALIASES = {"cora": "cora_torch"}
NAMES: tuple[str, ...] = (*_ALIASES, *_RECIPES)


def canonical_name(name: str) -> str:
    """Resolve an alias; InputError, with the nearest names, for an unknown data set."""
    name = _ALIASES.get(name, name)
    if name not in _RECIPES:
        known = {other.lower(): other for other in NAMES}
        near = [known[other] for other in difflib.get_close_matches(str(name).lower(), known, n=3)]
        hint = (
            f"did you mean {' or '.join(near)}?" if near else f"choose one of {', '.join(NAMES)};"
        )
        raise InputError(
            f"dataset_name={name}: no such data set; {hint} A graph of your own is"
            " dataset_name=file"
        )
    return name


def recipe(name: str) -> Recipe:
    """Return the recipe of a data set, by its name or alias."""
    return _RECIPES[canonical_name(name)]


def load_graph(settings: DatasetSettings) -> GraphData:
    """Load a graph by name, its features encoded with statistics of all nodes.

    May download files. Adds the kinds of features that the settings name, except for link
    prediction, where held-out edges have to be taken out first. InputError as of `read_graph`, and
    where nodes get no features.
    """
    encoded, _ = encode_tables(read_graph(settings), settings.features, None)
    graph = encode_now(encoded)
    return graph if settings.task.links else add_kinds(graph, settings.features)


def read_graph(settings: DatasetSettings) -> GraphData:
    """Load a graph by name, without encoding its features; files that are missing are downloaded.

    Reverse edges are added where the settings or, failing them, the recipe say so. The log tells a
    published split that the recipe chooses.

    Raises:
        InputError: the name is unknown, the files are unusable or cannot be downloaded, `target` is
            not the type with labels, or settings of tables or task=node_regression go with another
            data set than `file`.
    """
    name = canonical_name(settings.dataset_name)
    if name != "file":
        for defined in definitions(DatasetSettings):
            value = attrgetter(defined.key)(settings)
            if defined.key.startswith(OF_TABLES) and value != defined.default:
                raise InputError(
                    f"{defined.key}={value} has no meaning with"
                    f" dataset_name={settings.dataset_name}: remove it, or set dataset_name=file"
                )
        if settings.task.regression:
            raise InputError(
                f"task=node_regression: dataset_name={settings.dataset_name} has classes; numbers"
                " to predict are read from files of your own, dataset_name=file"
            )
    chosen = recipe(name)
    if settings.split.index is None and chosen.split.index is not None:
        log.info("%s: split.index=%d of its published splits", name, chosen.split.index)
        settings = replace(settings, split=replace(settings.split, index=chosen.split.index))
    files, settings = chosen.files(name, settings.dataset_dir), replace(settings, dataset_name=name)
    if not files:
        return add_reverse(chosen.load(settings), settings, symmetrize=chosen.symmetrize)
    if chosen.target is not None:  # before anything is downloaded
        _check_target(settings, chosen.target)
    places = ensure(name, files, settings.dataset_max_gib)
    folder = places[0] if places[0].is_dir() else places[0].parent
    with explaining(f"dataset_name={name}: {folder}", "copy of this data set", FETCH_AGAIN):
        graph = chosen.load(settings, *places)
    if not graph.is_plain:
        _check_target(settings, graph.target)
    return add_reverse(graph, settings, symmetrize=chosen.symmetrize)


def _check_target(settings: DatasetSettings, target: str) -> None:
    """Raise InputError for a setting `target` that is not the only type with labels."""
    if settings.target not in (None, target):
        raise InputError(
            f"target={settings.target}: of {settings.dataset_name} only {target} has labels; leave"
            " it out"
        )


def add_reverse(
    graph: GraphData, settings: DatasetSettings, *, symmetrize: bool = False
) -> GraphData:
    """Add the reverse of each edge, or of each relation of a heterogeneous graph.

    A plain graph follows the setting symmetrize or, where it is not set, the argument; a
    heterogeneous graph follows relations.reverse alone. One with labelled edges stays as it is if
    a split will take edges out; see choose_message_edges.

    Raises:
        InputError: a setting of the other kind of graph is set.
    """
    if not graph.is_plain:
        if settings.symmetrize:
            raise InputError(
                "symmetrize=true has no meaning for a heterogeneous graph: relations.reverse=true"
                " adds the reverse of each relation"
            )
        if graph.labelled_edges is not None:  # after the split, which takes edges out
            return choose_message_edges(graph, settings) if settings.is_unlabelled else graph
        return add_reverse_relations(graph) if settings.relations.reverse else graph
    kind = settings.features.kind
    for key, used in (
        ("target", settings.target),
        ("relations.reverse", None if settings.relations.reverse else "false"),
        ("features", kind if isinstance(kind, dict) else None),
    ):
        if used is not None:
            raise InputError(
                f"{key}={used} has no meaning for {settings.dataset_name}, which has one type of"
                " nodes: remove it"
            )
    adds_reverse = symmetrize if settings.symmetrize is None else settings.symmetrize
    return add_reverse_edges(graph) if adds_reverse else graph


def is_local(settings: DatasetSettings) -> bool:
    """Return whether loading needs no download; InputError for an unknown data set."""
    name = canonical_name(settings.dataset_name)
    return all(file.is_local for file in recipe(name).files(name, settings.dataset_dir))
