"""Whatever happens to the files of a checkpoint: an InputError names it, or the parameters saved are loaded."""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from test_fuzz_directory import flip, foreign, remove, snapshot, spots, swap, truncate, values

from partitioning.errors import InputError
from retexo.outputs.checkpoint import open_checkpoint, save_layer, save_model
from retexo.nn.stage import Architecture, Stage, build_stage

SHAPE = Architecture(
    name="gat", num_layers=2, hidden_dim=8, heads=2, dropout=0.5, aggregator="mean", head_merge="mean", num_features=5,
    num_classes=3,
)  # fmt: skip


def edit(folder: Path, _number: int, where: int, value: Any) -> None:
    """Another value somewhere in model.json, or none."""
    path = folder / "model.json"
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return
    places = list(spots(content))
    if places:
        container, key = places[where % len(places)]
        container[key] = value
        path.write_text(json.dumps(content))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Stage]]:
    folder = Path(tmp_path_factory.mktemp("checkpoint"))
    stages = [build_stage(SHAPE, layer, seed=7) for layer in range(2)]
    for layer, stage in enumerate(stages):
        save_layer(folder / "whole", layer, stage)
    save_model(folder / "whole", SHAPE, {"multilabel": False, "partition_digest": "0"})
    return folder, stages


damages = st.lists(
    st.tuples(
        st.sampled_from((flip, truncate, remove, swap, foreign, edit, edit, edit)),
        st.integers(0, 99),
        st.integers(0, 9999),
        values,
    ),
    min_size=1,
    max_size=2,
)


@settings(
    max_examples=150,
    phases=(Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(damage=damages)
def test_damage_is_named_or_does_no_harm(made: tuple[Path, list[Stage]], damage: list[Any]) -> None:
    folder, stages = made
    place = Path(tempfile.mkdtemp(dir=folder)) / "run"
    shutil.copytree(folder / "whole", place)
    for spoil, number, where, value in damage:
        spoil(place, number, where, value)
    before = snapshot(place)
    try:
        loaded = open_checkpoint(place).stages()
    except InputError as error:
        if str(place) not in str(error):
            raise
    else:
        for stage, copy in zip(stages, loaded, strict=False):
            pairs = zip(stage.state_dict().values(), copy.state_dict().values(), strict=True)
            assert all(torch.equal(one, other) for one, other in pairs)
    assert snapshot(place) == before
    shutil.rmtree(place.parent)
