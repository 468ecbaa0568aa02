"""Forks of the host: what a child lets go of, and moments at which none may happen.

A forked child has its parent's sockets, locks and half-done work, and none of its threads. What it must
not keep (a listening socket, a lock on a file) is let go of at once, whether or not it is ever traced.
"""

import os
import threading
import weakref
from functools import cache
from typing import Protocol

__all__ = ["LetsGo", "in_children", "unforked"]

#: A fork waits no longer for a batch than this, in seconds.
LONGEST_WAIT_S = 1.0


class LetsGo(Protocol):
    """Has something that a forked child must not keep."""

    def let_go(self) -> None:
        """Let go of it; called in the child, and must not fail."""
        ...


class _Unforked:
    """A lock that forks wait for; one thread may take it again while it has it.

    A thread that takes it in a loop would have it again before one that waits wakes up, so whoever
    comes while a fork waits lets the fork go first.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = self._depth = 0
        self._held = False  # by a fork
        self._no_fork_waits = threading.Event()
        self._no_fork_waits.set()

    def __enter__(self) -> None:
        _watch_forks()
        if not self._is_mine():
            self._no_fork_waits.wait(LONGEST_WAIT_S)
            self._lock.acquire()
            self._owner = threading.get_ident()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._lock.release()

    def before(self) -> None:
        if self._is_mine():
            return
        self._no_fork_waits.clear()
        self._held = self._lock.acquire(timeout=LONGEST_WAIT_S)

    def after(self) -> None:
        if self._held:
            self._held = False
            self._lock.release()
        self._no_fork_waits.set()

    def _is_mine(self) -> bool:
        return self._depth > 0 and self._owner == threading.get_ident()

    def in_child(self) -> None:
        if not self._is_mine():  # whoever else has it is not here
            vars(self).update(vars(_Unforked()))


#: Held while values move whose library has locks of its own: no child may inherit one that is taken.
unforked = _Unforked()
_known: "weakref.WeakSet[LetsGo]" = weakref.WeakSet()


def in_children(thing: LetsGo) -> None:
    """Have ``thing`` let go in every child that is forked as long as it lives."""
    _watch_forks()
    _known.add(thing)


@cache
def _watch_forks() -> None:
    os.register_at_fork(
        before=unforked.before, after_in_parent=unforked.after, after_in_child=_in_child
    )


def _in_child() -> None:
    unforked.in_child()
    for thing in list(_known):
        thing.let_go()
