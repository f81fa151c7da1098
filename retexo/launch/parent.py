"""End a process when its parent ends."""

import ctypes
import signal

PR_SET_PDEATHSIG = 1


def tie_to_parent() -> None:
    """End this process when its parent ends. Ignore Ctrl-C, which reaches the whole terminal."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
