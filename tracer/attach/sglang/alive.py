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
#: Most references followed from a running function's variable, and most items examined per container.
#: A scheduler's pools are six references away from it; its requests are many.
_FARTHEST, _MOST = 8, 4096
_CONTAINERS = (list, tuple, set, frozenset, deque)


@dataclass(frozen=True, slots=True)
class Alive:
    """What was found: objects of the requested classes, and every bound method."""

    objects: tuple[Any, ...]
    methods: tuple[MethodType, ...]

    def of(self, classes: Collection[type]) -> list[Any]:
        """Return the objects of exactly these classes."""
        return [one for one in self.objects if type(one) in classes]


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
        for one in heap:
            if type(one) in wanted:
                found[id(one)] = one
            elif type(one) in methods:
                bound[id(one)] = one
    return Alive(tuple(found.values()), tuple(bound.values()))


def _reachable() -> Iterator[Any]:
    """Yield everything that running functions can reach through SGLang's own objects, once."""
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
