"""Reads and checks a site's site.json (format: site_folders.py)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from partitioning.errors import InputError
from partitioning.file_io import read_json
from partitioning.graph_data import SEPARATOR, EdgeType
from partitioning.setting_fields import one_of

VERSION = 1
MAX_CLASSES = 1_000_000
"""More classes are refused: the last layer has a column for each."""
DESCRIPTION, ARRAYS = "site.json", "part.npz"
KEYS = ("version", "site", "sites", "task", "num_classes")
TYPE_KEYS = ("target", "types", "relations", "weighted")
"""Keys for heterogeneous graphs."""


@dataclass(frozen=True)
class SiteTypes:
    """Node types and relations in a site.json, checked."""

    target: str
    types: dict[str, int]
    """Number of features of each type."""
    relations: tuple[str, ...]
    weighted: tuple[str, ...]

    @property
    def edge_types(self) -> list[EdgeType]:
        """Return the relations by source, name and destination."""
        split = (relation.split(SEPARATOR) for relation in self.relations)
        return [(source, name, destination) for source, name, destination in split]

    @property
    def agreed(self) -> list[Any]:
        """Values that have to be equal at every site, in the same order."""
        return [self.target, list(self.types.items()), self.relations, self.weighted]

    @classmethod
    def parse(cls, fields: Mapping[str, Any], path: Path) -> Self:
        """Check the fields of a site.json; InputError names what is wrong."""
        values: list[Any] = [
            fields.get(name, [] if name == "weighted" else None) for name in TYPE_KEYS
        ]
        target, types, relations, weighted = values

        def check(name: str, right: bool, expected: str) -> None:
            if not right:
                raise InputError(f"{path}: {name} is {fields.get(name)!r}; expected {expected}")

        right = isinstance(types, dict) and all(
            type(width) is int and width >= 0 for width in types.values()
        )
        check(
            "types",
            right and not any(SEPARATOR in name or "/" in name for name in types or ()),
            "{TYPE: width of its features, ...}, 0 for none; no name has __ or / in it",
        )
        check(
            "target",
            isinstance(target, str) and target in types,
            f"one of its types: {', '.join(types)}",
        )
        right = isinstance(relations, list) and all(
            _is_relation(relation, types) for relation in relations
        )
        check(
            "relations",
            right and len(set(relations)) == len(relations),
            f"a list of SOURCE{SEPARATOR}RELATION{SEPARATOR}DESTINATION, of its types, each once",
        )
        check(
            "weighted",
            isinstance(weighted, list) and all(relation in relations for relation in weighted),
            "a list of some of its relations",
        )
        return cls(target, types, tuple(relations), tuple(weighted))


def _is_relation(relation: object, types: Mapping[str, int]) -> bool:
    ends = relation.split(SEPARATOR) if isinstance(relation, str) and "/" not in relation else []
    return len(ends) == 3 and all(ends) and ends[0] in types and ends[2] in types


@dataclass(frozen=True)
class Site:
    """Content of a site.json, checked."""

    folder: Path
    name: str
    sites: tuple[str, ...]
    """Names of all sites, by rank."""
    task: str
    num_classes: int | None
    types: SiteTypes | None = None
    """None for a plain graph."""

    @property
    def rank(self) -> int:
        return self.sites.index(self.name)

    @property
    def agreed(self) -> list[Any]:
        """Values that have to be equal at every site."""
        plain = [VERSION, self.sites, self.task, self.num_classes]
        return plain if self.types is None else [*plain, self.types.agreed]

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read FOLDER/site.json; InputError names what is wrong with it."""
        path = folder / DESCRIPTION
        fields = read_json(path)
        known = (*KEYS, *TYPE_KEYS)
        if unknown := sorted(fields.keys() - set(known)):
            raise InputError(
                f"{path}: `{unknown[0]}` has no meaning here; it may have {', '.join(known)}"
            )
        if fields.get("version") != VERSION:
            raise InputError(
                f"{path}: version is {fields.get('version')!r}; this program reads version"
                f" {VERSION}"
            )
        name, sites = fields.get("site"), fields.get("sites")
        if not isinstance(sites, list) or not all(
            isinstance(other, str) and other for other in sites
        ):
            raise InputError(
                f"{path}: sites is {sites!r}; expected a list of names, one per site, by rank"
            )
        if len(set(sites)) < len(sites):
            raise InputError(
                f"{path}: sites names {max(sites, key=sites.count)} twice; expected each name once"
            )
        if not isinstance(name, str) or name not in sites:
            raise InputError(
                f"{path}: site is {name!r}; expected one of its `sites`: {', '.join(sites)}"
            )
        task, classes = fields.get("task", "multiclass"), fields.get("num_classes")
        one_of("multiclass", "multilabel", "regression")(f"{path}: task", task)
        integer = type(classes) is int and 1 <= classes <= MAX_CLASSES
        if not integer and not (classes is None and task == "multiclass"):
            raise InputError(
                f"{path}: num_classes is {classes!r}; expected an integer in [1, {MAX_CLASSES:,}]"
                f" ({task} needs it)"
            )
        types = SiteTypes.parse(fields, path) if fields.keys() & set(TYPE_KEYS) else None
        return cls(folder, name, tuple(sites), task, classes, types)
