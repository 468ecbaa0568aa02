"""Forks of the host: what a child must release, and moments at which no fork may happen.

A forked child has its parent's sockets, locks and half-done work, but none of its threads. What it
must not keep (a listening socket, a lock on a file) is released at once, traced or not.
"""

import os
import threading
import weakref
from functools import cache
from typing import Protocol

__all__ = ["LetsGo", "in_children", "unforked"]

#: Longest time a fork waits for a batch, in seconds.
LONGEST_WAIT_S = 1.0


class LetsGo(Protocol):
    """Holds something that a forked child must not keep."""

    def let_go(self) -> None:
        """Release it; called in the child, and must not fail."""
        ...


class _Unforked:
    """A reentrant lock that forks wait for.

    A thread that takes it in a loop would reacquire it before a waiting fork wakes up, so newcomers
    yield while a fork waits.
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
        if not self._is_mine():  # the owning thread does not exist in the child
            vars(self).update(vars(_Unforked()))


#: Held during calls into a library with locks of its own: no child may inherit a held one.
unforked = _Unforked()
_known: "weakref.WeakSet[LetsGo]" = weakref.WeakSet()


def in_children(thing: LetsGo) -> None:
    """Call ``thing.let_go()`` in every child forked while ``thing`` is alive."""
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
