"""The convolutions by name: model=NAME is the module retexo/nn/conv/NAME.py.

To add one: that module and conf/model/NAME.yaml. The module has `Options`, the definitions of the settings model.* that
are its own (`NoOptions` for none), and `build`, which makes the convolution of one layer.
"""

from dataclasses import fields
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Protocol, cast

import torch

from partitioning.errors import InputError
from retexo.config.schema import typed_options
from retexo.config.settings import ModelSettings
from retexo.nn import conv
from retexo.nn.convolution import Convolution, LayerShape


class ConvolutionModule(Protocol):
    """What a module of retexo/nn/conv/ offers."""

    @property
    def Options(self) -> type:
        """The settings model.* that only this convolution has, each defined by `setting`."""

    def build(self, layer: LayerShape, options: Any) -> Convolution:
        """The convolution of one layer, with initial parameters; InputError for settings that it cannot have."""


CONVOLUTIONS: dict[str, ConvolutionModule] = {
    module.name: cast(ConvolutionModule, import_module(f"{conv.__name__}.{module.name}"))
    for module in iter_modules(conv.__path__)
}


def find(name: str) -> ConvolutionModule:
    """The module of model=NAME; InputError where there is none."""
    if name not in CONVOLUTIONS:
        raise InputError(f"model={name}: no such model; choose one of {', '.join(CONVOLUTIONS)}")
    return CONVOLUTIONS[name]


def build_convolution(layer: LayerShape) -> Convolution:
    """The convolution of one layer; InputError for an unknown model, or settings that it cannot have."""
    module = find(layer.model.name)
    return module.build(layer, typed_options("model", layer.model.options, module.Options))


def check_model(model: ModelSettings) -> Convolution:
    """A hidden layer on torch's meta device, without data; InputError for settings that the model cannot have."""
    with torch.device("meta"):
        return build_convolution(LayerShape(1, model.hidden_dim, False, model))


def default_model(name: str, num_layers: int, hidden_dim: int) -> ModelSettings:
    """One head, no dropout, and the defaults of its own settings."""
    options = {
        field.name: field.metadata["setting"].default for field in fields(find(name).Options)
    }
    return ModelSettings(
        name,
        num_layers,
        hidden_dim,
        1,
        0.0,
        None,
        "layer",
        False,
        "previous",
        "activation",
        options,
    )
