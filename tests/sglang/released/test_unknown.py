"""Unknown releases: what is missing or different is reported, everything else is attached."""

# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false

import importlib.util
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest
from released_base import VERSION
from released_driving import backup, indices, load
from released_rows import mla
from released_traced import Start, Traced

from hicache_dbg.tracer.attach.sglang import attachment, versions
from hicache_dbg.tracer.attach.sglang.classes import is_ours
from hicache_dbg.tracer.attach.sglang.fitting import FIRST
from hicache_dbg.tracer.attach.sglang.followed import followed
from hicache_dbg.tracer.attach.sglang.idle import Idle
from hicache_dbg.tracer.attach.sglang.lookups import BATCH
from hicache_dbg.tracer.events import Copied, Finding, Started

Place = tuple[str, str, str]

COMPLETE: Place = (versions.GATES_MODULE, "LayerLoadingEvent", "complete")


def there(place: Place) -> type | None:
    """Return the class if its module is imported and the class itself has the method."""
    module, name, method = place
    cls = getattr(sys.modules.get(module), name, None)
    return cls if isinstance(cls, type) and method in vars(cls) else None


def places(version: str) -> list[Place]:
    """Return every followed method that this release has, of the imported modules."""
    mine = [
        (one.module, one.cls, one.method) for one in versions.OPERATIONS if version in one.versions
    ]
    return [place for place in dict.fromkeys((*mine, *followed())) if there(place) is not None]


def attached() -> set[str]:
    """Return what is currently wrapped."""
    return {f"{cls}.{method}" for _, cls, method in places(released()) if is_wrapped(cls, method)}


def released() -> str:
    """Return the version on the path."""
    return str(VERSION)


def is_wrapped(cls: str, method: str) -> bool:
    """Return whether a followed method is wrapped."""
    found = [there(place) for place in places(released()) if place[1:] == (cls, method)]
    return any(is_ours(vars(one)[method]) for one in found if one is not None)


def round_trip(run: Traced) -> list[str]:
    """Back up and load with something missing; return what was not recognised."""
    setup = mla("layer_first")
    host = setup.pool.alloc(setup.page)
    backup(setup, host, indices([1], setup.page), "kernel")
    load(setup, host, indices([2], setup.page), "kernel")
    setup.pool.free(host)
    assert run.sink.of(Finding) == []
    run.attachment.observer.announce()
    assert len(run.sink.of(Copied)) >= 2
    return list(run.sink.of(Started)[-1].unrecognised)


