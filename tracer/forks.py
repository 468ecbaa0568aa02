"""What a forked child must do over: it has its parent's locks and half-done work, but no threads."""

import os
from collections.abc import Callable
from functools import cache
from weakref import WeakMethod

from hicache_dbg.tracer.saying import say
from hicache_dbg.tracer.words import failure

__all__ = ["after_fork"]

_methods: list[WeakMethod[Callable[[], object]]] = []


def after_fork(method: Callable[[], object]) -> None:
    """Call a bound method in every child forked while its object is alive, before the child goes on.

    Those given first are called first.
    """
    _watch_forks()
    _methods.append(WeakMethod(method, _methods.remove))


@cache
def _watch_forks() -> None:
    os.register_at_fork(after_in_child=_in_child)


def _in_child() -> None:
    for reference in tuple(_methods):
        method = reference()
        try:
            if method is not None:
                method()
        except Exception as error:  # noqa: BLE001 - the child has its own work to do
            say(f"a forked child is not traced in full: {failure(error)}")
