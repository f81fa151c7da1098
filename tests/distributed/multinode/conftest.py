"""Tests here need network namespaces.

Where the system does not permit them they are skipped, and say so.
"""

import namespaces
import pytest


@pytest.fixture(scope="session", autouse=True)
def _permitted(request: pytest.FixtureRequest) -> None:
    reason = namespaces.refusal()
    if reason is None:
        return
    message = f"no network namespaces here ({reason}); they need root and iproute2"
    if request.config.getoption("--namespaces") == "required":
        pytest.fail(message)
    pytest.skip(message)
