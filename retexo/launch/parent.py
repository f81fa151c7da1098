"""What a process that another one starts owes it."""

import ctypes
import signal

PR_SET_PDEATHSIG = 1


def tie_to_parent() -> None:
    """From now on this process ends when its parent does, and not on Ctrl-C, which reaches the whole terminal."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
