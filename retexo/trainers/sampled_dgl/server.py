"""Process of one partition's DGL server.

Started as `python -m retexo.trainers.sampled_dgl.server CONFIG IP_CONFIG PART TRAINERS TOKEN`.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def ends_with_parent() -> bool:
    """Make this process end with its parent; return False if the parent has already ended.

    Ctrl-C reaches the whole terminal and is ignored here.
    """
    parent = os.getppid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent != 1


def main(config: str, ip_config: str, part: int, trainers: int, token: str) -> None:
    """Serve until the trainers disconnect or the worker that started this process ends."""
    if not ends_with_parent():
        return
    from retexo.trainers.sampled_dgl.hooks import install

    dgl, _ = install(token)
    server = dgl.distributed.dist_graph.DistGraphServer(
        part, ip_config, 1, trainers, config, graph_format=("csc",)
    )
    server.start()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
