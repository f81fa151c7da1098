"""`app=export`: write a trained network as a program of torch.export, or as ONNX.

RUN_DIR/
    model.pt2 or model.onnx     from the network's inputs to logits
    export.json                 names of inputs, node types, classes; the feature pipeline
"""

from pathlib import Path
from typing import Any

import torch

from retexo.apps.resume import check_unused
from retexo.exporting import input_names, name_relations, write_module
from retexo.predictor import Predictor, load
from retexo.results.atomic_write import write_json
from retexo.results.run_lock import locks_run_dir
from retexo.settings.run_settings import Settings
from retexo.trainers.graph_module import TypedGraphModule

EXAMPLE_NODES, EXAMPLE_EDGES = 7, 11
"""Sizes of the graph that is traced; the program takes others."""


@locks_run_dir
def run(settings: Settings, run_dir: Path) -> dict[str, Any]:
    """Write the model and export.json to run_dir, and return the content of export.json.

    InputError if one of them is there.
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
    architecture = predictor.checkpoint.architecture
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        schema = architecture.schema
        if not schema.is_plain:
            sizes = {name: EXAMPLE_NODES + place for place, name in enumerate(schema.widths)}
            x_dict = {
                name: torch.randn(sizes[name], width) for name, width in schema.widths.items()
            }
            edges = {
                edge_type: torch.stack(
                    [
                        torch.randint(sizes[edge_type[end]], (EXAMPLE_EDGES + place,))
                        for end in (0, 2)
                    ]
                )
                for place, edge_type in enumerate(schema.relations)
            }
            weighted = [
                edge_type for edge_type in edges if edge_type in predictor.checkpoint.weighted
            ]
            weights = {edge_type: torch.rand(edges[edge_type].shape[1]) for edge_type in weighted}
            return (x_dict, edges, weights) if weights else (x_dict, edges)
        x = torch.randn(EXAMPLE_NODES, architecture.num_features)
        ends = torch.randint(EXAMPLE_NODES, (2, EXAMPLE_EDGES))
        weight = torch.rand(EXAMPLE_EDGES) if predictor.checkpoint.weighted else None
        reads_weight = weight is not None and predictor.stages[0].conv.attention_heads > 0
        num_features = architecture.num_edge_features - reads_weight
        if num_features:
            return x, ends, weight, torch.randn(EXAMPLE_EDGES, num_features)
        return (x, ends) if weight is None else (x, ends, weight)
