"""Replacing methods of a class, and putting the very same function objects back."""

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

__all__ = ["Patches"]


#: Wrappers that were undone while another's lay over them, and what they had wrapped: whoever
#: takes that other one away puts back what was there before both.
_retired: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


class Patches:
    """A set of replaced class attributes that can be undone exactly.

    Only attributes in the class's own ``__dict__`` are replaced, and detaching puts the very
    object back that was there: with the gate off the host runs what it always ran. What somebody
    else has wrapped meanwhile stays until they undo it.
    """

    def __init__(self) -> None:
        self._done: list[tuple[type, str, Any, Any]] = []  # the original, and what took its place

    def replace(self, owner: type, name: str, make: Callable[[Any], Any]) -> None:
        """Put ``make(original)`` in the place of ``owner.name``; once, however often it is called.

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
        """Put every original back, last replaced first."""
        while self._done:
            owner, name, original, ours = self._done.pop()
            if owner.__dict__.get(name) is not ours:
                _retired[ours] = original
                continue
            while original in _retired:
                original = _retired[original]
            setattr(owner, name, original)
