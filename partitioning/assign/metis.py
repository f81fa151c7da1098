"""`partition_method=metis`: METIS k-way (Karypis and Kumar 1998), pymetis's or DGL's, in a process
of its own.

    python -P -m partitioning.assign.metis LIBRARY PARTS OBJECTIVE SEED PARENT FOLDER

reads the graph from FOLDER/starts.npy, int64 [N + 1], and FOLDER/neighbours.npy, int64 [2E], and
writes the part of each node to FOLDER/parts.npy, int64 [N]. METIS is C code that can crash, loop or
be killed for its memory: that ends the command with a message. FOLDER is in TMPDIR and takes 16
bytes a pair until the child has read it.

METIS gets a simple undirected graph: no self loops, and each pair of neighbours once, because DGL's
corrupts memory where pairs are repeated. Neither nodes nor edges have weights. The number of copies
of an edge as its weight changes nothing for the objective `vol`, and gives 18 to 71 % more halo
rows for `cut`. `hypergraph.balance` evens out types and training nodes afterwards: with weights
instead, METIS has cut 6 % worse and left parts of 1.7 times the mean.

N nodes, E pairs of neighbours, P parts.
"""

import logging
import math
import os
import signal
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from partitioning.child_process import end_with_parent, run_module
from partitioning.dgl_import import has_dgl, import_dgl
from partitioning.errors import InputError
from partitioning.files.file_io import load_npy
from partitioning.graph.graph_data import GraphData

log = logging.getLogger(__name__)

START_SECONDS, SECONDS_PER_EDGE = 120, 1e-3
"""Time limit to start, and for each entry of `neighbours`. With 1 million entries METIS took 3 s
for 4 parts and 10 s for 16."""
ELSE = "use partition_method=random, km1, or file with an assignment made elsewhere"


def find_library() -> str:
    """Return the library with METIS, pymetis or dgl; InputError if neither is installed."""
    if find_spec("pymetis") is not None:
        return "pymetis"
    if has_dgl():
        return "dgl"
    raise InputError(
        "partition_method=metis: needs pymetis (pip install pymetis), or DGL; or use km1"
    )


def partition(
    graph: GraphData, num_parts: int, objective: str, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return the part of each node, int64 [N] in [0, P).

    Parts have about the same number of nodes. Some can be empty, where there are few.

    Args:
        graph: Its directions and copies of edges do not count.
        num_parts: P.
        objective: vol (communication volume) or cut (edges).
        rng: Seeds METIS.

    Raises:
        InputError: METIS is not installed, failed, crashed, was killed, or did not end in time.
    """
    library = find_library()
    with tempfile.TemporaryDirectory(prefix="metis-") as name:
        folder = Path(name)
        num_entries = _write_graph(graph, folder)
        arguments = [library, num_parts, objective, rng.integers(2**31), os.getpid(), name]
        _run([*map(str, arguments)], library, START_SECONDS + SECONDS_PER_EDGE * num_entries)
        parts: NDArray[np.int64] = load_npy(folder / "parts.npy")
    assert parts.shape == (graph.num_nodes,)
    assert parts.min(initial=0) >= 0
    assert parts.max(initial=0) < num_parts
    return parts


def _write_graph(graph: GraphData, folder: Path) -> int:
    """Write the neighbours of each node to starts.npy and neighbours.npy; return their number, 2E.

    Both directions of each edge, copies once, without self loops.
    """
    between = graph.edges.src != graph.edges.dst
    ends = graph.edges.dst[between], graph.edges.src[between]
    one_way = sp.csr_array(
        (np.ones(len(ends[0]), np.bool_), ends), shape=(graph.num_nodes, graph.num_nodes)
    )
    both = one_way + one_way.T  # adds up copies
    np.save(folder / "starts.npy", both.indptr.astype(np.int64))
    np.save(folder / "neighbours.npy", both.indices.astype(np.int64))
    return int(both.nnz)


def _run(arguments: list[str], library: str, seconds: float) -> None:
    """Run METIS in a child; unless it succeeds, log its standard error and raise InputError."""
    where = f"partition_method=metis: {library}'s METIS"
    try:
        ended = run_module("partitioning.assign.metis", arguments, seconds)
    except subprocess.TimeoutExpired:
        raise InputError(f"{where} did not end within {math.ceil(seconds)} s; {ELSE}") from None
    if ended.returncode == 0:
        return
    log.error("%s wrote: %s", where, ended.stderr.strip() or "nothing")
    cause = f"failed: {[*ended.stderr.strip().splitlines(), f'status {ended.returncode}'][-2:][0]}"
    if ended.returncode < 0:
        cause = f"crashed on this graph ({signal.Signals(-ended.returncode).name})"
    if ended.returncode == -signal.SIGKILL:
        cause = "was killed (SIGKILL), as the system does without memory"
    raise InputError(f"{where} {cause}; {ELSE}")


# --- in the child ----------


def _partition_by_pymetis(
    starts: NDArray[np.int64],
    neighbours: NDArray[np.int64],
    num_parts: int,
    objective: str,
    seed: int,
) -> NDArray[np.int64]:
    import pymetis

    options = pymetis.Options()
    options.seed = seed
    options.objtype = pymetis.ObjType.VOL if objective == "vol" else pymetis.ObjType.CUT
    adjacency = pymetis.CSRAdjacency(starts, neighbours)
    result = pymetis.part_graph(num_parts, adjacency, recursive=False, options=options)
    return np.array(result.vertex_part, np.int64)


def _partition_by_dgl(
    starts: NDArray[np.int64],
    neighbours: NDArray[np.int64],
    num_parts: int,
    objective: str,
    seed: int,
) -> NDArray[np.int64]:
    """Run DGL's METIS; RuntimeError if it has no result.

    DGL passes it no seed, so the nodes are renumbered at random instead.
    """
    dgl = import_dgl("partition_method=metis")
    num_nodes = len(starts) - 1
    new_number = np.random.default_rng(seed).permutation(num_nodes)
    ends = new_number[np.repeat(np.arange(num_nodes), np.diff(starts))], new_number[neighbours]
    graph = dgl.graph(ends, num_nodes=num_nodes)
    parts = dgl.metis_partition_assignment(graph, num_parts, objtype=objective)
    if parts is None:
        raise RuntimeError(f"no result for {num_nodes} nodes and num_partitions={num_parts}")
    renumbered: NDArray[np.int64] = parts.numpy()[new_number]
    return renumbered


def main(
    library: str, num_parts: int, objective: str, seed: int, parent: int, folder: Path
) -> None:
    """Partition the graph of a folder, see above; its neighbours.npy is deleted once read.

    Args:
        library: "pymetis" or "dgl".
        parent: the process that waits; this one ends with it.
    """
    end_with_parent(parent)
    run = {"pymetis": _partition_by_pymetis, "dgl": _partition_by_dgl}[library]
    starts, neighbours = (load_npy(folder / f"{name}.npy") for name in ("starts", "neighbours"))
    (folder / "neighbours.npy").unlink()  # large, and left behind by a command that is killed
    np.save(folder / "parts.npy", run(starts, neighbours, num_parts, objective, seed))


if __name__ == "__main__":
    _, name, parts, objective, seed, parent, path = sys.argv
    main(name, int(parts), objective, int(seed), int(parent), Path(path))
