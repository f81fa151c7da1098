"""A checkpoint holds all that inference needs: convolution, norm and head of every layer."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from partitioning.errors import InputError
from retexo.models.conv_registry import default_model_settings
from retexo.models.stage import Architecture, build_stages
from retexo.results.checkpoint import load_model, open_checkpoint, save_layer, save_model

MODELS: list[tuple[str, dict[str, Any]]] = [
    ("gcn", {}),
    ("sage", {"aggregator": "mean"}),
    ("sage", {"aggregator": "pool"}),
    ("gat", {"head_merge": "mean", "self_loops": True}),
    ("gin", {}),
]


def architecture(name: str, options: dict[str, Any], norm: str = "layer") -> Architecture:
    model = replace(
        default_model_settings(name, 2, 8),
        heads=2,
        dropout=0.5,
        input_dropout=0.1,
        norm=norm,
        activation="gelu",
        options=options,
    )
    return Architecture(model, num_features=5, num_classes=3)


@pytest.mark.parametrize("norm", ["layer", "none"])
@pytest.mark.parametrize(("name", "options"), MODELS)
def test_what_was_saved_is_loaded(
    tmp_path: Path, name: str, options: dict[str, Any], norm: str
) -> None:
    shape = architecture(name, options, norm)
    stages = build_stages(shape, 7)
    for layer, stage in enumerate(stages):
        save_layer(tmp_path, layer, stage)
    save_model(tmp_path, shape, {})
    loaded_shape, loaded = load_model(tmp_path)
    assert loaded_shape == shape
    for stage, copy in zip(stages, loaded, strict=True):
        assert not copy.training
        assert stage.state_dict().keys() == copy.state_dict().keys()
        assert all(
            torch.equal(value, copy.state_dict()[key]) for key, value in stage.state_dict().items()
        )
    parts = {"conv", "norm", "head"} if norm == "layer" else {"conv", "head"}
    assert {key.split(".")[0] for key in loaded[0].state_dict()} == parts


def test_gat_of_a_checkpoint_from_before_has_no_self_loops() -> None:
    content = architecture("gat", {"head_merge": "mean", "self_loops": True}).to_json()
    assert content.pop("self_loops")
    assert Architecture.from_json(content).model.options == {
        "head_merge": "mean",
        "self_loops": False,
    }


def test_an_incomplete_checkpoint_is_refused(tmp_path: Path) -> None:
    shape = architecture("gcn", {})
    save_layer(tmp_path, 0, build_stages(shape, 7)[0])
    save_model(tmp_path, shape, {})
    with pytest.raises(InputError, match=r"not a complete checkpoint"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["a"], "class_names has 1 different names"),
        ([["a"], ["b"], ["c"]], "class_names has something else"),
        ("abc", "class_names is 'abc'"),
    ],
)
def test_class_names_that_are_not_those_of_the_classes(
    names: Any, says: str, tmp_path: Path
) -> None:
    shape = architecture("gcn", {})
    described = {"multilabel": False, "partition_digest": "", "class_names": names}
    save_model(tmp_path, shape, described)
    with pytest.raises(InputError, match=rf"model\.json: damaged: {says}"):
        open_checkpoint(tmp_path)
