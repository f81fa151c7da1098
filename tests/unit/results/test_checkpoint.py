"""A checkpoint holds all that inference needs: convolution, norm and head of every layer."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from partitioning.errors import InputError
from retexo.models.conv_registry import default_model_settings
from retexo.models.stage import Architecture, build_stages
from retexo.results.checkpoint import load_model, open_checkpoint, save_layer, save_model


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
