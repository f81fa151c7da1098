"""Counts rows that are unlike those a feature pipeline was fitted to.

These have unknown categories, or numbers beyond LIMIT deviations of the mean (with
features.scale=robust, quartile ranges of the median).

By Chebyshev's inequality at most 1 / LIMIT^2 of the fitted rows are.
"""

import numpy as np

from partitioning.features.encoder import State, count_unknown
from partitioning.features.statistics import signed_log
from partitioning.graph.schema import Rows, Schema

LIMIT = 4.0


def count_unusual(state: State, raw: Rows, schema: Schema) -> dict[str, int]:
    """Count the unusual rows of a raw matrix, [n, W], by column.

    Columns without any are left out.
    """
    counts = count_unknown(state, raw, schema)
    for fitted in state["columns"]:
        column = schema.find(fitted["name"])
        if column is None or fitted["role"] == "categorical" or fitted["center"] is None:
            continue
        values = raw[:, column.columns].astype(np.float64) + column.offset
        values = signed_log(values) if fitted["scale_by"] == "log" else values
        distance = np.abs(values - fitted["center"]) / fitted["scale"]
        number = int((distance > LIMIT).any(axis=1).sum())
        if number:
            counts[fitted["name"]] = number
    return counts
