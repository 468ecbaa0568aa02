"""Store objects that many pages share by number: a page costs four bytes and no reference.

The numbers are kept in arrays; objects that no array refers to any more are dropped occasionally.
"""

from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

__all__ = ["NONE", "Kept", "Numbers"]

Numbers = npt.NDArray[np.int32]
Thing = TypeVar("Thing")

#: The number that stands for no object.
NONE = -1
#: How many objects beyond twice those in use are tolerated before unused ones are dropped, plus one
#: for every _SHARE numbers.
_SLACK, _SHARE = 1024, 128


class Kept(Generic[Thing]):
    """Objects numbered in the order in which they were added: the greater number is the later one.

    Dropping scans every number, so the more numbers there are, the more rarely it happens.
    """

    def __init__(self) -> None:
        self._things: list[Thing] = []
        self._arrays: list[Numbers] = []
        self._enough = _SLACK
        self._next = np.zeros((), np.int32)  # an array, because numpy converts plain ints slowly

    @property
    def things(self) -> Sequence[Thing]:
        """All stored objects, indexed by number."""
        return self._things

    def numbers(self, *shape: int) -> Numbers:
        """Create an array of numbers, all NONE."""
        array = np.full(shape, NONE, np.int32)
        self._arrays.append(array)
        self._enough += array.size // _SHARE
        return array

    def number(self, thing: Thing) -> Numbers:
        """Store ``thing`` and return its number, to be written into an array at once."""
        if len(self._things) >= self._enough:
            self._tidy()
        self._next[()] = len(self._things)
        self._things.append(thing)
        return self._next

    def of(self, number: int) -> Thing | None:
        """Return the object of that number, or None for NONE."""
        return None if number == NONE else self._things[number]

    def _tidy(self) -> None:
        """Drop objects that no array refers to, and renumber the rest from 0."""
        named = np.zeros(len(self._things) + 1, np.bool_)  # the last is NONE's
        for array in self._arrays:
            named[array.reshape(-1)] = True
        named[NONE] = False
        numbers = (np.cumsum(named) - 1).astype(np.int32)
        numbers[NONE] = NONE
        for array in self._arrays:
            array[...] = numbers[array]
        self._things = [self._things[number] for number in np.flatnonzero(named).tolist()]
        beyond = sum(array.size for array in self._arrays) // _SHARE
        self._enough = 2 * len(self._things) + _SLACK + beyond
