"""What a forked child leaves to its parent: threads, connections and clients that it has no part in.

Each object says itself what that means; usually it refuses requests and closes without effect.
"""

import contextlib
import ctypes
import os
import sys
from typing import Protocol
from weakref import WeakSet

__all__ = ["FORKED", "Inherited", "leak", "left_to_parent"]

FORKED = "belongs to the process that this one was forked from"


class Inherited(Protocol):
    """An object of the parent's."""

    def leave_to_parent(self) -> None:
        """Give up what cannot be shared, in the child. No lock of the parent's may be taken."""
        ...


_ALL: WeakSet[Inherited] = WeakSet()


def left_to_parent(item: Inherited) -> None:
    """Have ``item`` told in every process that is forked from this one."""
    _ALL.add(item)


def leak(item: object) -> None:
    """Keep ``item`` from ever being destroyed, even at the end of the interpreter.

    A C++ client's destructor in a child waits for threads that only the parent has, or takes down the
    connections that they share.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(item))


def _in_child() -> None:
    for item in list(_ALL):
        try:
            item.leave_to_parent()
        except Exception as error:  # noqa: BLE001 - the others must be told too
            with contextlib.suppress(AttributeError, OSError, ValueError):  # stderr may be closed
                sys.stderr.write(
                    f"hicache-dbg: a forked child keeps a part of its parent's {type(item).__name__}: "
                    f"{type(error).__name__}: {error}\n"
                )


os.register_at_fork(after_in_child=_in_child)
