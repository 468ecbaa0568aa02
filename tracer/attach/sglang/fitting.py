"""Check that a method of SGLang's has the form our wrapper was written for, and say why not."""

from collections.abc import Mapping
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from typing import Any

from hicache_dbg.tracer.attach.sglang.arguments import names_of
from hicache_dbg.tracer.attach.sglang.kinds import ARGUMENTS

__all__ = ["FIRST", "unfit"]

#: The leading positional arguments, after the owner, that our wrappers of these methods rely on. All
#: other arguments are read by their name in the method's signature.
FIRST: Mapping[str, tuple[str, ...]] = {
    **ARGUMENTS,
    "complete": ("layer_index",),
    "wait_until": ("threshold",),
}
#: Class methods.
_OF_CLASSES = {"from_zmq"}


def unfit(name: str, function: Any) -> str:
    """Return why the method ``name`` cannot be wrapped; empty if it can."""
    kind = type(function).__name__
    if name in _OF_CLASSES:
        return "" if isinstance(function, classmethod) else f"a {kind}, not a class method"
    if isinstance(function, (classmethod, staticmethod, property)) or not callable(function):
        return f"a {kind}, not a method"
    if iscoroutinefunction(function) or isasyncgenfunction(function):
        return "asynchronous"
    if isgeneratorfunction(function):
        return "a generator"
    expected = FIRST.get(name, ())
    if not expected:
        return ""
    names = names_of(function)[1:]
    return "" if names[: len(expected)] == expected else f"takes ({', '.join(names)})"
