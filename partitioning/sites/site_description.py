"""Reads and checks a site's site.json (format: site_folders.py)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from partitioning.errors import InputError
from partitioning.files.file_io import read_json
from partitioning.files.json_shape import WHOLE, check_shape
from partitioning.graph.graph_data import PLAIN_RELATION, PLAIN_TYPE, SEPARATOR, EdgeType
from partitioning.setting_fields import one_of, refuse

VERSION = 1
MAX_CLASSES = 1_000_000
"""More classes are refused: the last layer has a column for each."""
DESCRIPTION, ARRAYS = "site.json", "part.npz"
SHAPE: dict[str, Any] = {
    "version": int,
    "site": str,
    "sites": [str],
    "task?": str,
    "num_classes?": (None, int),
}
TYPES: dict[str, Any] = {
    "target": str,
    "types": {"*": WHOLE},
    "relations": [str],
    "weighted?": [str],
}
"""Further fields of a heterogeneous graph."""
TASKS = ("multiclass", "multilabel", "regression")


@dataclass(frozen=True)
class Site:
    """Content of a site.json, checked; a plain graph has one type and one relation."""

    folder: Path
    name: str
    sites: tuple[str, ...]
    """Names of all sites, by rank."""
    task: str
    num_classes: int | None
    target: str
    types: dict[str, int | None]
    """Number of features of each type; None: part.npz tells it."""
    relations: dict[str, EdgeType]
    """By their names in site.json."""
    weighted: tuple[str, ...]
    """Relations whose edges have weights; those of a plain graph may have some."""

    @property
    def rank(self) -> int:
        return self.sites.index(self.name)

    @property
    def is_plain(self) -> bool:
        return self.target == PLAIN_TYPE

    @property
    def agreed(self) -> list[Any]:
        """Values that have to be equal at every site, types and relations in the same order."""
        plain = [VERSION, self.sites, self.task, self.num_classes]
        types = [self.target, list(self.types.items()), [*self.relations], self.weighted]
        return plain if self.is_plain else [*plain, types]

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read FOLDER/site.json; InputError names what is wrong with it."""
        path = folder / DESCRIPTION
        fields = read_json(path)
        known = [key.removesuffix("?") for key in (*SHAPE, *TYPES)]
        if unknown := sorted(fields.keys() - set(known)):
            raise InputError(
                f"{path}: `{unknown[0]}` has no meaning here; it may have {', '.join(known)}"
            )
        is_typed = any(key.removesuffix("?") in fields for key in TYPES)
        try:
            check_shape(fields, SHAPE | (TYPES if is_typed else {}), "")
        except ValueError as error:
            raise InputError(f"{path}: {error}; write it as in docs/residency.md") from None
        name, sites = fields["site"], fields["sites"]
        task, classes = fields.get("task", TASKS[0]), fields.get("num_classes")
        one_of(*TASKS)(f"{path}: task", task)
        least = 1 if classes is None and task == TASKS[0] else classes or 0
        rules = [
            (
                fields["version"] != VERSION,
                f"version is {fields['version']}; this program reads version {VERSION}",
            ),
            (
                len(set(sites)) < len(sites),
                f"sites names {max(sites, key=sites.count, default='')} twice; expected each name"
                " once",
            ),
            ("" in sites, f"sites is {sites}; expected a name for each"),
            (
                name not in sites,
                f"site is {name!r}; expected one of its `sites`: {', '.join(sites)}",
            ),
            (
                not 1 <= least <= MAX_CLASSES,
                f"num_classes is {classes}; expected an integer in [1, {MAX_CLASSES:,}]"
                f" ({task} needs it)",
            ),
        ]
        plain = {"target": PLAIN_TYPE, "types": {PLAIN_TYPE: None}, "relations": [], "weighted": []}
        target, types, relations, weighted = ({**plain, **fields}[key] for key in plain)
        ends: dict[str, Any] = {
            relation: tuple(relation.split(SEPARATOR)) for relation in relations
        }
        rules += [
            (
                is_typed
                and any(
                    not type_name or SEPARATOR in type_name or "/" in type_name
                    for type_name in types
                ),
                f"types is {types}; expected names without __ and /, none empty",
            ),
            (
                target not in types,
                f"target is {target!r}; expected one of its types: {', '.join(types)}",
            ),
            (
                len(ends) < len(relations)
                or not all(_is_relation(relation, types) for relation in ends.values()),
                f"relations is {relations}; expected a list of"
                f" SOURCE{SEPARATOR}RELATION{SEPARATOR}DESTINATION, of its types, each once",
            ),
            (
                not {*weighted} <= ends.keys(),
                f"weighted is {weighted}; expected a list of some of its relations",
            ),
        ]
        refuse(*((is_wrong, f"{path}: {message}") for is_wrong, message in rules))
        if not is_typed:
            ends = {"": PLAIN_RELATION}
        return cls(folder, name, (*sites,), task, classes, target, types, ends, (*weighted,))


def _is_relation(ends: tuple[str, ...], types: Mapping[str, Any]) -> bool:
    return (
        len(ends) == 3
        and {ends[0], ends[2]} <= types.keys()
        and ends[1] != ""
        and "/" not in ends[1]
    )
