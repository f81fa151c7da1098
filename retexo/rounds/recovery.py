"""Recovery states of one worker on disk: an interrupted run continues in the same layer and round.

RUN_DIR/state/
    run.json              identity of the run, and its number of threads
    rank0/
        tape              the replay log: messages received outside the rounds (comm/replay_log.py)
        layer0.state      a finished layer: its parameters
        step1-40.state    layer 1 after 40 rounds: all that its rounds change; the last two are kept
    rank1/ ...

Everything else, such as embeddings, is recomputed from the replay log and the finished layers.
Each worker saves on the disk of its node; workers agree on the newest round that all of them
have. A state is a safetensors file with JSON in its header, followed by its SHA-256, so loading
executes no code. It names its run, rank, layer and round, so a misplaced file is rejected.
"""

import hashlib
import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from partitioning.errors import InputError
from partitioning.files.file_io import open_regular, read_bytes, reading
from retexo.comm.collectives import Communicator
from retexo.comm.replay_log import ReplayLog
from retexo.comm.traffic_meter import SETUP
from retexo.results.atomic_write import atomic_write

logger = logging.getLogger(__name__)

State = dict[str, Any]
"""Tensors, numbers, strings and None, in nested dicts and lists."""
REMEDY = "begin anew in another hydra.run.dir, without resume"
MAX_SAVED_ROUNDS = 2
ROUND_BASE = 2**32
"""Upper bound on rounds per layer: a saved round is sent as layer * ROUND_BASE + round."""


def state_dir(run_dir: Path, rank: int) -> Path:
    """Return the folder of a worker's recovery state."""
    return run_dir / "state" / f"rank{rank}"


