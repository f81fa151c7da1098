"""What follows from the definitions of settings: the page, the help, defaults, and what two runs
are compared by.
"""

import json

import pytest
from support import ROOT

from partitioning.errors import InputError
from partitioning.setting_fields import Checked, at_least, one_of, setting, settings_dataclass
from retexo.settings.compose import compose
from retexo.settings.flatten import flatten, nest, without
from retexo.settings.schema import DEFINED, default, keys, usual_values
from retexo.settings.table import help_text, markdown


@settings_dataclass
class Example(Checked):
    mode: str = setting("example.mode", "a", "a mode", one_of("a", "b"), is_group=True)
    sizes: tuple[int, ...] = setting("example.sizes", [1], "sizes", at_least(1))


def test_the_page_of_settings_is_that_of_the_definitions() -> None:
    text = (ROOT / "docs" / "settings.md").read_text()
    assert text == markdown(), "write it anew: python scripts/settings_table.py > docs/settings.md"
    assert "|`model.aggregator`|`mean`|`mean`, `pool`|" in text


def test_help_has_every_setting_with_its_default() -> None:
    text = help_text()
    assert [each.help for each, _ in DEFINED.values() if each.help.split()[0] not in text] == []
    for line in (
        "  num_partitions=4  ",
        "  stopping.patience=20  ",
        "  model=gcn  ",
        "  split.seed=${seed}  ",
    ):
        assert line in text


def test_a_run_has_the_defaults_of_the_definitions() -> None:
    resolved = flatten(compose().resolved)
    usual = usual_values()
    assert resolved == {
        name: resolved["seed"] if value == "${seed}" else value for name, value in usual.items()
    }


def test_checks_name_the_setting_as_users_do() -> None:
    with pytest.raises(InputError, match="example=c: choose one of a, b"):
        Example("c", (1,))
    with pytest.raises(InputError, match=r"example.sizes=0: must be at least 1"):
        Example("a", (1, 0))
    with pytest.raises(TypeError):
        Example(mode="a")  # type: ignore[call-arg]


def test_without_leaves_no_empty_group() -> None:
    settings = {"a": {"b": 1, "c": {"d": 2}}, "e": {}, "f": [3]}
    assert nest(flatten(settings)) == settings
    assert without(settings, {"a.c.d"}) == {"a": {"b": 1}, "e": {}, "f": [3]}
    assert without(settings, {"a.b", "a.c.d", "f"}) == {"e": {}}


def test_of_places_nothing_is_shared_between_nodes() -> None:
    shared = without(compose().resolved, keys(lambda setting: setting.per_node))
    assert (
        not {"cluster", "distributed", "checkpoint", "node_rank", "resume", "dataset_dir"}
        & shared.keys()
    )
    assert {"model", "split", "num_rounds", "seed", "device", "predict"} <= shared.keys()
    json.dumps(shared)


def test_a_setting_that_an_earlier_version_did_not_have() -> None:
    assert default("stopping.patience", {}) == 30  # since then it is 15
    assert default("smoothing.steps", {}) == 0
    assert default("hidden_dim", {}) == 256
    assert default("split.seed", {"seed": 3}) == 3
    assert (default("model.norm", {}), default("model.input_dropout", {"dropout": 0.5})) == (
        "layer",
        None,
    )
    assert default("no.such", {}) is None
