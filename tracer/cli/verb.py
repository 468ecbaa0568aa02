"""Take a verb's options from the fields of a dataclass, so that several verbs can share them."""

import inspect
from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from typing import Any, TypeVar, get_type_hints

__all__ = ["takes"]

T = TypeVar("T")


def takes(options: type[T]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let typer see each field of ``options`` as an option of a verb, before the verb's own.

    Args:
        options: a dataclass whose fields are annotated for typer and have defaults. The verb gets
            an instance of it as its first argument.
    """
    hints = get_type_hints(options, include_extras=True)
    names = [field.name for field in fields(options)]  # type: ignore[arg-type]  # a dataclass
    shared = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=hints[field.name],
        )
        for field in fields(options)  # type: ignore[arg-type]  # as above
    ]

    def make(verb: Callable[..., None]) -> Callable[..., None]:
        _, *own = inspect.signature(verb, eval_str=True).parameters.values()

        @wraps(verb)
        def command(**values: Any) -> None:
            chosen = options(**{name: values.pop(name) for name in names})
            verb(chosen, **values)

        parameters = [
            *shared,
            *(parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in own),
        ]
        vars(command)["__signature__"] = inspect.Signature(parameters)
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        return command

    return make
