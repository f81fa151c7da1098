"""What is kept of a run: all that inference needs.

RUN_DIR/checkpoint/
    model.json            architecture, task, partition digest, layers trained
    layer0.safetensors    parameters of the first stage: convolution, norm, head
    layer1.safetensors    ...
"""

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from partitioning.errors import InputError
from retexo.stage import Architecture, Stage, build_stage

VERSION = 1


def save_layer(directory: Path, layer: int, stage: Stage) -> None:
    """Write the parameters of a trained stage; the file is there whole, or not at all."""
    directory.mkdir(parents=True, exist_ok=True)
    unfinished = directory / f".layer{layer}.safetensors"
    tensors = {name: tensor.contiguous().cpu().clone() for name, tensor in stage.state_dict().items()}
    save_file(tensors, unfinished)
    unfinished.replace(directory / f"layer{layer}.safetensors")


def save_model(directory: Path, architecture: Architecture, described: dict[str, Any]) -> None:
    """Write model.json, last: a checkpoint with it is complete."""
    content = {"version": VERSION, "architecture": architecture.to_json(), **described}
    unfinished = directory / ".model.json"
    unfinished.write_text(json.dumps(content, indent=2) + "\n")
    unfinished.replace(directory / "model.json")


def load_model(directory: Path) -> tuple[Architecture, list[Stage]]:
    """The trained stages of a complete checkpoint, in evaluation mode."""
    path = directory / "model.json"
    try:
        content = json.loads(path.read_text())
        architecture = Architecture.from_json(content["architecture"])
        stages = [build_stage(architecture, layer, seed=0) for layer in range(architecture.num_layers)]
        for layer, stage in enumerate(stages):
            stage.load_state_dict(load_file(directory / f"layer{layer}.safetensors"))
            stage.eval()
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise InputError(f"{directory}: not a complete checkpoint of this version: {error}") from error
    return architecture, stages
