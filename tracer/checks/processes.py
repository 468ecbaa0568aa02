"""Sort what each process of a system stated out of its recordings, for a join to compare."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from hicache_dbg.tracer.events import Event, Health, MirrorInfo, Started, Stated, Topic

__all__ = ["LATE_NS", "Process", "processes"]

#: How much later than the first process the last may do the same thing: what a process that was
#: killed said within that time of its end may be missing from its recording.
LATE_NS = 10**9


#: Where a failure of the tracer may cost a statement.
_STATING = ("attach/", "bus", "handover/", "ranks/", "storage/keys")


@dataclass(slots=True)
class Process:
    """One rank of one role: its geometry and its statements, in the order of its recording."""

    role: str
    rank: int
    mirrors: dict[str, MirrorInfo] = field(default_factory=dict)
    stated: list[Stated] = field(default_factory=list)
    last_ns: int = 0
    #: When it announced its geometry for the last time.
    started_ns: int = 0
    #: Number of events its recording lost, or that a failure of the tracer kept from it: a missing
    #: statement may be among them.
    lost: int = 0
    #: Whether its recording ends with the closing event; if not, it was killed or is still running.
    closed: bool = False
    #: From when to when its recordings hold all it said, one span per recording.
    spans: list[tuple[int, int]] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.role} rank {self.rank}".strip()

    def on(self, topic: Topic) -> Iterator[Stated]:
        """Return its statements on ``topic``."""
        return (said for said in self.stated if said.topic is topic)

    def heard(self, time_ns: int) -> bool:
        """Return whether its recordings hold what it said at ``time_ns``."""
        return any(first <= time_ns <= last for first, last in self.spans)

    def told_all_by(self, time_ns: int) -> bool:
        """Return whether what its recordings do not hold was not said by ``time_ns``."""
        return not self.lost and self.heard(time_ns)


def processes(recordings: Sequence[Iterable[Event]]) -> list[Process]:
    """Return the processes of ``recordings``; a recording may hold several ranks.

    Two recordings of one rank are parts of one run if neither or both name a role.
    """
    found: dict[tuple[str, int], Process] = {}
    for recording in recordings:
        parts: dict[int, Process] = {}
        first: dict[int, int] = {}
        for event in recording:
            part = parts.setdefault(event.rank, Process("", event.rank))
            first[event.rank] = min(first.get(event.rank, event.time_ns), event.time_ns)
            part.last_ns = max(part.last_ns, event.time_ns)
            if isinstance(event, Started):
                part.mirrors |= {mirror.pool: mirror for mirror in event.mirrors}
                part.started_ns = max(part.started_ns, event.time_ns)
            elif isinstance(event, Health):
                part.lost = max(part.lost, _lost(event))
                part.closed = part.closed or event.closing
            elif isinstance(event, Stated) and event.values:
                part.role = part.role or event.role
                part.stated.append(event)
        for part in parts.values():
            known = found.setdefault((part.role, part.rank), Process(part.role, part.rank))
            known.mirrors |= part.mirrors
            known.stated += part.stated
            known.last_ns = max(known.last_ns, part.last_ns)
            known.started_ns = max(known.started_ns, part.started_ns)
            known.lost = max(known.lost, part.lost)
            known.closed = known.closed or part.closed
            last_ns = part.last_ns if part.closed else part.last_ns - LATE_NS
            known.spans.append((first[part.rank], last_ns))
    return list(found.values())


def _lost(word: Health) -> int:
    ways = ("bus/", "recording/")
    dropped = sum(count for where, count in word.dropped.items() if where.startswith(ways))
    return dropped + sum(n for at, n in word.errors.items() if at.startswith(_STATING))
