"""Optimizers of torch.optim by name, and checks of their arguments."""

import inspect
from collections.abc import Mapping
from typing import Any

from partitioning.errors import InputError
from retexo.settings.run_settings import OptimizerSettings


def is_plain_adam(settings: OptimizerSettings) -> bool:
    """Return whether this is Adam with default arguments."""
    return settings.target == "torch.optim.Adam" and not settings.arguments


def check_optimizer(settings: OptimizerSettings) -> None:
    """Raise InputError for an unknown optimizer, or for arguments that it does not take."""
    if is_plain_adam(settings):  # nothing to check, so torch need not be imported
        return
    cls = optimizer_class(settings.target)
    known = set(inspect.signature(cls).parameters) - {"params"}
    for own, instead in (("lr", "learning_rate"), ("weight_decay", "weight_decay")):
        if own in settings.arguments:
            raise InputError(f"optimizer.{own}: set {instead} instead")
    for name in settings.arguments:
        if name not in known:
            raise InputError(
                f"optimizer.{name}: {settings.target} has only {', '.join(sorted(known))}"
            )
    if settings.weight_decay and "weight_decay" not in known:
        raise InputError(
            f"weight_decay={settings.weight_decay}: {settings.target} has none; set weight_decay=0"
        )
    _try_optimizer(cls, settings)


def _try_optimizer(cls: Any, settings: OptimizerSettings) -> None:
    """Take one step, because optimizers check values only then."""
    import torch

    parameters = [
        torch.nn.Parameter(torch.zeros(2, 2)),
        torch.nn.Parameter(torch.zeros(2)),
    ]  # as a layer has them
    try:
        optimizer = cls(parameters, lr=0.1, **optimizer_arguments(settings))
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    except Exception as error:  # optimizers raise any type for bad values
        raise InputError(
            f"optimizer={settings.target} with {optimizer_arguments(settings)}: {error}"
        ) from error


def optimizer_class(target: str) -> Any:
    """Return the class of torch.optim that `target` names; InputError for anything else."""
    import torch

    module, _, name = target.rpartition(".")
    cls = getattr(torch.optim, name, None) if module == "torch.optim" else None
    if (
        not (inspect.isclass(cls) and issubclass(cls, torch.optim.Optimizer))
        or cls is torch.optim.Optimizer
    ):
        raise InputError(
            f"optimizer._target_={target}: must be a class of torch.optim, such as torch.optim.Adam"
        )
    return cls


def optimizer_arguments(settings: OptimizerSettings) -> Mapping[str, Any]:
    """Return the keyword arguments of the optimizer except lr."""
    has_decay = "weight_decay" in inspect.signature(optimizer_class(settings.target)).parameters
    decay = {"weight_decay": settings.weight_decay} if has_decay else {}
    return {**settings.arguments, **decay}
