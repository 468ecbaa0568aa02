"""Objects that are alive in this process, found without the help of whoever made them."""

import gc
import sys
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType, MethodType
from typing import Any

__all__ = ["Alive", "find"]

_PACKAGE = "sglang"
#: How many steps from a variable of a running function an object may be, and how many of a
#: container's things are looked at: a scheduler's pools are six steps from it, its requests many.
_FARTHEST, _MOST = 8, 4096
_CONTAINERS = (list, tuple, set, frozenset, deque)


@dataclass(frozen=True, slots=True)
class Alive:
    """What was found: objects of the classes asked for, and every bound method."""

    objects: tuple[Any, ...]
    methods: tuple[MethodType, ...]

    def of(self, classes: Collection[type]) -> list[Any]:
        """Those of exactly these classes."""
        return [one for one in self.objects if type(one) in classes]


def find(classes: Collection[type]) -> Alive:
    """Every object of exactly these classes that the garbage collector knows.

    Objects that the host has frozen (``gc.freeze``) are not told by it: then what can be reached
    from the variables of running functions is looked through too.
    """
    wanted, methods = set(classes), [MethodType]
    found: dict[int, Any] = {}
    bound: dict[int, MethodType] = {}
    frozen = _reachable() if gc.get_freeze_count() else ()
    for heap in (gc.get_objects(), frozen):
        for one in heap:
            if type(one) in wanted:
                found[id(one)] = one
            elif type(one) in methods:
                bound[id(one)] = one
    return Alive(tuple(found.values()), tuple(bound.values()))


def _reachable() -> Iterator[Any]:
    """What running functions can reach through SGLang's own objects, each once."""
    waiting = deque((value, 0) for value in _variables())
    seen: set[int] = set()
    while waiting:
        one, far = waiting.popleft()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        if far < _FARTHEST:
            waiting.extend((inner, far + 1) for inner in _inside(one))


def _variables() -> Iterator[Any]:
    for top in sys._current_frames().values():  # noqa: SLF001 - the documented way to other threads
        frame: FrameType | None = top
        while frame is not None:
            yield from list(frame.f_locals.values())
            frame = frame.f_back


def _inside(one: Any) -> list[Any]:
    if isinstance(one, MethodType):
        return [one.__self__]
    if isinstance(one, Mapping) and type(one) is dict:
        return list(one.values())[:_MOST]
    if type(one) in _CONTAINERS:
        return list(one)[:_MOST]
    if type(one).__module__.partition(".")[0] == _PACKAGE:
        return list(getattr(one, "__dict__", {}).values())
    return []
