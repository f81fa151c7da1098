"""The registry of convolutions: settings are checked, and an added convolution is found."""

import re
from collections.abc import Iterator
from types import ModuleType
from unittest import mock

import pytest
import torch
from support import ROOT
from test_conv import COUNT, NODES, WIDTH, outputs, rows

from partitioning.errors import InputError
from retexo.models.conv_registry import CONVOLUTIONS, check_model, default_model_settings
from retexo.models.stage import Architecture, build_stages
from retexo.settings import options
from retexo.settings.compose import compose
from retexo.settings.schema import CONFIG_DIR
from retexo.trainers import registry


def test_every_convolution_has_its_files() -> None:
    assert {path.stem for path in (CONFIG_DIR / "model").glob("*.yaml")} == CONVOLUTIONS.keys()
    found = {
        path.stem.removeprefix("node_classification_")
        for path in CONFIG_DIR.glob("node_classification_*.yaml")
    }
    assert found <= CONVOLUTIONS.keys()


KINDS = {name: check_model(default_model_settings(name, 1, 8)) for name in CONVOLUTIONS}
PLAIN = [name for name, kind in KINDS.items() if not (kind.relational or kind.reads_relations)]


@pytest.mark.parametrize("name", PLAIN)
def test_parameters_depend_on_the_seed_and_the_layer_only(name: str) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one, same, other = (
        build_stages(Architecture(default_model_settings(name, 2, 8), 5, 4), seed)[1].state_dict()
        for seed in (1, 1, 2)
    )
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert not all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_check_makes_no_parameters(name: str) -> None:
    conv = check_model(default_model_settings(name, 2, 8))
    assert {parameter.device.type for parameter in conv.parameters()} == {"meta"}


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["model.name=gru"], ["model=gru", "gat, gcn, gin, hetero_sage"]),
        (["model=gcn", "+model.aggregator=pool"], ["model.aggregator", "none"]),
        (["model=sage", "+model.head_merge=mean"], ["model.head_merge", "model.aggregator"]),
        (["model=sage", "~model.aggregator"], ["model.aggregator"]),
        (["model=sage", "model.aggregator=lstm"], ["model.aggregator=lstm", "mean, pool"]),
        (["model=gat", "model.head_merge=max"], ["model.head_merge=max", "mean, concat"]),
        (["model=gat", "model.head_merge=[1]"], ["model.head_merge"]),
        (["model=gat", "hidden_dim=10", "heads=4"], ["hidden_dim=10", "heads=4"]),
    ],
)
def test_what_a_model_cannot_have_is_named(overrides: list[str], words: list[str]) -> None:
    settings = compose(overrides).train
    with pytest.raises(InputError) as caught:
        registry.check(settings)
    assert [word for word in words if word not in str(caught.value)] == [], str(caught.value)
    assert "\n" not in str(caught.value)


def added_lines(file: str) -> str:
    """The lines that CONTRIBUTING.md's diff adds to a file, up to its first gap."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    diff = re.search(rf"b/{file}\n(.*?)\n(?:\+\+\+|@@) ", page, re.DOTALL)
    assert diff
    return "\n".join(line.removeprefix("+") for line in diff.group(1).splitlines())


@pytest.fixture
def graphconv() -> Iterator[None]:
    """The convolution that CONTRIBUTING.md adds."""
    module, settings = ModuleType("graphconv"), dict(vars(options))
    exec(added_lines("retexo/settings/options.py"), settings)
    cls = settings["GraphConvOptions"]
    with (
        mock.patch.object(options, "GraphConvOptions", cls, create=True),
        mock.patch.dict(options.OPTIONS, {("model", "graphconv"): cls}),
        mock.patch.dict(CONVOLUTIONS, graphconv=module),
    ):
        exec(added_lines("retexo/models/conv/graphconv.py"), vars(module))
        yield


@pytest.mark.parametrize("aggregator", ["add", "mean"])
@pytest.mark.usefixtures("graphconv")
def test_a_convolution_that_is_added_is_found(aggregator: str) -> None:
    settings = compose(
        ["model.name=graphconv", f"+model.aggregator={aggregator}", "hidden_dim=8"]
    ).train
    registry.check(settings)
    assert default_model_settings("graphconv", 2, 8).options == {"aggregator": "add"}
    conv = build_stages(Architecture(settings.model, WIDTH, 3), seed=1)[0].conv.double().eval()
    x, count = (
        rows("dense"),
        COUNT / COUNT.sum(1, keepdim=True).clamp(min=1) if aggregator == "mean" else COUNT,
    )
    weight_root, weight = conv.first_weights
    torch.testing.assert_close(
        outputs(conv, x, list(range(NODES))), x @ weight_root + count @ x @ weight
    )
