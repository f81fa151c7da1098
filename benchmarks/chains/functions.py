"""Functions of chains: what users do in Python, and what needs a process beside the command.

Each runs in a process of its own, in the folder of its chain. What it writes is compared.
"""

import contextlib
import json
import multiprocessing
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from graphs import as_numbers, draw_blocks, make_tables


def save(name: str, **results: Any) -> None:
    """Write tables, arrays and tensors into the folder results/."""
    folder = Path("results")
    folder.mkdir(exist_ok=True)
    for key, result in results.items():
        if isinstance(result, pd.DataFrame):
            result.to_parquet(folder / f"{name}-{key}.parquet")
        elif isinstance(result, Mapping | list):
            (folder / f"{name}-{key}.json").write_text(json.dumps(result))
        else:
            array = result.detach().numpy() if hasattr(result, "detach") else np.asarray(result)
            np.save(folder / f"{name}-{key}.npy", array)


# --- a model in this process ----------


def predict_plain() -> None:
    import retexo

    model = retexo.load("train", output="arrays").attach("input/graph.npz")
    ids = draw_blocks()["node_id"][[3, 7, 300]]
    some = model.predict(node_ids=ids)
    all_nodes = model.predict()
    directory = next(Path("parts").glob("*/meta.json")).parent
    parts = model.predict(directory)
    save("some", ids=some.ids, classes=some.classes, probabilities=some.probabilities)
    save("all", ids=all_nodes.ids, classes=all_nodes.classes, probabilities=all_nodes.probabilities)
    save("parts", ids=parts.ids, classes=parts.classes, probabilities=parts.probabilities)
    save("embeddings", frame=retexo.load("train").embed("input/graph.npz"))
    arguments = model.network_inputs()
    save("module", logits=model.to_module()(*arguments))


def predict_new_nodes() -> None:
    import retexo

    nodes, _ = make_tables()
    model = retexo.load("train").attach("input/tables")
    new = nodes.iloc[:3].drop(columns=["subject", "split"])
    new = new.assign(nodeId=["x0", "x1", "x2"], height="170")
    old = list(nodes["nodeId"])
    edges = pd.DataFrame(
        {
            "source": ["x0", old[5], "x1", "x0"],
            "target": [old[6], "x0", old[7], "x1"],
            "weight": [1.0, 2.5, 1.0, 0.5],
        }
    )
    save("joined", frame=model.predict(new=(new, edges)))
    save("attached", frame=model.predict(node_ids=old[:9]))
    later, later_edges = make_tables(200, seed=21)
    later = as_numbers(later).drop(columns=["subject", "split"])
    save("later", frame=model.predict((later, later_edges)))


def predict_links() -> None:
    import retexo

    directory = next(Path("parts").glob("*/meta.json")).parent
    model = retexo.load("train").attach("input/graph.npz")
    ids = draw_blocks(seed=8)["node_id"]
    save(
        "scores",
        frame=retexo.load("train").score(directory, np.stack([ids[5:25], ids[105:125]], axis=1)),
    )
    save("top", frame=model.top(ids[5:9], 4))


def predict_typed() -> None:
    import retexo

    directory = next(Path("parts").glob("*/meta.json")).parent
    save("all", frame=retexo.load("train").predict(directory))


def run_exported() -> None:
    """Run the exported programs: their files hold names of source files and line numbers."""
    import onnxruntime
    import torch

    import retexo

    arguments = retexo.load("train").network_inputs("input/graph.npz")
    arguments = tuple(argument for argument in arguments if argument is not None)
    program = torch.export.load("export/model.pt2")
    save("pt2", logits=program.module()(*arguments))
    session = onnxruntime.InferenceSession("onnx/model.onnx")
    names = [model_input.name for model_input in session.get_inputs()]
    inputs = dict(zip(names, (argument.numpy() for argument in arguments), strict=False))
    save("onnx", logits=session.run(None, inputs)[0])


