"""Wrap a function of SGLang's: it is called once with its own arguments, whatever fails in ours."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from hicache_dbg.tracer.attach.sglang.classes import ours
from hicache_dbg.tracer.attach.sglang.say import Say

__all__ = ["After", "Before", "around"]

Function = Callable[..., Any]
#: Gets a call's arguments; its result is passed to After, or None to skip After.
Before = Callable[[tuple[Any, ...], dict[str, Any]], Any]
#: Gets what Before returned, the call's result, and the exception if it raised.
After = Callable[[Any, Any, BaseException | None], None]


def around(say: Say, place: str, original: Function, before: Before, after: After) -> Function:
    """Wrap ``original`` with ``before`` and ``after``, whose failures are counted at ``place``."""

    @wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        about = None
        with say.errors(place):
            about = before(args, kwargs)
        if about is None:
            return original(*args, **kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            with say.errors(place):
                after(about, None, error)
            raise
        with say.errors(place):
            after(about, result, None)
        return result

    return ours(wrapper)
