"""Fixtures for every test: a clean gate, and swallowed tracer failures turned back into errors."""

import os
import signal
from collections.abc import Iterator

import pytest

from hicache_dbg.tracer.selfcheck import InternalErrors

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Shells start what runs in the background like this, and every process of a test would inherit it:
    # Ctrl-C would end none of them.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _no_gate_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the HICACHE_DBG variables of the caller's environment out of every test."""
    for name in os.environ:
        if name.startswith("HICACHE_DBG") and name != "HICACHE_DBG_TEST_REQUIRE_SERVICES":
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def internal_errors(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Fail the test on any internal error that production would count.

    A test that expects one clears it.
    """
    seen: list[str] = []
    record = InternalErrors.record

    def remember(self: InternalErrors, place: str, error: BaseException) -> None:
        seen.append(f"{place}: {type(error).__name__}: {error}")
        record(self, place, error)

    monkeypatch.setattr(InternalErrors, "record", remember)
    yield seen
    assert not seen, f"the tracer failed inside: {seen}"
