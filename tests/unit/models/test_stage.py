"""model.norm and model.input_dropout in a stage: a dropout rate near 1 replaces zeroed inputs."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from partitioning.errors import InputError
from retexo.models.block import HaloRows, InEdges, NumberedEdges, Sources, gather_source_rows
from retexo.models.convolution import Inputs
from retexo.models.network import Architecture, Schema, build_network, default_model_settings
from retexo.models.stage import Stage
from retexo.settings.options import ACTIVATIONS, ModelSettings
from retexo.trainers.sign import SIGN

NODES, WIDTH, HIDDEN, CLASSES, ALL = 5, 4, 12, 3, 0.999999
SRC, DST = torch.tensor([1, 2, 3, 0, 4]), torch.tensor([0, 0, 1, 2, 2])
TARGETS = torch.arange(3)
WIDTHS = {"features": WIDTH, "aggregate": WIDTH}
SCHEMA = Schema(
    "movie",
    {"movie": WIDTH, "person": 2},
    (("person", "acts", "movie"), ("movie", "stars", "person")),
)
RATES = pytest.mark.parametrize(("dropout", "of_features"), [(0.0, ALL), (ALL, 0.0), (ALL, None)])


def model_of(name: str, **changes: Any) -> ModelSettings:
    return replace(default_model_settings(name, 2, HIDDEN), heads=2, **changes)


def inputs_of(stage: Stage, num_in: int) -> Inputs:
    """Inputs of random rows."""
    rows = torch.randn(NODES, num_in)
    degrees = torch.bincount(DST, minlength=NODES), torch.bincount(SRC, minlength=NODES)
    nothing = Sources(HaloRows.empty(0, num_in, rows.dtype), HaloRows.empty(0, num_in, rows.dtype))
    block = NumberedEdges(InEdges.build(SRC, DST, *degrees, rows.dtype), nothing).cut_block(TARGETS)
    skips = tuple(torch.randn(len(TARGETS), WIDTHS.get(name, num_in)) for name in stage.skips)
    return replace(
        stage.conv.prepare(block, *gather_source_rows(block, rows, nothing)), skips=skips
    )


def zero_where(matrices: tuple[Any, ...], which: list[bool]) -> tuple[Any, ...]:
    return tuple(matrix * (not dropped) for matrix, dropped in zip(matrices, which, strict=True))


def assert_drops(
    stage: Stage, inputs: Inputs, of_matrices: list[bool], of_skips: list[bool]
) -> Tensor:
    """Assert that dropout equals zeros in these inputs; return the hidden vector."""
    own, by_hand = copy.deepcopy(stage).train(), copy.deepcopy(stage).eval()
    own.is_last = by_hand.is_last = False  # else `embed` is the logits
    for weight, dropped in zip(by_hand.skips.values(), of_skips, strict=True):
        weight.data *= not dropped
    expected: Tensor = by_hand.embed(
        replace(inputs, matrices=zero_where(inputs.matrices, of_matrices))
    )
    torch.testing.assert_close(own.embed(inputs), expected)
    return expected


@RATES
@pytest.mark.parametrize("input_skip", [True, False])
@pytest.mark.parametrize("name", ["gcn", "sage", "gin", "gat"])
def test_what_dropout_is_of(
    name: str, input_skip: bool, dropout: float, of_features: float | None
) -> None:
    """Features are the rows of the first layer, and skip connections of later layers."""
    model = model_of(
        name,
        dropout=dropout,
        input_dropout=of_features,
        self_weight=input_skip,
        input_skip=input_skip,
    )
    features, others = (of_features or 0) > 0, dropout > 0  # these features have few columns
    for layer, stage in enumerate(
        build_network(Architecture(model, Schema.of_plain_graph(WIDTH), CLASSES), 0)
    ):
        torch.manual_seed(layer)
        inputs = inputs_of(
            stage, HIDDEN // 2 if layer and name == "gat" else HIDDEN if layer else WIDTH
        )
        of_skips = [features if layer == 0 or skip != "rows" else others for skip in stage.skips]
        hidden = assert_drops(
            stage, inputs, [features if layer == 0 else others] * len(inputs.matrices), of_skips
        )
        if stage.head is not None:
            read = torch.zeros_like(hidden) if others and stage.skips else hidden
            torch.testing.assert_close(stage.logits(inputs), stage.head(read))


@RATES
@pytest.mark.parametrize("input_skip", [True, False])
@pytest.mark.parametrize("name", ["rgcn", "hetero_sage", "rgat"])
def test_of_relations(
    name: str, input_skip: bool, dropout: float, of_features: float | None
) -> None:
    model = model_of(name, dropout=dropout, input_dropout=of_features, input_skip=input_skip)
    features, others = (of_features or 0) > 0, dropout > 0  # these features have few columns
    degrees = torch.bincount(DST, minlength=NODES), torch.bincount(SRC, minlength=NODES)
    nothing = Sources(HaloRows.empty(0, 1, torch.float32), HaloRows.empty(0, 1, torch.float32))
    block = NumberedEdges(InEdges.build(SRC, DST, *degrees, torch.float32), nothing).cut_block(
        TARGETS
    )
    for layer, built in enumerate(build_network(Architecture(model, SCHEMA, CLASSES), 0)):
        stages: list[Any] = [built] if input_skip else list(built.trunk)
        for stage in stages:
            groups, attends = stage.conv.groups, stage.conv.attention_heads > 0
            matrices, dropped = [], []
            for number, group in enumerate(groups):
                is_last = number == len(groups) - 1
                rows = len(block.nodes) if attends and is_last else len(TARGETS)
                matrices += [torch.randn(rows, relation.width) for relation in group]
                dropped += [features if layer == 0 or not is_last else others] * len(group)
            skips = tuple(torch.randn(len(TARGETS), len(weight)) for weight in stage.skips.values())
            blocks = (block,) * len(groups[-1]) if attends else ()
            inputs = Inputs(
                tuple(matrices), len(TARGETS), torch.zeros(0, 0), skips=skips, blocks=blocks
            )
            of_skips = [
                features if layer == 0 or skip != "rows" else others for skip in stage.skips
            ]
            assert_drops(stage, inputs, dropped, of_skips)


@pytest.mark.parametrize("name", ["gcn", "gin"])
def test_the_activation_follows_the_norm(name: str) -> None:
    """The MLP of GIN has the same order."""
    stage = build_network(
        Architecture(model_of(name, activation="tanh"), Schema.of_plain_graph(WIDTH), CLASSES), 0
    )[0]
    inputs, conv = inputs_of(stage, WIDTH), stage.conv
    out = conv(inputs)
    if name == "gin":
        hidden = inputs.matrices[0] @ conv.weight_in + conv.bias_in
        out = torch.tanh(conv.norm(hidden)) @ conv.weight_out + conv.bias_out
    torch.testing.assert_close(stage.embed(inputs), torch.tanh(stage.norm(out)))


@pytest.mark.parametrize(
    ("norm", "activation"),
    [("layer", "relu"), *(("none", name) for name in ACTIVATIONS if name != "relu")],
)
def test_sign(norm: str, activation: str) -> None:
    """SIGN's inputs are the features after each hop."""
    model = model_of("gcn", norm=norm, activation=activation, input_dropout=ALL)
    network = SIGN([WIDTH] * 3, CLASSES, model)
    torch.nn.init.normal_(network.bias)
    hops, zero = [torch.randn(NODES, WIDTH) for _ in range(3)], [torch.zeros(NODES, WIDTH)] * 3
    total = (
        network.bias
        if norm == "none"
        else torch.nn.functional.layer_norm(network.bias, network.bias.shape)
    )
    function = getattr(torch.nn.functional, activation)
    expected = network.head(function(total)).expand(NODES, -1)
    torch.testing.assert_close(network.train()(hops), expected)
    assert not torch.allclose(network.eval()(hops), expected)
    torch.testing.assert_close(network(zero), expected)


