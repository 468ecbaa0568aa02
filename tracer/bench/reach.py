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
    seen = {id(one) for one in beyond} | {id(sys.modules)}
    waiting, held, nbytes = list[Any](roots), list[Any](), 0
    kinds: Counter[str] = Counter()
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, type | ModuleType):
            continue
        seen.add(id(one))
        held.append(one)  # keep it alive, so that its id is not reused
        nbytes += sys.getsizeof(one)
        kinds[type(one).__qualname__] += 1
        waiting += _referents(one)
    return Reach(len(held), nbytes, kinds)


def _referents(one: Any) -> Iterator[Any]:
    if isinstance(one, FunctionType):
        yield from (one.__closure__, one.__defaults__, one.__kwdefaults__)
        return
    for other in gc.get_referents(one):
        if not (isinstance(other, dict) and other.get("__builtins__") is not None):
            yield other
