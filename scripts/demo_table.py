#!/usr/bin/env python3
"""One table of several training runs, from the summary.json of each.

app=plan's has what gathering all parts sends.

python scripts/demo_table.py RUN_DIR [RUN_DIR ...]
"""

import argparse
import json
from pathlib import Path
from typing import Any

KINDS = ("setup", "features", "embeddings", "predictions", "gradients", "parameters", "metrics")
NAMES = {"gcn": "RetexoGCN", "sage": "RetexoSAGE", "gat": "RetexoGAT", "gin": "RetexoGIN"}


def column(summary: dict[str, Any]) -> dict[str, str]:
    """The figures of one run, by the name of their row; what nothing is known of is left out."""
    if "baselines" in summary:
        return {"": "gather", "bytes, total": f"{summary['baselines']['limit']['centralized']:,}"}
    seconds, sent = summary["seconds"], summary["bytes"]
    model, label = summary["settings"]["model"]["name"], summary["settings"]["report"]["label"]
    kinds = {kind: sent["by_kind"][kind] for kind in KINDS}
    return {
        "": label or NAMES.get(model, model),
        "accuracy, validation": ratio(summary["val"]["accuracy"]),
        "accuracy, test": ratio(summary["test"]["accuracy"]),
        "rounds per layer": " + ".join(map(str, summary["rounds"])),
        "seconds, training": f"{seconds['train']:.1f}",
        "seconds, total": f"{seconds['total']:.1f}",
        **{
            f"bytes, {kind}": f"{count:,}"
            for kind, count in kinds.items()
            if count or kind != "parameters"
        },
        "bytes, total": f"{sent['total']:,}",
    }


def ratio(value: float | None) -> str:
    """None stands for a ratio without anything to count."""
    return "none" if value is None else f"{value:.4f}"


def table(columns: list[dict[str, str]]) -> str:
    """The columns side by side, aligned to the right."""
    names = list(dict.fromkeys(name for column in columns for name in column))
    widths = [max(len(value) for value in column.values()) for column in columns]
    label = max(map(len, names))
    lines = []
    for name in names:
        cells = (
            column.get(name, "").rjust(width) for column, width in zip(columns, widths, strict=True)
        )
        lines.append("   ".join((name.ljust(label), *cells)).rstrip())
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN_DIR")
    runs = parser.parse_args().runs
    files = [
        next(run / name for name in ("summary.json", "plan.json") if (run / name).exists())
        for run in runs
    ]
    print(table([column(json.loads(file.read_text(encoding="utf-8"))) for file in files]))


if __name__ == "__main__":
    main()