class Recovery:
    """Saved states and replay log of one worker. A resumed run calls `agree` first."""

    def __init__(
        self,
        directory: Path,
        identity: str,
        every: int | None,
        stop_requested: Callable[[], bool] = lambda: False,
        *,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        """Open or create the recovery folder, and the replay log in it.

        Args:
            directory: folder of this worker.
            identity: hex SHA-256 of the run.
            every: number of rounds between saved states; None to save finished layers only.
            stop_requested: returns whether this worker was asked to stop.
            rank: of this worker.
            world_size: number of workers.

        Raises:
            InputError: the folder cannot be used.
        """
        self._worker = {"rank": rank, "world_size": world_size}
        self.directory, self.identity, self.every, self.stop_requested = (
            directory,
            identity,
            every,
            stop_requested,
        )
        tape = directory / "tape"
        worker = hashlib.sha256(f"{identity} rank {rank} of {world_size}".encode()).hexdigest()
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self.replay_log = ReplayLog(tape, worker)
        except OSError as error:
            raise InputError(f"{tape}: cannot be used ({error.strerror}); {REMEDY}") from error
        self._num_layers = 0
        self._round: tuple[int, int] | None = None

    def agree(self, comm: Communicator) -> tuple[int, int]:
        """Return the newest layer and round that every worker can continue from.

        The layer equals the number of finished layers; the round is 0 where it starts anew.
        `load_layer` and `load_round` load these states. Warns about damaged ones, which count as
        missing. The replay log is cut to the messages that all workers have. One all-gather of 4
        int64.
        """
        layers, rounds = self._find_intact()
        codes = ([layer * ROUND_BASE + number for layer, number in rounds] + [-1, -1])[
            :MAX_SAVED_ROUNDS
        ]
        everyone = comm.all_gather(torch.tensor([len(self.replay_log), layers, *codes]), SETUP)
        self.replay_log.truncate(int(everyone[:, 0].min()))
        self._num_layers = int(everyone[:, 1].min())
        common = set.intersection(*(set(row[2:].tolist()) for row in everyone))
        numbers = [
            code % ROUND_BASE
            for code in common
            if code >= 0 and code // ROUND_BASE == self._num_layers
        ]
        self._round = (self._num_layers, max(numbers)) if numbers else None
        return self._round or (self._num_layers, 0)

    def _find_intact(self) -> tuple[int, list[tuple[int, int]]]:
        """Return the number of finished layers and the newest saved rounds; warn about damage."""
        layers = 0
        while self._is_intact(layers, None):
            layers += 1
        rounds = [place for place in self._list_saved_rounds() if self._is_intact(*place)]
        return layers, rounds[-MAX_SAVED_ROUNDS:]

    def _is_intact(self, layer: int, number: int | None) -> bool:
        """Return whether a state exists and is readable; warn if it is damaged."""
        if not self._path_of(layer, number).exists():
            return False
        try:
            self._read(layer, number)
        except InputError as error:
            logger.warning("%s", error)
            return False
        return True

    def _list_saved_rounds(self) -> list[tuple[int, int]]:
        """Return layer and round of each saved round, oldest first."""
        names = (
            re.fullmatch(r"step(\d{1,9})-(\d{1,9})", path.stem)
            for path in self.directory.glob("step*.state")
        )
        return sorted((int(name[1]), int(name[2])) for name in names if name)

    def load_layer(self, layer: int, load: Callable[[State], None]) -> bool:
        """Pass the state of a finished layer to `load`; False if the layer has to be trained.

        InputError if the state cannot be read, or does not fit this run.
        """
        return layer < self._num_layers and self._load(layer, None, load)

    def load_round(self, layer: int, load: Callable[[State], None]) -> bool:
        """Pass the state to continue a layer from to `load`; False if it starts anew.

        InputError as in `load_layer`.
        """
        return (
            self._round is not None and self._round[0] == layer and self._load(*self._round, load)
        )

    def _load(self, layer: int, number: int | None, load: Callable[[State], None]) -> bool:
        """Pass a saved state, of a finished layer if `number` is None, to `load`; return True.

        Raises:
            InputError: the state cannot be read, or does not fit this run.
        """
        with reading(self._path_of(layer, number), "state of this run", REMEDY):
            load(self._read(layer, number))
        return True

    def is_due(self, number: int) -> bool:
        """Return whether the state after `number` rounds is to be saved."""
        return self.every is not None and number > 0 and number % self.every == 0

    def save_round(self, layer: int, number: int, state: State) -> None:
        """Save a layer's state after `number` rounds; remove all but the newest MAX_SAVED_ROUNDS.

        TrainingError if it cannot be written.
        """
        self._write(layer, number, state)
        for place in self._list_saved_rounds()[:-MAX_SAVED_ROUNDS]:
            self._path_of(*place).unlink()

    def save_layer(self, layer: int, state: State) -> None:
        """Save the state of a finished layer; TrainingError if it cannot be written."""
        self._write(layer, None, state)

    def _path_of(self, layer: int, number: int | None) -> Path:
        """Return the file of a saved round, or of the finished layer if `number` is None."""
        name = f"layer{layer}" if number is None else f"step{layer}-{number}"
        return self.directory / f"{name}.state"

    def _identify(self, layer: int, number: int | None) -> dict[str, int | None]:
        """Return the identification that is stored in a state; number: None of a finished layer."""
        return {**self._worker, "layer": layer, "round": number}

    def _write(self, layer: int, number: int | None, state: State) -> None:
        """Write a state, of a finished layer if `number` is None, and its checksum atomically.

        TrainingError if that fails.
        """
        tensors: dict[str, Tensor] = {}
        content = {
            "identity": self.identity,
            "place": self._identify(layer, number),
            "state": _pack(state, tensors),
        }
        data = save(tensors, {"content": json.dumps(content)})
        with (
            atomic_write(self._path_of(layer, number)) as unfinished,
            open_regular(unfinished, "wb") as file,
        ):
            file.write(data)
            file.write(hashlib.sha256(data).digest())

    def _read(self, layer: int, number: int | None) -> State:
        """Read a state.

        Raises InputError if it is damaged, or of another run, rank, layer or round.
        """
        path = self._path_of(layer, number)
        with reading(path, "state", "it is not used"):
            data = read_bytes(path)
            data, checksum = data[:-32], data[-32:]
            if hashlib.sha256(data).digest() != checksum:
                raise ValueError("damaged, its checksum is another")
            tensors = load(data)
            header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
            content = json.loads(header["__metadata__"]["content"])
            if content["identity"] != self.identity:
                raise ValueError("of another run")
            here = self._identify(layer, number)
            there = content["place"]
            differing = [name for name in here if there[name] != here[name]]
            if differing:
                differences = ", ".join(f"{name} {there[name]}" for name in differing)
                raise ValueError(f"of {differences}, in another's place")
            return dict(_unpack(content["state"], tensors))


def _pack(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Convert a value to JSON; move its tensors to `tensors` and replace them by their names."""
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
    """Convert JSON from `_pack` back to the value."""
    ((kind, value),) = packed.items()
    if kind == "tensor":
        return tensors[value]
    if kind == "dict":
        return {key: _unpack(entry, tensors) for key, entry in value}
    if kind == "list":
        return [_unpack(entry, tensors) for entry in value]
    return value
