"""Replacing methods of a class, and putting the very same function objects back."""

from collections.abc import Callable
from typing import Any

__all__ = ["Patches"]


class Patches:
    """A set of replaced class attributes that can be undone exactly.

    Only attributes in the class's own ``__dict__`` are replaced, and detaching puts the very
    object back that was there: with the gate off the host runs what it always ran.
    """

    def __init__(self) -> None:
        self._originals: list[tuple[type, str, Any]] = []

    def replace(self, owner: type, name: str, make: Callable[[Any], Any]) -> None:
        """Put ``make(original)`` in the place of ``owner.name``; once, however often it is called.

        Raises:
            AttributeError: the class itself does not define ``name``.
        """
        if name not in owner.__dict__:
            raise AttributeError(
                f"{owner.__module__}.{owner.__qualname__} defines no {name} of its own to attach to"
            )
        if any((owner, name) == done[:2] for done in self._originals):
            return
        original = owner.__dict__[name]
        setattr(owner, name, make(original))
        self._originals.append((owner, name, original))

    def undo(self) -> None:
        """Put every original back, last replaced first."""
        while self._originals:
            owner, name, original = self._originals.pop()
            setattr(owner, name, original)
