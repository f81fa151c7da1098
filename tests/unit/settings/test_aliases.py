"""Former names and other programs' names of settings, wherever a setting can stand."""

from pathlib import Path

import pytest

from partitioning.errors import InputError
from retexo.settings.aliases import ALIASES, rename_override, rename_stored
from retexo.settings.compose import compose
from retexo.settings.schema import DEFINED


def test_every_alias_names_a_setting_and_is_none_itself() -> None:
    assert {alias.name for alias in ALIASES.values()} <= DEFINED.keys()
    assert not ALIASES.keys() & DEFINED.keys()


def test_aliases_on_the_command_line() -> None:
    given = ("lr=[0.1,0.2]", "model.own_half=false", "model.inputs=previous", "readout=last")
    train = compose([*given, "model.passes=activation"]).train
    assert train.learning_rate == (0.1, 0.2)
    assert (train.model.self_weight, train.model.input_skip) == (False, False)
    assert (train.model.output, train.output_heads) == ("activation", "last")
    assert rename_override("model.inputs=all,previous") == "model.input_skip=true,false"
    assert rename_override("~lr") == "~learning_rate"
    with pytest.raises(InputError, match=r"learning_rate=-1\.0: must be at least 0"):
        compose(["lr=-1.0"])


def test_aliases_in_a_configuration_file(tmp_path: Path) -> None:
    text = "defaults: [node_classification, _self_]\nlr: 0.5\nmodel: {inputs: previous}\n"
    (tmp_path / "own.yaml").write_text(text)
    settings = compose([], "own", str(tmp_path))
    assert (settings.train.learning_rate[0], settings.train.model.input_skip) == (0.5, False)
    assert "lr" not in settings.resolved
    assert compose(["lr=0.25"], "own", str(tmp_path)).train.learning_rate[0] == 0.25


def test_stored_settings_of_earlier_versions() -> None:
    stored = {"model": {"inputs": "all", "norm": "none"}, "sweep": {"dir": "runs", "axes": None}}
    assert rename_stored(stored) == {"model": {"norm": "none", "input_skip": True}}
