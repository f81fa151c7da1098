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

    host_tensor: Tensor

    @staticmethod
    def __new__(cls, host_tensor: Tensor) -> Self:
        tensor: Any = Tensor._make_wrapper_subclass(
            cls,
            host_tensor.shape,
            strides=host_tensor.stride(),
            storage_offset=host_tensor.storage_offset(),
            dtype=host_tensor.dtype,
            device=DEVICE,
        )
        tensor.host_tensor = host_tensor
        return tensor

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _call(function, args, kwargs or {}, Counter())

    def tolist(self) -> Any:
        return self.host_tensor.tolist()


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
    tensors = [tensor for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, Tensor)]
    on_device = [tensor for tensor in tensors if isinstance(tensor, DeviceTensor)]
    name = function.__name__
    moves = name.startswith(("_to_copy", "copy_"))
    # As with a GPU: numbers and indices may be on the host.
    values = (args[0], *args[2:]) if name.startswith(("index.", "index_put")) else args
    operands = [tensor for tensor in tree_leaves((values, kwargs)) if isinstance(tensor, Tensor)]
    on_host = [
        tensor for tensor in operands if tensor.dim() and not isinstance(tensor, DeviceTensor)
    ]
    if on_host and not moves and any(isinstance(tensor, DeviceTensor) for tensor in operands):
        raise RuntimeError(f"{function} takes tensors from the host and from the device")
    goes_to_device = bool(on_device)
    if kwargs.get("device") is not None:
        goes_to_device = torch.device(kwargs["device"]) == DEVICE
        kwargs = {**kwargs, "device": HOST}
    if moves and goes_to_device != isinstance(tensors[-1], DeviceTensor):
        moved["to device" if goes_to_device else "to host"] += tensors[-1].nbytes
    result = function(*tree_map(_unwrap, args), **tree_map(_unwrap, kwargs))
    if not goes_to_device:
        return result
    changed = {id(tensor.host_tensor): tensor for tensor in on_device}

    def wrap(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        argument = changed.get(id(value))  # an operation in place returns its argument
        return DeviceTensor(value) if argument is None else argument

    return tree_map(wrap, result)


def _unwrap(value: Any) -> Any:
    return value.host_tensor if isinstance(value, DeviceTensor) else value
