"""How far one worker has come, on disk, so that an interrupted run goes on in the same layer and round.

RUN_DIR/state/
    run.json              what the states belong to; one run, one number of threads
    rank0/
        tape              what was received outside the rounds (retexo.comm.replay_log)
        layer0.state      a finished layer: its parameters
        step1-40.state    layer 1 after 40 rounds: all that its rounds change; the last two of these are kept
    rank1/ ...

What follows from the tape and the finished layers, such as embeddings, is computed again. Each worker keeps its own
state, on the disk of its node; workers agree on the newest step that all of them hold intact. A state is safetensors
with JSON in their header, then their SHA-256: nothing is executed.
"""

import hashlib
import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from retexo.comm.collectives import Communicator
from retexo.comm.replay_log import ReplayLog
from retexo.comm.traffic import Purpose
from retexo.outputs.files import atomic_write

logger = logging.getLogger(__name__)

State = dict[str, Any]
"""Tensors, numbers, strings and None, in nested dicts and lists."""
KEPT = 2
"""Steps of a layer that are kept."""
ROUNDS = 2**32
"""More than a layer has: a step's number is layer * ROUNDS + round."""


def state_dir(run_dir: Path, rank: int) -> Path:
    return run_dir / "state" / f"rank{rank}"


class Recovery:
    """One worker's. In a run that is resumed, `agree` comes before all else."""

    def __init__(
        self, directory: Path, identity: str, every: int | None, stop_asked: Callable[[], bool] = lambda: False
    ) -> None:
        """directory: of this worker. identity: hex SHA-256 of the run. every: rounds between two steps, None for none.

        stop_asked: whether this worker has been told to end.
        """
        directory.mkdir(parents=True, exist_ok=True)
        self.directory, self.identity, self.every, self.stop_asked = directory, identity, every, stop_asked
        self.replay_log = ReplayLog(directory / "tape", identity)
        self._num_layers = 0
        self._step: tuple[int, int] | None = None

    def agree(self, comm: Communicator) -> tuple[int, int]:
        """The newest layer and round that every worker can go on from; one all-gather of 4 int64."""
        layers, steps = self._intact()
        codes = ([layer * ROUNDS + number for layer, number in steps] + [-1, -1])[:KEPT]
        everyone = comm.all_gather(torch.tensor([len(self.replay_log), layers, *codes]), Purpose("setup"))
        self.replay_log.keep(int(everyone[:, 0].min()))
        self._num_layers = int(everyone[:, 1].min())
        common = set.intersection(*(set(row[2:].tolist()) for row in everyone))
        here = [code % ROUNDS for code in common if code >= 0 and code // ROUNDS == self._num_layers]
        self._step = (self._num_layers, max(here)) if here else None
        return self._step or (self._num_layers, 0)

    def _intact(self) -> tuple[int, list[tuple[int, int]]]:
        """Layers finished one after the other, and the newest steps; a file that is damaged or foreign is named."""
        layers = 0
        while self._is_intact(self.directory / f"layer{layers}.state"):
            layers += 1
        steps = [(step, path) for step, path in self._steps() if self._is_intact(path)]
        return layers, [step for step, _ in steps[-KEPT:]]

    def _is_intact(self, path: Path) -> bool:
        if not path.exists():
            return False
        try:
            self._read(path)
        except ValueError as error:
            logger.warning("%s: %s; it is not used", path, error)
            return False
        return True

    def _steps(self) -> list[tuple[tuple[int, int], Path]]:
        """The oldest first."""
        found = []
        for path in self.directory.glob("step*.state"):
            name = re.fullmatch(r"step(\d+)-(\d+)", path.stem)
            if name:
                found.append(((int(name[1]), int(name[2])), path))
        return sorted(found)

    def finished(self, layer: int) -> State | None:
        """What `finish` kept of a layer; None for one that has to be trained."""
        return self._read(self.directory / f"layer{layer}.state") if layer < self._num_layers else None

    def started(self, layer: int) -> State | None:
        """What `keep` kept of the layer to go on with; None for one that begins with round 0."""
        if self._step is None or self._step[0] != layer:
            return None
        return self._read(self._path_of(*self._step))

    def is_due(self, number: int) -> bool:
        """Whether the state after `number` rounds is to be kept."""
        return self.every is not None and number > 0 and number % self.every == 0

    def keep(self, layer: int, number: int, state: State) -> None:
        """Keep the middle of a layer, and forget what is older than the last two."""
        self._write(self._path_of(layer, number), state)
        for _, path in self._steps()[:-KEPT]:
            path.unlink()

    def finish(self, layer: int, state: State) -> None:
        self._write(self.directory / f"layer{layer}.state", state)

    def close(self) -> None:
        self.replay_log.close()

    def _path_of(self, layer: int, number: int) -> Path:
        return self.directory / f"step{layer}-{number}.state"

    def _write(self, path: Path, state: State) -> None:
        tensors: dict[str, Tensor] = {}
        content = {"identity": self.identity, "state": _pack(state, tensors)}
        data = save(tensors, {"content": json.dumps(content)})
        with atomic_write(path) as unfinished, unfinished.open("wb") as file:
            file.write(data)
            file.write(hashlib.sha256(data).digest())

    def _read(self, path: Path) -> State:
        """ValueError says what is wrong with it."""
        data = path.read_bytes()
        data, checksum = data[:-32], data[-32:]
        if hashlib.sha256(data).digest() != checksum:
            raise ValueError("damaged, its checksum is another")
        try:
            tensors = load(data)
            header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
            content = json.loads(header["__metadata__"]["content"])
        except (SafetensorError, KeyError, TypeError) as error:
            raise ValueError(f"not a state: {error}") from error
        if content.get("identity") != self.identity:
            raise ValueError("of another run")
        state: State = _unpack(content["state"], tensors)
        return state


def _pack(value: Any, tensors: dict[str, Tensor]) -> Any:
    """The value as JSON; its tensors are put into `tensors`, and named where they were."""
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().cpu().contiguous()
        return {"tensor": name}
    if isinstance(value, dict):
        return {"dict": [[key, _pack(entry, tensors)] for key, entry in value.items()]}
    if isinstance(value, list | tuple):
        return {"list": [_pack(entry, tensors) for entry in value]}
    return {"value": value}


def _unpack(packed: Any, tensors: dict[str, Tensor]) -> Any:
    ((kind, value),) = packed.items()
    if kind == "tensor":
        return tensors[value]
    if kind == "dict":
        return {key: _unpack(entry, tensors) for key, entry in value}
    if kind == "list":
        return [_unpack(entry, tensors) for entry in value]
    return value
