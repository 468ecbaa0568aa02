"""An absent service fails the test if it was promised, and skips it if not."""

import pytest
from tests.services import REQUIRED, require


def test_a_service_that_is_there_lets_the_test_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the service present nothing happens, promised or not."""
    for promise in ("0", "1"):
        monkeypatch.setenv(REQUIRED, promise)
        try:
            require("/usr/bin/service", "it is not installed")
        except (pytest.skip.Exception, pytest.fail.Exception) as stopped:  # a skip would pass here
            raise AssertionError(f"stopped with {REQUIRED}={promise}: {stopped}") from stopped


def test_an_absent_service_skips_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """If nothing is promised, an absent service is a skip with the reason."""
    monkeypatch.delenv(REQUIRED, raising=False)
    with pytest.raises(pytest.skip.Exception, match="it is not installed"):
        require(None, "it is not installed")


def test_an_absent_service_fails_where_it_was_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    """If services are promised, an absent one is a failure, never a skip."""
    monkeypatch.setenv(REQUIRED, "1")
    with pytest.raises(pytest.fail.Exception, match="it is not installed, and HICACHE_DBG_TEST"):
        require(None, "it is not installed")
