"""Writes a trained network for use without this package: torch.export's pt2, or ONNX.

Both take any number of nodes and edges. N nodes, E edges, F features.
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
from partitioning.graph_data import SEPARATOR
from retexo.results.atomic_write import atomic_write

TOLERANCE = 1e-4
"""Largest difference of a logit between the module and what onnxruntime computes."""


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
    """Write a file of `kind` pt2 or onnx.

    Raises InputError if an optional package is missing, or the graph cannot be expressed.

    ONNX is written after onnxruntime has computed the example's logits within TOLERANCE.
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

    Raises InputError if a package is missing.
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
