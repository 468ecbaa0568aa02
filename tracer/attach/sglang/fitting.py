"""Whether a method of SGLang's is what our wrapper of it was written for; why not, where it is not."""

from collections.abc import Mapping
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from typing import Any

from hicache_dbg.tracer.attach.sglang.arguments import names_of
from hicache_dbg.tracer.attach.sglang.kinds import ARGUMENTS

__all__ = ["FIRST", "unfit"]

#: The arguments that come first, behind the owner, in the calls of these methods. What is not here is
#: read by its name in the method's own signature, wherever it stands.
FIRST: Mapping[str, tuple[str, ...]] = {
    **ARGUMENTS,
    "complete": ("layer_index",),
    "wait_until": ("threshold",),
}
#: Called on the class.
_OF_CLASSES = {"from_zmq"}


def unfit(name: str, function: Any) -> str:
    """Why the method ``name`` cannot be wrapped; empty if it can."""
    kind = type(function).__name__
    if name in _OF_CLASSES:
        return "" if isinstance(function, classmethod) else f"a {kind}, not a class method"
    if isinstance(function, (classmethod, staticmethod, property)) or not callable(function):
        return f"a {kind}, not a method"
    if iscoroutinefunction(function) or isasyncgenfunction(function):
        return "asynchronous"
    if isgeneratorfunction(function):
        return "a generator"
    first = FIRST.get(name, ())
    if not first:
        return ""
    names = names_of(function)[1:]
    return "" if names[: len(first)] == first else f"takes ({', '.join(names)})"
