"""Read one argument of a call by its name in the function's signature, however it was passed."""

from collections.abc import Callable
from inspect import Parameter, signature
from typing import Any

__all__ = ["Argument", "argument", "names_of"]

#: Reads one argument from a call's positional and keyword arguments; None if it was not passed.
Argument = Callable[[tuple[Any, ...], dict[str, Any]], Any]

_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def names_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of a function's positional arguments in order; empty if unknown.

    A wrapper that forwards its arguments reports those of the function under ``__wrapped__``.
    """
    try:
        parameters = signature(function).parameters.values()
    except (TypeError, ValueError):
        return ()
    return tuple(parameter.name for parameter in parameters if parameter.kind in _POSITIONAL)


def argument(function: Callable[..., Any], name: str, at: int | None = None) -> Argument:
    """Return a reader for the argument ``name``, or else for the positional argument ``at``."""
    names = names_of(function)
    place = names.index(name) if name in names else at
    if name not in names and at is not None and at < len(names):
        name = names[at]

    def read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if place is not None and place < len(args):
            return args[place]
        return kwargs.get(name)

    return read
