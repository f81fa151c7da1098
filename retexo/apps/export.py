"""`app=export`: write a trained network as a program of torch.export, or as ONNX.

RUN_DIR/
    model.pt2 or model.onnx     from the network's inputs to logits
    export.json                 names of inputs, node types, classes; the feature pipeline
"""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from partitioning.errors import InputError, require_packages
from partitioning.graph.graph_data import SEPARATOR
from retexo.apps.resume import check_unused
from retexo.predict.predictor import Predictor, load
from retexo.results.atomic_write import atomic_write, write_json
from retexo.results.run_lock import locks_run_dir
from retexo.settings.run_settings import Settings
from retexo.trainers.graph_module import TypedGraphModule, make_arguments

TOLERANCE = 1e-4
"""Largest difference of a logit between the module and what onnxruntime computes."""

EXAMPLE_NODES, EXAMPLE_EDGES = 7, 11
"""Sizes of the graph that is traced; the program takes others."""


@locks_run_dir
def run(settings: Settings, run_dir: Path) -> dict[str, Any]:
    """Write the model and export.json to run_dir, and return the content of export.json.

    InputError if one of them is there, or as `load` and `write_module`.
    """
    assert settings.checkpoint_dir is not None
    kind = settings.export.format
    check_unused(run_dir, (f"model.{kind}", "export.json"))
    predictor = load(settings.checkpoint_dir)
    checkpoint = predictor.checkpoint
    module = predictor.to_module(explainable=False)
    inputs = example_inputs(predictor)
    write_module(module, inputs, run_dir / f"model.{kind}", kind)
    content = {
        "model": predictor.version,
        "checkpoint": str(checkpoint.directory),
        "task": checkpoint.task_name,
        "inputs": input_names(name_relations(inputs)),
        "output": "embeddings" if checkpoint.scorer else "logits",
        "multilabel": checkpoint.multilabel,
        "class_names": checkpoint.class_names,
        "target": module.schema.target if isinstance(module, TypedGraphModule) else None,
        "features": checkpoint.features,
    }
    write_json(run_dir / "export.json", content)
    for name in (f"model.{kind}", "export.json"):
        print(f"written {run_dir / name}")
    return content


def example_inputs(predictor: Predictor) -> tuple[Any, ...]:
    """Return a random graph (seed 0) of the right widths, to trace the network with.

    x, edge_index, weights or None, and edge features; by type for a heterogeneous model. Inputs
    that the model does not read are left out at the end.
    """
    checkpoint, schema = predictor.checkpoint, predictor.checkpoint.architecture.schema
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        sizes = {name: EXAMPLE_NODES + place for place, name in enumerate(schema.widths)}
        x = {name: torch.randn(sizes[name], width) for name, width in schema.widths.items()}
        ends = {
            relation: torch.stack(
                [torch.randint(sizes[relation[end]], (EXAMPLE_EDGES + place,)) for end in (0, 2)]
            )
            for place, relation in enumerate(schema.relations)
        }
        weights = {
            relation: torch.rand(ends[relation].shape[1])
            for relation in schema.relations
            if relation in checkpoint.weighted
        }
        reads_weight = bool(weights) and predictor.stages[0].conv.attention_heads > 0
        num_features = checkpoint.architecture.num_edge_features - reads_weight
        feat = torch.randn(EXAMPLE_EDGES, num_features) if num_features > 0 else None
        return make_arguments(x, ends, weights, feat)


# --- files ----------


def name_relations(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments of a module as its file takes them, with relations as text."""
    return tuple(
        {key if isinstance(key, str) else SEPARATOR.join(key): argument[key] for key in argument}
        if isinstance(argument, dict)
        else argument
        for argument in inputs
    )


def to_program(module: nn.Module, inputs: tuple[Any, ...]) -> ExportedProgram:
    """Return the module as a program of torch.export.

    Args:
        module: Predictor.to_module, without edge gates.
        inputs: Example arguments, such as Predictor.network_inputs returns them.
    """
    with torch.no_grad(), _quiet():
        return torch.export.export(module, inputs, dynamic_shapes=_dynamic_shapes(inputs))


def _dynamic_shapes(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Nodes and edges may be any number: dimension 1 of edge_index [2, E], else dimension 0."""

    def of(example: Any) -> Any:
        if isinstance(example, dict):
            return {name: of(value) for name, value in example.items()}
        if example is None:
            return None
        return {1 if example.dtype == torch.int64 else 0: Dim.DYNAMIC}

    return tuple(of(argument) for argument in inputs)


def write_module(module: nn.Module, inputs: tuple[Any, ...], path: Path, kind: str) -> None:
    """Write a file of `kind` pt2 or onnx; its folder is created where missing.

    Raises InputError if an optional package is missing, or if onnxruntime's logits of the example
    differ by more than TOLERANCE; TrainingError if the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    inputs = name_relations(inputs)
    if kind == "pt2":
        torch.export.save(to_program(module, inputs), content)
    else:
        _write_onnx(module, inputs, content)
    with atomic_write(path) as unfinished:
        unfinished.write_bytes(content.getvalue())


def _write_onnx(module: nn.Module, inputs: tuple[Any, ...], content: io.BytesIO) -> None:
    """Write a module as ONNX, after onnxruntime has computed the same logits.

    Raises InputError if a package is missing, or they differ by more than TOLERANCE.
    """
    require_packages("export.format=onnx", "export", "onnxruntime", "onnxscript")
    import onnxruntime

    names = input_names(inputs)
    with _quiet():
        program = torch.onnx.export(
            to_program(module, inputs),
            dynamo=True,
            input_names=names,
            output_names=["logits"],
            verbose=False,
        )
    assert program is not None
    model = program.model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    inputs_of_session = dict(zip(names, map(Tensor.numpy, _tensors(inputs)), strict=True))
    with torch.no_grad():
        expected = module(*inputs)
    actual = torch.from_numpy(session.run(None, inputs_of_session)[0])
    if not torch.allclose(actual, expected, rtol=0, atol=TOLERANCE):
        difference = float((actual - expected).abs().max())
        raise InputError(
            f"export.format=onnx: onnxruntime's logits differ by {difference:.3g};"
            " export.format=pt2 is exact"
        )
    content.write(model)


def _tensors(inputs: tuple[Any, ...]) -> list[Tensor]:
    """Return the tensors of the arguments, in order."""
    flat: list[Tensor] = []
    for argument in inputs:
        flat += (
            argument.values()
            if isinstance(argument, dict)
            else ()
            if argument is None
            else (argument,)
        )
    return flat


def input_names(inputs: tuple[Any, ...]) -> list[str]:
    """Return the names of ONNX's inputs: x, edge_index, edge_weight and edge_attr.

    In a typed graph they are x.TYPE, edge_index.SOURCE__RELATION__DESTINATION ...
    """
    names = []
    arguments = ("x", "edge_index", "edge_weight", "edge_attr")
    for argument, value in zip(arguments, inputs, strict=False):
        if isinstance(value, dict):
            names += [f"{argument}.{key}" for key in value]
        elif value is not None:
            names.append(argument)
    return names


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the notices of torch's exporters, which are not about the model."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
