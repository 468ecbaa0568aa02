"""Interrupts that land where Python cannot raise them."""

import sys
import threading
import weakref

import pytest

from hicache_dbg.tracer.cli.interrupts import kept_interrupts


class _Thing:
    """Something with a finalizer."""


def _interrupted() -> None:
    raise KeyboardInterrupt


def _fails() -> None:
    raise IndexError


def _run(things: list[_Thing]) -> None:
    with kept_interrupts():
        things.clear()
        threading.Event().wait(30)


def test_an_interrupt_in_a_finalizer_ends_what_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """It is raised again where the command can see it, and nothing is printed."""
    things = [_Thing()]
    weakref.finalize(things[0], _interrupted)
    with pytest.raises(KeyboardInterrupt):
        _run(things)
    assert capsys.readouterr().err == ""


def test_other_failures_of_finalizers_are_told_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only interrupts are taken aside, and the hook of before is back afterwards."""
    told: list[type] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda failure: told.append(failure.exc_type))
    before, thing = sys.unraisablehook, _Thing()
    weakref.finalize(thing, _fails)
    with kept_interrupts():
        del thing
    assert told == [IndexError]
    assert sys.unraisablehook is before
