"""Things that many pages share, by number: a page costs four bytes and no reference of its own.

Numbers stand in arrays; things that no array names any more are dropped now and then.
"""

from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

__all__ = ["NONE", "Kept", "Numbers"]

Numbers = npt.NDArray[np.int32]
Thing = TypeVar("Thing")

#: The number of no thing.
NONE = -1
#: Things beyond twice those still in use before the others are dropped; and one for so many numbers.
_SLACK, _SHARE = 1024, 128


class Kept(Generic[Thing]):
    """Things in the order in which they were kept: of two numbers the greater is the later one.

    Dropping looks at every number, so the more of them there are the rarer it is.
    """

    def __init__(self) -> None:
        self._things: list[Thing] = []
        self._arrays: list[Numbers] = []
        self._enough = _SLACK
        self._next = np.zeros((), np.int32)  # an array: numpy takes a plain int apart

    @property
    def things(self) -> Sequence[Thing]:
        """All that are kept, by number."""
        return self._things

    def numbers(self, *shape: int) -> Numbers:
        """An array of numbers, of no thing so far."""
        array = np.full(shape, NONE, np.int32)
        self._arrays.append(array)
        self._enough += array.size // _SHARE
        return array

    def number(self, thing: Thing) -> Numbers:
        """The number of a thing that is kept from now on, to be written into an array at once."""
        if len(self._things) >= self._enough:
            self._tidy()
        self._next[()] = len(self._things)
        self._things.append(thing)
        return self._next

    def of(self, number: int) -> Thing | None:
        """The thing of that number."""
        return None if number == NONE else self._things[number]

    def _tidy(self) -> None:
        """Drop what nothing names any more, and number the rest from 0."""
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
