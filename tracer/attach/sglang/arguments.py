"""One argument of a call, by its name in the function's own signature, wherever the caller put it."""

from collections.abc import Callable
from inspect import Parameter, signature
from typing import Any

__all__ = ["Argument", "argument", "names_of"]

#: Reads one argument out of a call's positional and named ones; None where it was not given.
Argument = Callable[[tuple[Any, ...], dict[str, Any]], Any]

_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def names_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names of a function's positional arguments, in order; none where it does not say.

    A function that passes on whatever it is given says what that is under ``__wrapped__``.
    """
    try:
        parameters = signature(function).parameters.values()
    except (TypeError, ValueError):
        return ()
    return tuple(one.name for one in parameters if one.kind in _POSITIONAL)


def argument(function: Callable[..., Any], name: str, at: int | None = None) -> Argument:
    """Reads the argument ``name``; of a function that has none of that name, the one ``at`` this place."""
    names = names_of(function)
    place = names.index(name) if name in names else at
    if name not in names and at is not None and at < len(names):
        name = names[at]

    def read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if place is not None and place < len(args):
            return args[place]
        return kwargs.get(name)

    return read
