"""A session for loads that come as one call per layer."""

from collections.abc import Sequence

import msgspec

from hicache_dbg.tracer.attach.sglang.probe import LayerProbe
from hicache_dbg.tracer.events import Event
from hicache_dbg.tracer.probe import CopyRecord, Digester
from hicache_dbg.tracer.selfcheck import InternalErrors
from hicache_dbg.tracer.session import Session
from hicache_dbg.tracer.settings import Action, Settings
from hicache_dbg.tracer.sink import Sink

__all__ = ["SglangSession"]


class SglangSession(Session):
    """A session with its own kind of probe."""

    probe: LayerProbe

    def __init__(
        self,
        settings: Settings,
        sinks: Sequence[Sink],
        digester: Digester,
        *,
        version: str,
        place: str = "",
        errors: InternalErrors | None = None,
    ) -> None:
        super().__init__(
            settings,
            sinks,
            digester,
            system="sglang",
            version=version,
            place=place,
            errors=errors,
        )
        #: Whether a finding may have to stop the host.
        self.stops = settings.action is Action.RAISE
        self.probe = LayerProbe(
            bus=self.bus,
            digester=digester,
            settings=settings,
            errors=self.errors,
            judge=self._judged,
            enforce=self.enforce,
        )

    def _judged(self, record: CopyRecord) -> list[Event]:
        """Judge as the base class does, and add the requests that the copy served."""
        events, names = super()._judged(record), getattr(record.copy, "names", ())
        return [msgspec.structs.replace(one, requests=names) for one in events] if names else events