def other_arguments(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the same method with another first argument."""

    def method(self: Any, *, something: Any = None, **given: Any) -> Any:
        return original(self, **given)

    return method


def asynchronous(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the same method as a coroutine."""

    @wraps(original)
    async def method(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    return method


OTHERWISE: dict[str, Callable[[Any], Any]] = {
    "a staticmethod": staticmethod,
    "a classmethod": classmethod,
    "a property": property,
    "asynchronous": asynchronous,
}


def test_a_method_that_is_gone_is_named(traced: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each missing method alone is not attached, and the start says so."""
    first = traced()
    everything = attached()
    first.attachment.detach()
    wrong = []
    for place in places(released()):
        cls = there(place)
        label = f"{place[1]}.{place[2]}"
        with monkeypatch.context() as patch:
            patch.setattr(cls, f"{place[2]}_of_old", vars(cls)[place[2]], raising=False)
            patch.delattr(cls, place[2])
            run = traced()
            session = run.attachment.observer.started()
            run.attachment.observer._announced = False
            run.attachment.observer.announce()
            (said,) = run.sink.of(Started)
            named = [one for one in said.unrecognised if one.startswith(f"{label}: not attached")]
            inherited = hasattr(cls, place[2])
            if not named and not inherited:
                wrong.append(f"{label} is not named")
            if lost := everything - attached() - {label}:
                wrong.append(f"without {label}, {sorted(lost)} are lost too")
            run.attachment.detach()
            assert session is not None
            session.close()
    assert not wrong, wrong


def test_a_module_that_is_gone_is_named(traced: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that cannot be imported is reported; one that is only not imported yet is not."""
    gone, waiting = "sglang.srt.managers.hisparse_coordinator", BATCH[0]
    for name in (gone, waiting):
        monkeypatch.delitem(sys.modules, name, raising=False)
    looked = importlib.util.find_spec
    seen = f"{attachment.__name__}.find_spec"
    monkeypatch.setattr(seen, lambda name: None if name == gone else looked(name))
    said = round_trip(traced())
    assert f"{gone}: no such module in sglang {VERSION}" in said
    assert not [one for one in said if waiting in one]


def test_pools_that_are_kept_elsewhere_are_a_doubt(caplog: pytest.LogCaptureFixture) -> None:
    """If requests are served and no known class was built, the unknown version is reported."""
    for version, doubt in (("0.5.23", False), ("0.6.0", True)):
        caplog.clear()
        serve = Idle(lambda: False, version).batching(lambda: "served")
        assert (serve(), serve()) == ("served", "served")
        (record,) = caplog.records
        assert ("sglang 0.6.0 keep its pools elsewhere" in record.getMessage()) is doubt


@pytest.mark.parametrize("kind", OTHERWISE)
def test_a_method_of_another_kind_is_left_alone(
    traced: Start, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """What is not a plain method stays the same object, and the start says what it is."""
    found = [(there(place), place[2]) for place in places(released())]
    changed = {}
    for cls, method in found:
        assert cls is not None
        changed[cls, method] = OTHERWISE[kind](vars(cls)[method])
        monkeypatch.setattr(cls, method, changed[cls, method])
    run = traced()
    for (cls, method), mine in changed.items():
        assert vars(cls)[method] is mine
    said = run.attachment.observer.registry.inventory.unrecognised
    for cls, method in changed:
        assert (
            f"{cls.__name__}.{method}: {kind}{'' if kind[:2] != 'a ' else ', not a method'}" in said
        )


@pytest.mark.parametrize("method", sorted(FIRST.keys() - {"complete"}))
def test_a_copy_method_that_takes_something_else_is_left_alone(
    traced: Start, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Its arguments would be misread: SGLang's own runs, and the start says what it takes."""
    first = traced()
    owners = [owner for owner, name, *_ in first.attachment.hooks.patches._done if name == method]
    first.attachment.detach()
    if not owners:
        pytest.skip("this version has none of that name")
    for cls in owners:
        monkeypatch.setattr(cls, method, other_arguments(vars(cls)[method]))
    changed = [(cls, vars(cls)[method]) for cls in owners]
    run = traced()
    said = run.attachment.observer.registry.inventory.unrecognised
    for cls, mine in changed:
        assert vars(cls)[method] is mine
        assert f"{cls.__name__}.{method}: takes ()" in said


def test_pages_go_and_come_where_half_of_it_is_gone(
    traced: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With changed gates, trees, storage and device allocators, copies are still verified."""
    copies = {"start_writing", "start_loading", "submit_device_to_host", "submit_host_to_device"}
    for place in (*places(released()), COMPLETE):
        cls = there(place)
        if cls is not None and place[2] not in copies:
            monkeypatch.setattr(cls, place[2], Otherwise(vars(cls)[place[2]]))
    said = round_trip(traced())
    assert "LayerLoadingEvent.complete: takes ()" in said


def test_gates_without_a_method_that_completes_them_are_named(
    traced: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is wrapped only for a load of an unknown function, and asked for at the start."""
    monkeypatch.delattr(there(COMPLETE) or object, "complete")
    run = traced()
    said = run.attachment.observer.registry.inventory.unrecognised
    assert "LayerLoadingEvent.complete: missing" in said


class Otherwise:
    """A method that is a callable object."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __get__(self, instance: Any, owner: type) -> Any:
        return self._function.__get__(instance, owner)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self._function(*args, **kwargs)


def test_a_class_that_comes_later_is_followed(traced: Start) -> None:
    """A subclass defined during tracing: its own copy methods are wrapped before their first call."""
    run = traced()
    setup = mla("layer_first")

    class LaterPoolHost(type(setup.pool)):  # type: ignore[misc]
        def __init__(self) -> None:
            self.__dict__.update(setup.pool.__dict__)

        def backup_from_device_all_layer(
            self, device_pool: Any, host_indices: Any, device_indices: Any, io_backend: Any
        ) -> None:
            super().backup_from_device_all_layer(
                device_pool, host_indices, device_indices, io_backend
            )

    run.attachment.hooks.wrap_pools()
    later = LaterPoolHost()
    later.backup_from_device_all_layer(
        later.device_pool if hasattr(later, "device_pool") else None,
        *(indices([5], setup.page), indices([1], setup.page)),
        "kernel",
    )
    (event,) = run.sink.of(Copied)
    assert event.cls == "LaterPoolHost"
