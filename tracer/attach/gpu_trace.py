"""torch's GPU trace: one permanent callback per kind of report, inert while nobody listens.

torch cannot remove a callback, nor end the trace once it is on. So each callback is registered once
per process, with the first listener, and forwards to the current listeners.
"""

import threading
from typing import Protocol

import torch
from torch.cuda import _gpu_trace

__all__ = ["Listener", "ignore", "listen"]


class Listener(Protocol):
    """Receives reports on the thread that caused them.

    Arguments are handles of events and streams.
    """

    def event_recorded(self, event: int, stream: int) -> None:
        """``event`` was recorded on ``stream``."""
        ...

    def event_waited(self, event: int, stream: int) -> None:
        """``stream`` waits for ``event``."""
        ...

    def event_synchronized(self, event: int) -> None:
        """This thread waited for ``event``."""
        ...

    def event_forgotten(self, event: int) -> None:
        """``event`` was created or destroyed."""
        ...

    def stream_synchronized(self, stream: int) -> None:
        """This thread waited for ``stream``."""
        ...

    def device_synchronized(self) -> None:
        """This thread waited for all streams."""
        ...


_lock = threading.Lock()
_listeners: tuple[Listener, ...] = ()
_registered = False


def listen(listener: Listener) -> None:
    """Report to ``listener`` from now on; idempotent."""
    global _listeners  # noqa: PLW0603 - one process has one trace
    with _lock:
        _register()
        if listener not in _listeners:
            _listeners = (*_listeners, listener)


def ignore(listener: Listener) -> None:
    """Stop reporting to ``listener``; harmless if it never listened."""
    global _listeners  # noqa: PLW0603 - one process has one trace
    with _lock:
        _listeners = tuple(other for other in _listeners if other is not listener)


def _register() -> None:
    global _registered  # noqa: PLW0603 - torch keeps what it was given
    if _registered:
        return
    _registered = True
    if torch.cuda.is_available():
        torch._C._activate_gpu_trace()  # noqa: SLF001 - torch has no public way
    _gpu_trace.register_callback_for_event_creation(_event_forgotten)
    _gpu_trace.register_callback_for_event_deletion(_event_forgotten)
    _gpu_trace.register_callback_for_event_record(_event_recorded)
    _gpu_trace.register_callback_for_event_wait(_event_waited)
    _gpu_trace.register_callback_for_event_synchronization(_event_synchronized)
    _gpu_trace.register_callback_for_stream_synchronization(_stream_synchronized)
    _gpu_trace.register_callback_for_device_synchronization(_device_synchronized)


def _event_forgotten(event: int) -> None:
    for listener in _listeners:
        listener.event_forgotten(event)


def _event_recorded(event: int, stream: int) -> None:
    for listener in _listeners:
        listener.event_recorded(event, stream)


def _event_waited(event: int, stream: int) -> None:
    for listener in _listeners:
        listener.event_waited(event, stream)


def _event_synchronized(event: int) -> None:
    for listener in _listeners:
        listener.event_synchronized(event)


def _stream_synchronized(stream: int) -> None:
    for listener in _listeners:
        listener.stream_synchronized(stream)


def _device_synchronized() -> None:
    for listener in _listeners:
        listener.device_synchronized()
