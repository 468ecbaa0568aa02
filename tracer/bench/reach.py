"""Measure the memory of all objects that are reachable from given objects."""

import gc
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any

__all__ = ["Reach", "reach"]


@dataclass(frozen=True)
class Reach:
    """The number of objects and their bytes; ``kinds`` counts them by type name."""

    objects: int
    nbytes: int
    kinds: Counter[str] = field(repr=False)


def reach(*roots: object, beyond: Iterable[object] = ()) -> Reach:
    """Measure what is reachable from ``roots``, but not through classes, modules or ``beyond``.

    Of a function, only its closure and defaults are followed: its globals belong to its module.
    """
    visited = {id(limit) for limit in beyond} | {id(sys.modules)}
    queue, counted, nbytes = list[Any](roots), list[Any](), 0
    kinds: Counter[str] = Counter()
    while queue:
        value = queue.pop()
        if id(value) in visited or isinstance(value, type | ModuleType):
            continue
        visited.add(id(value))
        counted.append(value)  # keep it alive, so that its id is not reused
        nbytes += sys.getsizeof(value)
        kinds[type(value).__qualname__] += 1
        queue += _referents(value)
    return Reach(len(counted), nbytes, kinds)


def _referents(value: Any) -> Iterator[Any]:
    if isinstance(value, FunctionType):
        yield from (value.__closure__, value.__defaults__, value.__kwdefaults__)
        return
    for referent in gc.get_referents(value):
        if not (isinstance(referent, dict) and referent.get("__builtins__") is not None):
            yield referent  # not the globals of a module
