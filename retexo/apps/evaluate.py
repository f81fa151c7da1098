"""`app=evaluate`: scores of a trained model on the same or another partition of the graph."""

from pathlib import Path
from typing import Any

from retexo.apps.inference import prepare_inference, run_workers
from retexo.apps.summary import print_results
from retexo.results.atomic_write import write_json
from retexo.results.run_lock import locks_run_dir
from retexo.settings.run_settings import Settings


@locks_run_dir
def run(settings: Settings, run_dir: Path) -> dict[str, Any]:
    """Evaluate, and return the content of evaluation.json, which node 0 writes.

    Raises:
        InputError: Before any process is started.
        TrainingError: A worker failed.
    """
    opened = prepare_inference(settings, run_dir, ("evaluation.json",), predict=False)
    result = run_workers(*opened, run_dir, None)
    if settings.node_rank == 0:
        path = run_dir / "evaluation.json"
        write_json(path, result)
        print_results(result, {"written": path}, measure_dv=settings.measure_dv)
    return result