def ask_service(port: int) -> None:
    """Start app=serve, ask it, and end it."""
    import retexo

    settings = [
        "app=serve",
        "checkpoint_dir=train",
        "dataset_name=file",
        "dataset_file=input/tables",
    ]
    process = os.fork()
    if not process:
        with contextlib.suppress(BaseException):
            retexo.run([*settings, f"serve.port={port}", "hydra.run.dir=serve"])
        os._exit(0)
    nodes, _ = make_tables()
    old = list(nodes["nodeId"])
    row = nodes.iloc[0].drop(["subject", "split"]).to_dict() | {"nodeId": "x0"}
    edges = [{"source": "x0", "target": old[6], "weight": 1.0}]
    questions = {
        "known": ("predict", {"ids": old[:5]}),
        "new": ("predict", {"nodes": [row], "edges": edges}),
        "embed": ("embed", {"ids": old[:2]}),
        "unknown": ("predict", {"ids": ["nobody"]}),
    }
    try:
        wait_for_service(port)
        for name, (path, body) in questions.items():
            status, answer = post(f"http://127.0.0.1:{port}/{path}", body)
            answer.pop("model", None)  # of the checksum of model.json, which is compared itself
            save(name, answer={"status": status, **answer})
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def wait_for_service(port: int) -> None:
    deadline = time.monotonic() + 90
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).read()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def post(address: str, body: Any) -> tuple[int, dict[str, Any]]:
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(address, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


# --- objects of other libraries ----------


def write_objects() -> None:
    import dgl
    import networkx
    import torch
    from scipy.sparse import coo_array
    from torch_geometric.data import Data, HeteroData

    import retexo

    graph = draw_blocks(nodes=120, seed=9)
    folder = Path("objects")
    folder.mkdir()
    tensors = {key: torch.from_numpy(graph[key]) for key in ("feat", "label", "src", "dst")}
    masks = {key: torch.from_numpy(graph[key]) for key in ("train_mask", "val_mask", "test_mask")}
    ends = torch.stack([tensors["src"], tensors["dst"]])
    data = Data(x=tensors["feat"], y=tensors["label"], edge_index=ends, **masks)
    retexo.from_pyg(data, folder / "pyg.npz")
    typed = HeteroData()
    typed["paper"].x, typed["paper"].y = tensors["feat"], tensors["label"]
    for key, mask in masks.items():
        typed["paper"][key] = mask
    typed["author"].num_nodes = 30
    typed["author", "writes", "paper"].edge_index = torch.stack(
        [torch.arange(240) % 30, torch.arange(240) % 120]
    )
    typed["author", "writes", "paper"].edge_attr = (torch.arange(480) % 7).view(240, 2).float()
    retexo.from_pyg(typed, folder / "pyg-typed")
    dgl_graph = dgl.graph((tensors["src"], tensors["dst"]), num_nodes=120)
    dgl_graph.ndata.update({"feat": tensors["feat"], "label": tensors["label"], **masks})
    dgl_graph.edata["w"] = (torch.arange(dgl_graph.num_edges()) % 3 + 1).float()
    retexo.from_dgl(dgl_graph, folder / "dgl.npz")
    drawn = networkx.karate_club_graph()
    retexo.from_networkx(drawn, folder / "networkx.npz", label="club")
    matrix = coo_array((np.ones(len(graph["src"])), (graph["src"], graph["dst"])), (120, 120))
    retexo.from_scipy(matrix.tocsr(), graph["feat"], graph["label"], folder / "scipy.npz")
    nodes, edges = make_tables(120)
    retexo.from_pandas(as_numbers(nodes), edges, folder / "pandas")


def write_dgl_directory() -> None:
    """Partition by DGL itself, whose random assignment draws from numpy."""
    import dgl
    import torch

    graph = draw_blocks()
    dgl_graph = dgl.graph(
        (torch.from_numpy(graph["src"]), torch.from_numpy(graph["dst"])), num_nodes=400
    )
    for key in ("feat", "label", "train_mask", "val_mask", "test_mask"):
        dgl_graph.ndata[key] = torch.from_numpy(graph[key])
    dgl_graph.ndata["orig_id"] = torch.from_numpy(graph["node_id"])
    np.random.seed(0)
    dgl.random.seed(0)
    dgl.distributed.partition_graph(dgl_graph, "given", 2, "input/by-dgl", part_method="random")


# --- runs that are disturbed ----------


class Stop(Exception):
    """Ends a run as a user's callback does."""


def stop_training(settings: Sequence[str]) -> None:
    """Train until layer 1 has begun, and end the run."""
    import retexo

    def stop(progress: Mapping[str, Any]) -> None:
        if progress["layer"] == 1 and progress["round"] >= 3:
            raise Stop

    try:
        retexo.train([*settings, "sleep_time=0.01"], "node_classification_gcn", callbacks=[stop])
    except Stop:
        return
    raise AssertionError("the run was not stopped")


def kill_worker(settings: Sequence[str]) -> None:
    """Kill a worker in a round of layer 1; the run restarts by itself."""
    import retexo

    killed: list[int] = []

    def kill(progress: Mapping[str, Any]) -> None:
        if progress["layer"] == 1 and progress["round"] >= 3 and not killed:
            workers = [one for one in multiprocessing.active_children() if one.name == "rank 1"]
            killed.extend(one.pid or 0 for one in workers)
            os.kill(killed[0], signal.SIGKILL)

    summary = retexo.train(
        [*settings, "sleep_time=0.01"], "node_classification_gcn", callbacks=[kill]
    )
    assert killed
    assert summary["restarts"]["count"] == 1, summary["restarts"]
