"""From the gate to an attachment: settings, rank, and a runtime once there is a pool."""

import atexit
from collections.abc import Callable, Sequence
from importlib import import_module

from hicache_dbg.tracer.attach.sglang.attachment import SglangAttachment
from hicache_dbg.tracer.attach.sglang.place import Place, of_caller, placed
from hicache_dbg.tracer.attach.sglang.session import SglangSession
from hicache_dbg.tracer.digest.tiles import TileDigester
from hicache_dbg.tracer.runtime import Runtime
from hicache_dbg.tracer.selfcheck import InternalErrors
from hicache_dbg.tracer.settings import Gate, Settings
from hicache_dbg.tracer.sink import Sink

__all__ = ["begin", "current", "install", "sglang_version", "trace"]

_installed: list[SglangAttachment] = []


def current() -> SglangAttachment | None:
    """Return the attachment installed in this process, if any."""
    return _installed[0] if _installed else None


def install() -> SglangAttachment | None:
    """Attach as the environment says; idempotent.

    If armed, nothing is attached: the package itself has started the switch's listener.

    Raises:
        SettingsError: a variable holds a value that is not allowed.
    """
    settings = Settings.from_environ()
    if settings.gate is not Gate.ON or _installed:
        return current()
    _installed.append(trace(settings))
    return current()


def trace(settings: Settings, *, sinks: Sequence[Sink] | None = None) -> SglangAttachment:
    """Attach under ``settings``; ``sinks`` replaces those that they ask for."""
    place = of_caller()

    def start() -> SglangSession:
        runtime, session = begin(placed(settings, place), attachment, sinks, place)
        atexit.register(runtime.stop)
        return session

    attachment = SglangAttachment(sglang_version(), start, settings.native)
    attachment.attach()
    return attachment


def begin(
    settings: Settings,
    attachment: SglangAttachment,
    sinks: Sequence[Sink] | None,
    place: Place | None,
    on_session: Callable[[SglangSession], object] = lambda _: None,
) -> tuple[Runtime, SglangSession]:
    """Create the session of an attachment, and the runtime that ends both.

    ``settings`` are this rank's own. ``on_session`` is called with the session before anything is
    attached.
    """
    sessions: list[SglangSession] = []

    def build(
        ranked: Settings, chosen: Sequence[Sink], errors: InternalErrors
    ) -> tuple[SglangSession, SglangAttachment]:
        session = SglangSession(
            ranked,
            chosen,
            TileDigester(),
            version=attachment.version,
            errors=errors,
            place=str(place or ""),
        )
        sessions.append(session)
        on_session(session)
        return session, attachment

    return Runtime.start(settings, sinks=sinks, build=build), sessions[0]


def sglang_version() -> str:
    """Return the version of the imported SGLang."""
    return str(import_module("sglang.version").__version__)
