"""Makes support.py importable from every test: pytest adds this file's folder to the path."""

import faulthandler
import multiprocessing.context
import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import settings

# A shell has SIGINT ignored in what it starts in its background; the processes of the tests would
# inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Before torch is imported: where there are more threads than cores, none waits by computing.
os.environ["OMP_WAIT_POLICY"] = "passive"
os.fsync = lambda descriptor: None  # no file of a test has to outlive the machine

STUCK = 900.0
"""Seconds from a test's start to that of the next, unless its own limit is longer."""
STDERR = pytest.StashKey[int]()
PRELOADED = ["pytest", "retexo.settings.compose", "retexo.apps.train"]
"""What workers import with the module of a test, in a second; the fork server imports it once."""

# An example can take long where other work has the cores. The usual run takes the same few examples
# each time, so that a change is judged by what it changed; --all takes a hundred new ones.
settings.register_profile("usual", deadline=None, derandomize=True, max_examples=30)
settings.register_profile("all", deadline=None)
settings.load_profile("usual")


@pytest.fixture
def fork_server() -> None:
    """The workers' fork server runs: DGL's reader is tried in a child of it, which is faster."""
    from retexo.launch.fork_server import warm_up

    warm_up()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run the long tests, too")
    parser.addoption(
        "--without-dgl", action="store_true", help="as where DGL is not installed, in every process"
    )
    parser.addoption(
        "--namespaces",
        choices=("optional", "required"),
        default="optional",
        help=(
            "whether tests that need network namespaces are skipped, or fail, where there are none"
        ),
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[STDERR] = os.dup(2)  # which tests have captured
    context = multiprocessing.context.BaseContext
    preload = context.set_forkserver_preload
    context.set_forkserver_preload = lambda self, names: preload(self, [*names, *PRELOADED])
    if config.getoption("--all"):
        settings.load_profile("all")
    if config.getoption("--without-dgl"):
        sys.modules["dgl"] = None  # type: ignore[assignment]
        ours = [str(Path(__file__).with_name("without_dgl")), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, ours))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test's own limit ends only what lets Python run.

    This ends the process, and says where each thread is.
    """
    own = max((marker.args[0] for marker in item.iter_markers("timeout")), default=0)
    limit = max(STUCK, own)
    faulthandler.dump_traceback_later(limit, exit=True, file=item.config.stash[STDERR])


def pytest_unconfigure() -> None:
    faulthandler.cancel_dump_traceback_later()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--all"):
        return
    for item in items:
        marker = item.get_closest_marker("long")
        if marker is not None:
            item.add_marker(pytest.mark.skip(reason=f"--all runs it: {marker.args[0]}"))
