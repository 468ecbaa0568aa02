"""Unknown versions of SGLang: whatever methods get or raise, the wrapper is transparent."""

# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false

import contextlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import wraps
from importlib import import_module
from typing import Any

import pytest
import torch
from released_traced import Start

from hicache_dbg.tracer.attach.sglang import transfers, versions
from hicache_dbg.tracer.attach.sglang.allocators import STRIPED
from hicache_dbg.tracer.attach.sglang.classes import is_ours
from hicache_dbg.tracer.attach.sglang.dedup_broadcasts import BROADCASTER
from hicache_dbg.tracer.attach.sglang.layer_split_broadcasts import OWNER_BROADCAST


class HostError(Exception):
    """An exception of SGLang's own."""


class Thorny:
    """An object that raises whatever it is asked."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"nobody may ask for {name}")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("nobody may compare")

    def __len__(self) -> int:
        raise RuntimeError("nobody may count")

    def __bool__(self) -> bool:
        raise RuntimeError("nobody may doubt")

    def __iter__(self) -> Iterator[Any]:
        raise RuntimeError("nobody may walk through")

    __hash__ = None  # type: ignore[assignment]


class Empty:
    """An object without attributes."""


@dataclass
class Hook:
    """A stand-in below one of our wrappers; it records its calls and answers as told."""

    owner: type
    name: str
    original: Any
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    answer: Any = None

    def stand_in(self, *, says_what_it_takes: bool) -> Any:
        """Return the function that replaces the original."""
        inner = getattr(self.original, "__func__", self.original)

        def method(*args: Any, **kwargs: Any) -> Any:
            self.calls.append((args, kwargs))
            if isinstance(self.answer, BaseException):
                raise self.answer
            return self.answer

        method.__name__ = self.name
        told = wraps(inner)(method) if says_what_it_takes else method
        return type(self.original)(told) if inner is not self.original else told

    def wrapped(self) -> Any:
        """Return the currently bound function."""
        return vars(self.owner)[self.name]

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return what is wrong with one call through the wrapper; empty if nothing is."""
        self.calls.clear()
        on_class = isinstance(self.wrapped(), classmethod)
        callee = getattr(self.owner, self.name) if on_class else self.wrapped()
        given = args[1:] if on_class else args
        try:
            got = callee(*given, **kwargs)
        except BaseException as error:  # noqa: BLE001 - the point
            if error is not self.answer:
                return f"{type(error).__name__}: {error}"
        else:
            if got is not self.answer:
                return f"returned {type(got).__name__}"
        if len(self.calls) != 1:
            return f"called {len(self.calls)} times"
        got_args, got_kwargs = self.calls[0]
        got_args = got_args[1:] if on_class else got_args
        same = self._placed(got_args, got_kwargs) == self._placed(given, kwargs)
        return "" if same else "given other arguments"

    def _placed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, int]:
        """Return which object is which argument, whether passed by position or by name."""
        inner = getattr(self.original, "__func__", self.original)
        try:
            bound = inspect.signature(inner).bind(*args, **kwargs).arguments
        except TypeError:  # a class method's, without the class
            bound = {f"{at}": one for at, one in enumerate(args)} | kwargs
        return {name: id(one) for name, one in _flat(bound)}


def _flat(bound: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in bound.items():
        if isinstance(value, tuple):
            yield from ((f"{name}{at}", one) for at, one in enumerate(value))
        elif isinstance(value, dict):
            yield from value.items()
        else:
            yield name, value


Made = Callable[..., list[Hook]]

#: Besides the pools, which are imported: whatever else is wrapped.
MODULES = (
    *(*versions.TREE_MODULES, *versions.STORAGE_MODULES, *versions.ALLOCATOR_MODULES),
    *(*transfers.MODULES, BROADCASTER[0], OWNER_BROADCAST[0], STRIPED[0]),
)


@pytest.fixture
def hooks(traced: Start) -> Iterator[Made]:
    """Replace every wrapped method of this version by a stand-in, and attach over them."""
    for name in MODULES:
        with contextlib.suppress(ImportError, AttributeError):  # what a CPU or this version has not
            import_module(name)
    first = traced()
    done = list(first.attachment.hooks.patches._done)
    first.attachment.detach()
    found = [Hook(owner, name, original) for owner, name, original, _ in done if name != "__init__"]

    def make(*, says_what_it_takes: bool) -> list[Hook]:
        for hook in found:
            setattr(hook.owner, hook.name, hook.stand_in(says_what_it_takes=says_what_it_takes))
        run = traced()
        assert run.attachment.observer.started() is not None  # as the first pool does
        made.append(run)
        return [
            hook for hook in found if is_ours(getattr(hook.wrapped(), "__func__", hook.wrapped()))
        ]

    made: list[Any] = []
    yield make
    for run in made:
        run.attachment.detach()
    for hook in found:
        setattr(hook.owner, hook.name, hook.original)


VALUES: tuple[Callable[[], Any], ...] = (
    lambda: None,
    Thorny,
    Empty,
    lambda: torch.arange(8),
    lambda: 3,
    lambda: "rid",
    list,
)
ANSWERS: tuple[Callable[[], Any], ...] = (
    lambda: None,
    Empty,
    Thorny,
    lambda: torch.arange(4),
    lambda: 1,
    lambda: HostError("its own"),
    KeyboardInterrupt,
)


def owners(hook: Hook) -> list[Any]:
    """Yield objects as ``self``: an instance that was never initialised, and unrelated ones."""
    try:
        never_built: Any = object.__new__(hook.owner)
    except TypeError:
        never_built = Empty()
    return [never_built, Empty(), Thorny()]


def calls_of(hook: Hook) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Yield calls that the original would accept, by position and by name."""
    inner = getattr(hook.original, "__func__", hook.original)
    asked = [
        one
        for one in list(inspect.signature(inner).parameters.values())[1:]
        if one.kind in {one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY}
    ]
    for owner in owners(hook):
        for value in VALUES:
            by_place = [value() for one in asked if one.kind is one.POSITIONAL_OR_KEYWORD]
            rest = {one.name: value() for one in asked if one.kind is one.KEYWORD_ONLY}
            yield (owner, *by_place), rest
            yield (owner,), {one.name: value() for one in asked}
            needed = [one for one in asked if one.default is one.empty]
            yield (owner,), {one.name: value() for one in needed}


def faults(made: list[Hook], internal_errors: list[str]) -> str:
    """Return what is wrong with which hook, one line each."""
    wrong: dict[str, None] = {}
    for hook in made:
        for number, (args, kwargs) in enumerate(calls_of(hook)):
            for answer in (number, 3 * number + 1):  # in the end every one with every value
                hook.answer = ANSWERS[answer % len(ANSWERS)]()
                if fault := hook.call(args, kwargs):
                    wrong[f"{hook.owner.__name__}.{hook.name}: {fault}"] = None
    internal_errors.clear()  # ours are counted, as they should be
    return "\n".join(wrong)


def test_every_call_reaches_sglang_once_and_comes_back_as_it_was(
    hooks: Made, internal_errors: list[str]
) -> None:
    """Same arguments, one call, same result or exception: any owner, any value, by position or by name."""
    made = hooks(says_what_it_takes=True)
    assert len(made) > 80
    assert not faults(made, internal_errors)


def test_methods_that_do_not_say_what_they_take_are_called_as_they_were(
    hooks: Made, internal_errors: list[str]
) -> None:
    """Methods with an unknown signature are left alone or followed by position, and never changed."""
    made = hooks(says_what_it_takes=False)
    assert len(made) > 40
    assert not faults(made, internal_errors)
