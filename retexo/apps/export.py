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
from retexo.trainers.graph_module import TypedGraphModule, make_arguments

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
