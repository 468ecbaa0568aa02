"""Replace methods of a class, and restore the very same function objects."""

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

__all__ = ["Patches"]


#: Wrappers undone while somebody else's wrapper lay over them, and what they had wrapped. When that
#: other wrapper is removed, this finds the original below both.
_retired: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


class Patches:
    """A set of replaced class attributes that can be restored exactly.

    Only attributes in the class's own ``__dict__`` are replaced, and undoing restores the very
    object that was there: with the gate off the host runs what it always ran. If somebody else
    wrapped the attribute meanwhile, it stays until they undo theirs.
    """

    def __init__(self) -> None:
        self._done: list[tuple[type, str, Any, Any]] = []  # the original, and what took its place

    def replace(self, owner: type, name: str, make: Callable[[Any], Any]) -> None:
        """Replace ``owner.name`` by ``make(original)``; idempotent.

        Raises:
            AttributeError: the class itself does not define ``name``.
        """
        if name not in owner.__dict__:
            raise AttributeError(
                f"{owner.__module__}.{owner.__qualname__} defines no {name} of its own to attach to"
            )
        if any((owner, name) == done[:2] for done in self._done):
            return
        original = owner.__dict__[name]
        ours = make(original)
        setattr(owner, name, ours)
        self._done.append((owner, name, original, ours))

    def undo(self) -> None:
        """Restore every original, last replaced first."""
        while self._done:
            owner, name, original, ours = self._done.pop()
            if owner.__dict__.get(name) is not ours:
                _retired[ours] = original
                continue
            while original in _retired:
                original = _retired[original]
            setattr(owner, name, original)
