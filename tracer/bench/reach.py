"""How much memory the objects take that can be reached from some others."""

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
    """Objects and their bytes; ``kinds`` counts them by the name of their type."""

    objects: int
    nbytes: int
    kinds: Counter[str] = field(repr=False)


def reach(*roots: object, beyond: Iterable[object] = ()) -> Reach:
    """What can be reached from ``roots``, but not through classes, modules or ``beyond``.

    Of a function only what it closes over, and its defaults: its globals are its module's.
    """
    seen = {id(one) for one in beyond} | {id(sys.modules)}
    waiting, held, nbytes = list[Any](roots), list[Any](), 0
    kinds: Counter[str] = Counter()
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, type | ModuleType):
            continue
        seen.add(id(one))
        held.append(one)  # so that nothing else takes its identity meanwhile
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
