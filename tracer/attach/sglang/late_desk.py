"""Hands notes to the bus in order; a note about indices on a GPU waits until they have been read."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hicache_dbg.tracer.attach.notes import Note
from hicache_dbg.tracer.attach.sglang.late_indices import Kept, LateIndices
from hicache_dbg.tracer.attach.sglang.say import Say
from hicache_dbg.tracer.attach.sglang.session import SglangSession
from hicache_dbg.tracer.events import Event, Finding
from hicache_dbg.tracer.probe import Probe
from hicache_dbg.tracer.selfcheck import InternalErrors
from hicache_dbg.tracer.settings import Settings

__all__ = ["LateDesk"]


@dataclass(frozen=True, slots=True)
class LateDesk:
    """A :class:`~hicache_dbg.tracer.attach.notes.Desk` whose notes may be about :class:`Kept` indices."""

    session: SglangSession
    indices: LateIndices
    say: Say

    @property
    def errors(self) -> InternalErrors:
        """The session's errors."""
        return self.session.errors

    @property
    def settings(self) -> Settings:
        """The session's settings."""
        return self.session.settings

    @property
    def probe(self) -> Probe:
        """The session's probe, which tells whether anything is traced now."""
        return self.session.probe

    def check(self, detect: Callable[[], Sequence[Finding]]) -> bool:
        """Run ``detect`` in its turn; return False if there was no room for it."""
        return self.session.check(detect)

    def push(self, record: Note) -> bool:
        """Run a note in its turn, once its indices are here; return False if there was no room for it."""
        if isinstance(record.about, Kept) and not record.about.settled:
            return self.session.bus.push(_LateNote(record, record.about, self))
        return self.session.push(record)


@dataclass(frozen=True, slots=True)
class _LateNote:
    """The bus's record of a note that waits for a device, as does everything behind it."""

    note: Note
    about: Kept
    desk: LateDesk

    def ready(self) -> bool:
        return self.desk.indices.poll(self.about)

    def events(self) -> Sequence[Event]:
        self.desk.say.publish(self.note.events())
        return ()
