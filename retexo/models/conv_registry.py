"""Registry of convolutions: model=NAME selects the module retexo/models/conv/NAME.py.

To add one, add that module, and its settings to MODELS of retexo/settings/options.py.
"""

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Protocol, cast

import torch

from partitioning.errors import InputError
from retexo.models import conv
from retexo.models.convolution import Convolution, LayerShape
from retexo.settings.options import MODELS, ModelSettings


class ConvolutionModule(Protocol):
    """Interface of a module in retexo/models/conv/."""

    def build(self, layer: LayerShape, options: Any) -> Convolution:
        """Build the convolution of one layer with initial parameters.

        Args:
            options: layer.model, an instance of the model's class in retexo.settings.options.
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


def build_convolution(layer: LayerShape) -> Convolution:
    """Build the convolution of one layer. Raises InputError for bad settings."""
    return find_convolution(layer.model.name).build(layer, layer.model)


def hidden_convolution(model: ModelSettings) -> Convolution:
    """Build a hidden layer on torch's meta device. Raises InputError for bad settings."""
    with torch.device("meta"):
        return build_convolution(LayerShape(1, model.hidden_dim, False, model))


def models_that(fits: Callable[[Convolution], bool]) -> list[str]:
    """Return the names of the models whose convolution, with their own defaults, fits."""
    kinds = {name: hidden_convolution(default_model_settings(name, 1, 1)) for name in CONVOLUTIONS}
    return [name for name, kind in kinds.items() if fits(kind)]


def default_model_settings(name: str, num_layers: int, hidden_dim: int) -> ModelSettings:
    """Return the model's own defaults, but one head, no dropout and no skip connections."""
    find_convolution(name)
    sizes = {"num_layers": num_layers, "hidden_dim": hidden_dim, "heads": 1, "dropout": 0.0}
    none = {"self_weight": False, "input_skip": False, "output": "activation"}
    return MODELS[name](name=name, **none, **sizes)  # type: ignore[arg-type]
