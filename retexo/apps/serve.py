"""`app=serve`: a service that predicts with a trained model over HTTP (predict/service.py)."""

import socket
from pathlib import Path
from typing import Any

from partitioning.errors import InputError, require_packages
from retexo.launch.channels import listen
from retexo.predict.predictor import Predictor, dataset_like_training
from retexo.results.checkpoint import open_checkpoint
from retexo.settings.run_settings import Settings


def run(settings: Settings, run_dir: Path) -> dict[str, Any]:
    """Print the address and serve until a signal ends it; no file is written.

    Returns the model's version and the number of reloads.

    Raises:
        InputError: Before the service listens: a package, the model, the graph or the port.
    """
    require_packages("app=serve", "serve", "fastapi", "uvicorn", "prometheus_client")
    from retexo.predict.service import ModelStore, make_server
    from retexo.predict.service_limits import SECONDS

    assert settings.checkpoint_dir is not None
    if not settings.given & {"dataset_name", "dataset_file"}:
        raise InputError(
            "app=serve: needs the graph whose nodes it predicts: dataset_name=file"
            " dataset_file=PATH"
        )
    path = Path(settings.checkpoint_dir)
    served = open_checkpoint(path).directory
    store = ModelStore(served, lambda: load(settings, path))
    host, port = settings.serve.host, settings.serve.port
    setting, remedy = f"serve.host={host}, serve.port={port}", "choose others, or serve.port=0"
    # A socket made from its number knows its protocol, TCP: only then does asyncio send small
    # answers at once (TCP_NODELAY), which saves 40 ms per request.
    listener = socket.socket(fileno=listen(host, port, setting, remedy).detach())
    host, port = listener.getsockname()[:2]
    printed_host = f"[{host}]" if ":" in host else host
    print(
        f"model {store.model.version} of {path}: {store.model.num_nodes:,} nodes\n"
        f"http://{printed_host}:{port} (POST /predict, /embed; GET /health, /metrics, /docs)",
        flush=True,
    )
    server = make_server(
        store,
        log_level="warning",
        timeout_graceful_shutdown=int(SECONDS) + 1,
    )
    with listener:
        server.run(sockets=[listener])
    return {"model": store.model.version, "reloads": store.num_reloads}


def load(settings: Settings, path: Path) -> Predictor:
    """Load the model and attach the graph that the settings name; InputError as both do."""
    checkpoint = open_checkpoint(path)
    dataset = dataset_like_training(checkpoint, settings, settings.given)
    return Predictor(checkpoint, dataset, output="arrays").attach()
