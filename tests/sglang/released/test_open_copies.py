"""Copies that have pages open, closed by whichever thread of SGLang comes along: each of them, once."""

# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false

import threading
from collections.abc import Callable

import pytest
from released_rows import mla
from released_traced import Start

from hicache_dbg.tracer.attach.sglang.open_copies import OpenCopies, OpenCopy
from hicache_dbg.tracer.checks.violation import Access

#: How long the first thread lets the second one try.
TRY_S = 0.2


class Over:
    """An event that has come; whoever asks first lets somebody else ask meanwhile."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        self._meanwhile = [threading.Thread(target=meanwhile)]

    def query(self) -> bool:
        """It has come."""
        if self._meanwhile:
            other = self._meanwhile.pop()
            other.start()
            other.join(TRY_S)
        return True


def test_a_copy_is_closed_once_by_two_threads(
    traced: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread for storage frees a host page while the scheduler does: the copy's pages close once."""
    run = traced()
    mla("layer_first")
    closed: list[OpenCopy] = []
    monkeypatch.setattr(OpenCopies, "_close", lambda _, copy: closed.append(copy))
    copies = run.attachment.observer.owners.copies
    copy = OpenCopy("kv", "backup", Access("backup", "t", ()), over=Over(copies.settle))
    copies.submitted([copy], None)
    copies.settle()
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join(10.0)
    assert closed == [copy]
