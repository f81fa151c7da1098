"""A module's parameters as one flat vector, and the weight rows that can have a nonzero gradient.

P parameters of a stage, F input width, D hidden width.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from retexo.comm.collectives import Communicator
from retexo.comm.traffic_meter import SETUP, MessageTag
from retexo.errors import TrainingError
from retexo.models.matrix import Matrix, used_columns
from retexo.rounds.objective import Objective
from retexo.settings.communication_settings import GradientSettings

MAX_USED_SHARE = 0.98
"""Share of used rows from which all rows are sent: selecting rows would take longer."""


@dataclass(frozen=True, eq=False)
class ParameterSlice:
    """Position of one parameter in the flat vectors."""

    position: slice
    shape: torch.Size
    used: Tensor | None
    """Rows [F, ...] that can have a gradient, int64 ascending; None for (nearly) all."""
    reads_inputs: bool
    """Whether the parameter is a weight [F, D] of the layer's inputs."""


class FlatParameters:
    """Parameters of a module and their gradients, as one vector each."""

    def __init__(
        self, module: nn.Module, gradient: Tensor, used: Mapping[nn.Parameter, Tensor] | None = None
    ) -> None:
        """Make the parameters views of a new vector, and their gradients views of `gradient`, [P].

        Args:
            used: for some parameters the rows, bool [F], that can have a gradient on any worker.
                The gradient of other rows is zero. None: all rows of all parameters.
        """
        parameters = list(module.parameters())
        self.values = torch.cat([parameter.detach().flatten() for parameter in parameters])
        self.gradient = gradient
        self.slices: list[ParameterSlice] = []
        first = 0
        for parameter in parameters:
            place = slice(first, first + parameter.numel())
            parameter.data = self.values[place].view(parameter.shape)
            parameter.grad = gradient[place].view(parameter.shape)
            rows = (used or {}).get(parameter)
            some = (
                None
                if rows is None or rows.float().mean() >= MAX_USED_SHARE
                else rows.nonzero()[:, 0].to(gradient.device)
            )
            self.slices.append(ParameterSlice(place, parameter.shape, some, rows is not None))
            first = place.stop


def flatten_parameters(
    objective: Objective, comm: Communicator, settings: GradientSettings
) -> FlatParameters:
    """Make the parameters and gradients of the objective's module views of two new vectors [P].

    Input weights whose inputs are zero on all workers are marked as unused, none with
    `settings.secure`. With compression, input weights of equal width are marked alike. All workers
    call it.
    """
    module, (weights, chunks) = objective.module, objective.first_inputs()
    if settings.secure:  # which inputs are zero would reveal features of a worker's nodes
        used = {weight: torch.ones(weight.shape[0], dtype=torch.bool) for weight in weights}
    else:
        used = find_used_rows(weights, chunks, comm, MessageTag("setup", objective.traffic_layer))
    # equally wide inputs share low-rank factors, hence also the used rows
    if settings.compression != "none":
        used = {
            weight: torch.stack([rows for rows in used.values() if len(rows) == len(own)]).any(
                dim=0
            )
            for weight, own in used.items()
        }
    size = sum(parameter.numel() for parameter in module.parameters())
    return FlatParameters(module, next(module.parameters()).new_zeros(size), used)


def find_used_rows(
    weights: Sequence[nn.Parameter],
    chunks: Iterable[Sequence[Matrix]],
    comm: Communicator,
    tag: MessageTag,
) -> dict[nn.Parameter, Tensor]:
    """Return for each first weight the rows, bool [F], with a nonzero training input on any worker.

    All workers call it: each sends one bit per row to all others.

    Args:
        weights: first weights; a weight may occur for several inputs.
        chunks: this worker's training inputs of each weight, in chunks; empty without training
            nodes.
        tag: how the traffic is counted.
    """
    widths = [weight.shape[0] for weight in weights]
    own = torch.zeros(sum(widths), dtype=torch.bool)
    for matrices in chunks:
        own |= torch.cat([used_columns(matrix) for matrix in matrices])
    bits = torch.from_numpy(np.packbits(own.numpy().astype(np.uint8)))
    union = np.bitwise_or.reduce(comm.all_gather(bits, tag).numpy(), axis=0)
    used: dict[nn.Parameter, Tensor] = {}
    bits = torch.from_numpy(np.unpackbits(union, count=sum(widths)).astype(bool))
    for weight, rows in zip(weights, torch.split(bits, widths), strict=True):
        used[weight] = used[weight] | rows if weight in used else rows
    return used


CODE_PATH_REMEDY = (
    "the nodes' processors round differently; use the same device, torch version and code path "
    "on all nodes, for example by setting the environment variables ATEN_CPU_CAPABILITY=avx2 "
    "MKL_CBWR=COMPATIBLE ONEDNN_MAX_CPU_ISA=AVX2"
)
DIFFERENT_START = f"have other initial parameters than rank 0 for the same seed; {CODE_PATH_REMEDY}"


def check_same_parameters(
    comm: Communicator,
    modules: Sequence[nn.Module],
    otherwise: str = DIFFERENT_START,
    tag: MessageTag = SETUP,
) -> None:
    """Raise TrainingError, naming ranks, unless all workers hold equal parameters.

    Each worker sends 8 bytes.

    Args:
        modules: the modules to compare.
        otherwise: end of the error message.
        tag: how the traffic is counted.
    """
    digest = hashlib.sha256()
    for module in modules:
        for parameter in module.parameters():
            digest.update(parameter.detach().cpu().numpy().tobytes())
    number = int.from_bytes(digest.digest()[:8], "big") >> 1  # fits into an int64
    with comm.without_replay_log():  # a resumed run compares its current parameters
        values = comm.all_gather(torch.tensor([number]), tag)[:, 0]
    if differing := (values != values[0]).nonzero()[:, 0].tolist():
        raise TrainingError(f"rank(s) {', '.join(map(str, differing))} {otherwise}")


def check_same_result(comm: Communicator, objective: Objective) -> None:
    """Raise TrainingError unless all workers trained equal parameters.

    PowerSGD's QR may differ between processors.
    """
    otherwise = (
        f"trained other parameters than rank 0 in layer {objective.layer}; {CODE_PATH_REMEDY}"
    )
    check_same_parameters(
        comm, [objective.module], otherwise, MessageTag("setup", objective.traffic_layer)
    )