@pytest.mark.parametrize("hetero", [False, True])
def test_a_checkpoint_keeps_the_model(hetero: bool) -> None:
    model = model_of("rgcn" if hetero else "gcn", dropout=0.5)
    shape: Any = (
        Architecture(model, SCHEMA, 3)
        if hetero
        else Architecture(model, Schema.of_plain_graph(WIDTH), CLASSES)
    )
    assert type(shape).from_json(shape.to_json()) == shape
    assert [shape.model.features_dropout(width) for width in (16, 17)] == [0, 0.5]
    assert replace(model, input_dropout=0.1).features_dropout(WIDTH) == 0.1


def test_a_checkpoint_with_other_bases_is_refused() -> None:
    shape = Architecture(model_of("rgcn"), SCHEMA, CLASSES)
    assert Architecture.from_json({**shape.to_json(), "num_bases": 8}) == shape
    assert Architecture.from_json({**shape.to_json(), "num_bases": 1}) == shape
    relations = tuple(("person", f"role{number}", "movie") for number in range(5))
    shape = replace(shape, schema=replace(SCHEMA, relations=relations))
    assert Architecture.from_json({**shape.to_json(), "num_bases": 5}) == shape
    with pytest.raises(InputError, match=r"^model\.num_bases=4: relations share 8 bases now"):
        Architecture.from_json({**shape.to_json(), "num_bases": 4})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"output": "foo"}, r"^model\.output=foo: choose one of activation, aggregate"),
        ({"num_classes": 0}, r"^num_classes=0: must be in \[1, 1000000\]"),
    ],
)
def test_a_checkpoint_with_values_out_of_range_is_refused(
    changes: dict[str, Any], message: str
) -> None:
    shape = Architecture(model_of("gcn"), Schema.of_plain_graph(WIDTH), 64, "dot")
    assert Architecture.from_json(shape.to_json()) == shape
    with pytest.raises(InputError, match=message):
        Architecture.from_json({**shape.to_json(), **changes})
