"""Optimizers of torch.optim by name, and checks of their arguments."""

import inspect
from collections.abc import Mapping
from typing import Any

from partitioning.errors import InputError
from partitioning.setting_fields import refuse
from retexo.settings.run_settings import OptimizerSettings

OPTIMIZERS = (
    *("torch.optim.ASGD", "torch.optim.Adadelta", "torch.optim.Adafactor", "torch.optim.Adagrad"),
    *("torch.optim.Adam", "torch.optim.AdamW", "torch.optim.Adamax", "torch.optim.NAdam"),
    *("torch.optim.RAdam", "torch.optim.RMSprop", "torch.optim.Rprop", "torch.optim.SGD"),
)
"""Those that step by a dense gradient of any shape, without a closure."""
PLAIN_ADAM = {"_target_": "torch.optim.Adam"}


def is_plain_adam(settings: OptimizerSettings) -> bool:
    """Return whether this is Adam with default arguments."""
    return settings.optimizer == PLAIN_ADAM


def check_optimizer(settings: OptimizerSettings) -> None:
    """Raise InputError for an unknown optimizer, or for arguments that it does not take."""
    if is_plain_adam(settings):  # nothing to check, so torch need not be imported
        return
    arguments = {**settings.optimizer}
    target = arguments.pop("_target_", None)
    if target not in OPTIMIZERS:
        raise InputError(
            f"optimizer._target_={target}: must be a class of torch.optim; choose one of"
            f" {', '.join(OPTIMIZERS)}"
        )
    known = set(inspect.signature(optimizer_class(settings)).parameters) - {"params"}
    instead = {"lr": "learning_rate", "weight_decay": "weight_decay"}
    refuse(
        *(
            (own in arguments, f"optimizer.{own}: set {name} instead")
            for own, name in instead.items()
        ),
        *(
            (name not in known, f"optimizer.{name}: {target} has only {', '.join(sorted(known))}")
            for name in arguments
        ),
        (
            settings.weight_decay != 0 and "weight_decay" not in known,
            f"weight_decay={settings.weight_decay}: {target} has none; set weight_decay=0",
        ),
    )
    _try_optimizer(settings)


def _try_optimizer(settings: OptimizerSettings) -> None:
    """Take one step on small parameters, because optimizers check values only then; InputError."""
    import torch

    parameters = [
        torch.nn.Parameter(torch.zeros(2, 2)),
        torch.nn.Parameter(torch.zeros(2)),
    ]  # as a layer has them
    arguments = optimizer_arguments(settings)
    try:
        optimizer = optimizer_class(settings)(parameters, lr=0.1, **arguments)
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    except Exception as error:  # optimizers raise any type for bad values
        target = settings.optimizer["_target_"]
        raise InputError(f"optimizer={target} with {arguments}: {error}") from error


def optimizer_class(settings: OptimizerSettings) -> Any:
    """Return the class of torch.optim that optimizer._target_ names."""
    import torch

    return getattr(torch.optim, settings.optimizer["_target_"].rpartition(".")[2])


def optimizer_arguments(settings: OptimizerSettings) -> Mapping[str, Any]:
    """Return the keyword arguments of the optimizer except lr; weight_decay unless it is 0."""
    arguments = {name: value for name, value in settings.optimizer.items() if name != "_target_"}
    return (
        {**arguments, "weight_decay": settings.weight_decay} if settings.weight_decay else arguments
    )
