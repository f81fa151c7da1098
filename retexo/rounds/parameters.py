"""A module's parameters as one vector, the rows of them that can have a gradient, and that all workers start alike.

P parameters of a stage, F input width, D hidden width.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from retexo.comm.collectives import Communicator
from retexo.comm.traffic_meter import MessageTag
from retexo.errors import TrainingError
from retexo.models.matrix import Matrix, used_columns
from retexo.rounds.graph_info import SETUP, digest_to_int
from retexo.rounds.objective import Objective
from retexo.settings.run_settings import GradientSettings

MAX_USED_SHARE = 0.98
"""Share of used rows from which all are sent: to pick the others out and put them back takes longer."""


@dataclass(frozen=True, eq=False)
class ParameterSlice:
    """Where one parameter is in the flat vectors."""

    place: slice
    shape: torch.Size
    used: Tensor | None
    """Rows [F, ...] that can have a gradient, int64 ascending; None for (nearly) all."""
    reads_inputs: bool
    """Whether `used` was looked at: a weight [F, D] of the layer's inputs."""


class FlatParameters:
    """The parameters of a module, and their gradients, as one vector each."""

    def __init__(
        self, module: nn.Module, gradient: Tensor, used: Mapping[nn.Parameter, Tensor] | None = None
    ) -> None:
        """Make the module's parameters views of a new vector, and their gradients views of `gradient`, [P].

        used: for some parameters the rows, bool [F], that can have a gradient on any worker; the other rows' is zero.
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

    def used_entries(self) -> Tensor | None:
        """Indices into the flat vectors that can have a gradient, int64 ascending; None for all."""
        if all(part.used is None for part in self.slices):
            return None
        indices = torch.arange(len(self.gradient), device=self.gradient.device)
        each = [(indices[part.place].view(part.shape), part.used) for part in self.slices]
        return torch.cat([(rows if used is None else rows[used]).flatten() for rows, used in each])


def flatten_parameters(
    objective: Objective, comm: Communicator, settings: GradientSettings
) -> FlatParameters:
    """The parameters of the module, with the rows of them that can have a gradient on any worker."""
    module, (weights, chunks) = objective.module, objective.first_inputs()
    if settings.secure:  # which inputs are zero tells which features a worker's nodes have
        used = {weight: torch.ones(weight.shape[0], dtype=torch.bool) for weight in weights}
    else:
        used = find_used_rows(weights, chunks, comm, MessageTag("setup", objective.traffic_layer))
    if (
        settings.compression != "none"
    ):  # weights of inputs that are as wide share a factor, and so their rows
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
    """Rows, bool [F], of the first weights whose input is not zero in every training row of every worker.

    weights: one may occur for several inputs. chunks: of some training nodes the inputs that each weight is multiplied
    with; none on a worker without training nodes. Each worker sends one bit per row to all others.
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
    "the processors of their nodes round differently: give all nodes the same device, torch and code path, as by "
    "ATEN_CPU_CAPABILITY=avx2 MKL_CBWR=COMPATIBLE ONEDNN_MAX_CPU_ISA=AVX2 in the environment of each"
)
DIFFERENT_START = (
    f"drew other initial parameters than rank 0 from the same seed; {CODE_PATH_REMEDY}"
)


def check_same_parameters(
    comm: Communicator,
    modules: Sequence[nn.Module],
    otherwise: str = DIFFERENT_START,
    tag: MessageTag = SETUP,
) -> None:
    """TrainingError, which names ranks and says `otherwise`, unless all workers hold the same; 8 bytes per worker."""
    digest = hashlib.sha256()
    for module in modules:
        for parameter in module.parameters():
            digest.update(parameter.detach().cpu().numpy().tobytes())
    with comm.without_replay_log():  # a resumed run compares what it holds
        values = comm.all_gather(torch.tensor([digest_to_int(digest.hexdigest())]), tag)[:, 0]
    if differing := (values != values[0]).nonzero()[:, 0].tolist():
        raise TrainingError(f"rank(s) {', '.join(map(str, differing))} {otherwise}")


def check_same_result(comm: Communicator, objective: Objective) -> None:
    """The same of what rounds trained: these take the same steps everywhere, PowerSGD's QR among them."""
    otherwise = (
        f"came to other parameters than rank 0 in layer {objective.layer}; {CODE_PATH_REMEDY}"
    )
    check_same_parameters(
        comm, [objective.module], otherwise, MessageTag("setup", objective.traffic_layer)
    )
