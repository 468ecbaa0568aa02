"""External services that a test needs: skip if absent, fail if they were promised."""

import os

import pytest

__all__ = ["require"]

REQUIRED = "HICACHE_DBG_TEST_REQUIRE_SERVICES"


def require(condition: object, reason: str) -> None:
    """Continue if ``condition`` holds; else skip for ``reason``, or fail if services are required.

    A run that promises its services by ``HICACHE_DBG_TEST_REQUIRE_SERVICES=1`` must not pass by
    skipping what it was set up to test. At the top of a module it speaks for the whole module.
    """
    if condition:
        return
    if os.environ.get(REQUIRED) == "1":
        pytest.fail(f"{reason}, and {REQUIRED}=1 promises it", pytrace=False)
    pytest.skip(reason, allow_module_level=True)
