"""Registry of convolutions: model=NAME selects the module retexo/models/conv/NAME.py.

To add one, add that module and conf/model/NAME.yaml. Settings of its own are defined in
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
    """Interface of a module in retexo/models/conv/."""

    def build(self, layer: LayerShape, options: Any) -> Convolution:
        """Build the convolution of one layer with initial parameters.

        Args:
            options: the model's own settings, an instance of its dataclass in
                retexo.settings.options.
        Raises:
            InputError: for settings that the convolution does not support.
        """


CONVOLUTIONS: dict[str, ConvolutionModule] = {
    module.name: cast(ConvolutionModule, import_module(f"{conv.__name__}.{module.name}"))
    for module in iter_modules(conv.__path__)
}


def find_convolution(name: str) -> ConvolutionModule:
    """Return the module of model=NAME. Raises InputError for an unknown name."""
    if name not in CONVOLUTIONS:
        raise InputError(f"model={name}: no such model; choose one of {', '.join(CONVOLUTIONS)}")
    return CONVOLUTIONS[name]


def find_options_class(name: str) -> type:
    """Return the dataclass of the model's own settings. Raises InputError for an unknown name."""
    find_convolution(name)
    return OPTIONS.get(("model", name), NoOptions)


def build_convolution(layer: LayerShape) -> Convolution:
    """Build the convolution of one layer. Raises InputError for bad settings."""
    name = layer.model.name
    options: Any = typed_options("model", layer.model.options, find_options_class(name))
    return find_convolution(name).build(layer, options)


def check_model(model: ModelSettings) -> Convolution:
    """Build a hidden layer on torch's meta device. Raises InputError for bad settings."""
    with torch.device("meta"):
        return build_convolution(LayerShape(1, model.hidden_dim, False, model))


def default_model_settings(name: str, num_layers: int, hidden_dim: int) -> ModelSettings:
    """Return the model's own defaults, but one head, no dropout and no skip connections."""
    own: Any = find_options_class(name)
    options = {field.name: field.metadata["setting"].default for field in fields(own)}
    shared = {
        field.name: field.metadata["setting"].default
        for field in fields(ModelSettings)
        if field.name != "options"
    }
    shared |= {"name": name, "num_layers": num_layers, "hidden_dim": hidden_dim}
    shared |= {"heads": 1, "dropout": 0.0}
    shared |= {"self_weight": False, "input_skip": False, "output": "activation"}
    return ModelSettings(**shared, options=options)
