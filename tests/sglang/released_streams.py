# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false
"""A load in progress on a CPU: the copies of later layers wait until told to go on."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
from released_base import ENGINE
from sglang.srt.managers import cache_controller

__all__ = ["LIMIT_S", "Delayed", "device_events", "on_its_way"]

#: Nothing here waits longer.
LIMIT_S = 10.0


class Event:
    """A fake device event: complete if never recorded, like a real one, or once reached."""

    def __init__(self, **_: Any) -> None:
        self._reached: threading.Event | None = None

    def record(self, _stream: Any = None) -> None:
        """Complete at once: the copies on this thread are done when they return."""
        if self._reached is None:
            self._reached = threading.Event()
        self._reached.set()

    def expect(self) -> None:
        """Note that the event will be recorded."""
        self._reached = threading.Event()

    def query(self) -> bool:
        """Return whether it was reached."""
        return self._reached is None or self._reached.is_set()

    def wait(self, _stream: Any = None) -> None:
        """Make a stream wait; streams are threads here, and the copies' own has nothing to wait for."""

    def synchronize(self) -> None:
        """Wait until it is reached."""
        assert self._reached is None or self._reached.wait(LIMIT_S)

    def elapsed_time(self, _end: Any) -> float:
        """Return a time that nobody reads."""
        return 0.0


class Stream:
    """The current thread as a stream."""

    def wait_event(self, event: Event) -> None:
        """Let the copies go on, because the reader waits for a layer."""
        if not event.query():
            Delayed.go_on()
        event.synchronize()

    def wait_stream(self, _other: Any) -> None:
        """Do nothing: streams are in order already."""

    def synchronize(self) -> None:
        """Do nothing: nothing is queued."""


class Delayed:
    """A load whose copies stop before a layer until somebody waits for it, or tells them to go on."""

    _held: threading.Event | None = None

    @classmethod
    def go_on(cls) -> None:
        """Let the copies go on."""
        if cls._held is not None:
            cls._held.set()

    @classmethod
    @contextmanager
    def before(cls, layer: int, controller: Any, pool: Any) -> Iterator[None]:
        """Run ``start_loading`` on a thread that stops before ``layer``; join it at the end."""
        at_layer, cls._held = threading.Event(), threading.Event()
        held, original = cls._held, type(pool).load_to_device_per_layer
        events = controller.layer_done_counter.events[0].load_events

        def slow(self: Any, *args: Any, **kwargs: Any) -> Any:
            named = kwargs.get("layer_id", args[3] if len(args) > 3 else -1)
            if named == layer:
                for event in events[layer:]:
                    event.expect()
                at_layer.set()
                assert held.wait(LIMIT_S)
            return original(self, *args, **kwargs)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(pool), "load_to_device_per_layer", slow)
            thread = threading.Thread(target=controller.start_loading)
            thread.start()
            try:
                assert at_layer.wait(LIMIT_S)
                yield
            finally:
                held.set()
                thread.join(LIMIT_S)
                cls._held = None


def device_events(patch: pytest.MonkeyPatch) -> None:
    """Replace torch's events, which do nothing on a CPU, by events that can be waited for."""

    @contextmanager
    def stream(_: Any) -> Iterator[None]:
        yield

    device = SimpleNamespace(
        Event=Event, Stream=Stream, stream=stream, current_stream=Stream, __name__="events"
    )
    engine = [import_module("sglang.srt.mem_cache.l2_transfer")] if ENGINE else []
    for module in (cache_controller, *engine):
        patch.setattr(module, "device_module", device)
        if hasattr(module, "_timing_events_supported"):  # remembers its first answer
            patch.setattr(module, "_timing_events_supported", lambda: True)


@contextmanager
def on_its_way(counter: Any, came: int) -> Iterator[None]:
    """Yield a load of which ``came`` layers have arrived; the others follow once somebody waits for one."""
    index = counter.update_producer()
    counter.set_consumer(index)
    events = counter.events[index]
    for event in events.load_events:
        event.expect()
    for layer in range(came):
        events.complete(layer)
    held = Delayed._held = threading.Event()

    def rest() -> None:
        assert held.wait(LIMIT_S)
        for layer in range(came, counter.num_layers):
            events.complete(layer)

    thread = threading.Thread(target=rest)
    thread.start()
    try:
        yield
    finally:
        held.set()
        thread.join(LIMIT_S)
        Delayed._held = None
