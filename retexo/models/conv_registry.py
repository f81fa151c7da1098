"""The convolutions by name: model=NAME is the module retexo/models/conv/NAME.py.

To add one: that module and conf/model/NAME.yaml. Settings model.* that are its own are defined in
retexo/settings/options.py.
"""

from dataclasses import fields
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Protocol, cast

import torch

from partitioning.errors import InputError
from retexo.models import conv
from retexo.models.convolution import Convolution, LayerShape
from retexo.settings.options import OPTIONS, NoOptions
from retexo.settings.run_settings import ModelSettings
from retexo.settings.schema import typed_options


class ConvolutionModule(Protocol):
    """What a module of retexo/models/conv/ offers."""

    def build(self, layer: LayerShape, options: Any) -> Convolution:
        """The convolution of one layer, with initial parameters; InputError for settings that it cannot have.

        options: the settings model.* that are its own, of its dataclass in `OPTIONS` (retexo.settings.options).
        """


CONVOLUTIONS: dict[str, ConvolutionModule] = {
    module.name: cast(ConvolutionModule, import_module(f"{conv.__name__}.{module.name}"))
    for module in iter_modules(conv.__path__)
}


def find_convolution(name: str) -> ConvolutionModule:
    """The module of model=NAME; InputError where there is none."""
    if name not in CONVOLUTIONS:
        raise InputError(f"model={name}: no such model; choose one of {', '.join(CONVOLUTIONS)}")
    return CONVOLUTIONS[name]


def find_options_class(name: str) -> type:
    """The dataclass of the settings model.* that are its own; InputError where there is no such model."""
    find_convolution(name)
    return OPTIONS.get(("model", name), NoOptions)


def build_convolution(layer: LayerShape) -> Convolution:
    """The convolution of one layer; InputError for an unknown model, or settings that it cannot have."""
    name = layer.model.name
    options: Any = typed_options("model", layer.model.options, find_options_class(name))
    return find_convolution(name).build(layer, options)


def check_model(model: ModelSettings) -> Convolution:
    """A hidden layer on torch's meta device, without data; InputError for settings that the model cannot have."""
    with torch.device("meta"):
        return build_convolution(LayerShape(1, model.hidden_dim, False, model))


def default_model_settings(name: str, num_layers: int, hidden_dim: int) -> ModelSettings:
    """One head, no dropout, and the defaults of its own settings."""
    own: Any = find_options_class(name)
    options = {field.name: field.metadata["setting"].default for field in fields(own)}
    return ModelSettings(
        name,
        num_layers,
        hidden_dim,
        1,
        0.0,
        None,
        "layer",
        False,
        False,
        "activation",
        options,
    )
