"""A device beside the host, for machines without a GPU.

Its tensors say that they are on torch's meta device but hold their values on the CPU.

An operation that takes tensors from both sides fails as it would with a GPU, and so does .numpy()
of a tensor on the device. Bytes from the host to the device and back are counted.
"""

from collections import Counter
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("meta")
HOST = torch.device("cpu")


class DeviceTensor(Tensor):
    """A tensor on the device."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> Self:
        made: Any = Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=DEVICE,
        )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _call(function, args, kwargs or {}, Counter())

    def tolist(self) -> Any:
        return self.held.tolist()


class SimulatedDevice(TorchDispatchMode):
    """While it is active (in one thread), the device exists.

    `moved` counts bytes by "to device" and "to host".
    """

    def __init__(self) -> None:
        super().__init__()
        self.moved: Counter[str] = Counter()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _call(function, args, kwargs or {}, self.moved)


def _call(function: Any, args: Any, kwargs: dict[str, Any], moved: Counter[str]) -> Any:
    tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
    on_device = [each for each in tensors if isinstance(each, DeviceTensor)]
    name = function.__name__
    moves = name.startswith(("_to_copy", "copy_"))
    # As with a GPU: numbers and indices may be on the host.
    values = (args[0], *args[2:]) if name.startswith(("index.", "index_put")) else args
    operands = [each for each in tree_leaves((values, kwargs)) if isinstance(each, Tensor)]
    on_host = [each for each in operands if each.dim() and not isinstance(each, DeviceTensor)]
    if on_host and not moves and any(isinstance(each, DeviceTensor) for each in operands):
        raise RuntimeError(f"{function} takes tensors from the host and from the device")
    goes_to_device = bool(on_device)
    if kwargs.get("device") is not None:
        goes_to_device = torch.device(kwargs["device"]) == DEVICE
        kwargs = {**kwargs, "device": HOST}
    if moves and goes_to_device != isinstance(tensors[-1], DeviceTensor):
        moved["to device" if goes_to_device else "to host"] += tensors[-1].nbytes
    found = function(*tree_map(_held, args), **tree_map(_held, kwargs))
    if not goes_to_device:
        return found
    changed = {id(each.held): each for each in on_device}

    def wrap(each: Any) -> Any:
        if not isinstance(each, Tensor):
            return each
        known = changed.get(id(each))  # an operation in place returns its argument
        return DeviceTensor(each) if known is None else known

    return tree_map(wrap, found)


def _held(each: Any) -> Any:
    return each.held if isinstance(each, DeviceTensor) else each
