"""Find live objects in this process without the cooperation of their creators."""

import gc
import sys
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType, MethodType
from typing import Any

__all__ = ["Alive", "find"]

_PACKAGE = "sglang"
#: Most references followed from a running function's variable: a scheduler's pools are six away.
_MOST_REFERENCES = 8
#: Most items examined per container, because a scheduler holds many requests.
_MOST_ITEMS = 4096
_CONTAINERS = (list, tuple, set, frozenset, deque)


@dataclass(frozen=True, slots=True)
class Alive:
    """What was found: objects of the requested classes, and every bound method."""

    objects: tuple[Any, ...]
    methods: tuple[MethodType, ...]

    def of(self, classes: Collection[type]) -> list[Any]:
        """Return the objects of exactly these classes."""
        return [found for found in self.objects if type(found) in classes]


def find(classes: Collection[type]) -> Alive:
    """Find every object of exactly these classes that the garbage collector knows.

    Objects frozen by the host (``gc.freeze``) are invisible to it. If there are any, everything
    reachable from the variables of running functions is searched too.
    """
    wanted, methods = set(classes), [MethodType]
    found: dict[int, Any] = {}
    bound: dict[int, MethodType] = {}
    frozen = _reachable() if gc.get_freeze_count() else ()
    for heap in (gc.get_objects(), frozen):
        for candidate in heap:
            if type(candidate) in wanted:
                found[id(candidate)] = candidate
            elif type(candidate) in methods:
                bound[id(candidate)] = candidate
    return Alive(tuple(found.values()), tuple(bound.values()))


def _reachable() -> Iterator[Any]:
    """Yield everything that running functions can reach through SGLang's own objects, once."""
    queue = deque((value, 0) for value in _variables())
    visited: set[int] = set()
    while queue:
        value, distance = queue.popleft()
        if id(value) in visited:
            continue
        visited.add(id(value))
        yield value
        if distance < _MOST_REFERENCES:
            queue.extend((inner, distance + 1) for inner in _inside(value))


def _variables() -> Iterator[Any]:
    for top in sys._current_frames().values():  # noqa: SLF001 - the documented way to other threads
        frame: FrameType | None = top
        while frame is not None:
            yield from list(frame.f_locals.values())
            frame = frame.f_back


def _inside(value: Any) -> list[Any]:
    """Return what a value refers to: a method's object, a container's items, SGLang's attributes."""
    if isinstance(value, MethodType):
        return [value.__self__]
    if isinstance(value, Mapping) and type(value) is dict:
        return list(value.values())[:_MOST_ITEMS]
    if type(value) in _CONTAINERS:
        return list(value)[:_MOST_ITEMS]
    if type(value).__module__.partition(".")[0] == _PACKAGE:
        return list(_attributes(value))
    return []


def _attributes(owner: Any) -> Iterator[Any]:
    """Yield the values of an object's attributes without reading its ``__dict__``.

    On CPython 3.11 and 3.12 that would slow every later access to an attribute of the object.
    """
    for value in gc.get_referents(owner):
        if type(value) is dict:
            yield from list(value.values())[:_MOST_ITEMS]
        yield value
