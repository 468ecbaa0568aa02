"""The result of a run as data, and the two lines that summarize it."""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from hicache_dbg.repro.config import RunConfig
from hicache_dbg.repro.workload import Truth

__all__ = [
    "Divergence",
    "EngineStats",
    "Exchange",
    "RunResult",
    "SessionCounts",
    "SessionReport",
    "Status",
    "corruption_line",
    "wall_line",
]


class Status(StrEnum):
    """The outcome of a session, judged against the ground truth."""

    DONE = "done"
    MAXROUNDS = "maxrounds"
    LEAK = "leak"
    NO_TOOL = "no_tool"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first token that differs from the ground truth; -1 means that there is no token."""

    round: int
    token: int
    expected: int
    got: int


@dataclass(frozen=True, slots=True)
class SessionReport:
    """One session that ended.

    ``divergence`` is None exactly if every token equals the ground truth; ``error`` says what was
    raised, or is empty.
    """

    session: int
    status: Status
    rounds: int
    divergence: Divergence | None = None
    error: str = ""

    @property
    def corrupted(self) -> bool:
        """Whether the session differs from what it would have been without the tiers."""
        return self.divergence is not None or self.status is Status.ERROR


@dataclass(frozen=True, slots=True)
class SessionCounts:
    """Sessions by status; the five statuses add up to ``total``."""

    total: int = 0
    done: int = 0
    maxrounds: int = 0
    leak: int = 0
    no_tool: int = 0
    error: int = 0
    corrupted: int = 0

    @classmethod
    def of(cls, reports: tuple[SessionReport, ...]) -> "SessionCounts":
        """Count ``reports``."""
        by_status = Counter(report.status.value for report in reports)
        corrupted = sum(report.corrupted for report in reports)
        return cls(total=len(reports), corrupted=corrupted, **by_status)


@dataclass(frozen=True, slots=True)
class EngineStats:
    """What the engine did, in operations and pages.

    ``storage_misses`` counts pages that storage was asked for and did not deliver, by reason;
    ``unstored`` counts pages that it did not accept. ``handed_pages`` were handed from prefill to
    decode; ``prefills_lost`` counts prefill processes that died.
    """

    loads: int = 0
    backups: int = 0
    host_hit_pages: int = 0
    device_hit_pages: int = 0
    evicted_pages: int = 0
    stored_pages: int = 0
    fetched_pages: int = 0
    storage_misses: dict[str, int] = field(default_factory=dict)
    unstored: dict[str, int] = field(default_factory=dict)
    handed_pages: int = 0
    prefills_lost: int = 0


@dataclass(frozen=True, slots=True)
class Exchange:
    """One turn of a chat with a real model: the question, and the replies without and with tiers."""

    chat: int
    turn: int
    question: str
    expected: str
    got: str


@dataclass(frozen=True, slots=True)
class RunResult:
    """A whole run. After an interrupt it holds the sessions that had ended by then.

    ``truth_seconds`` is the part of ``wall_seconds`` spent on the ground truth. ``engine_error``
    describes copies that failed without a session noticing. ``truth`` can be passed to a later run;
    it is None if an interrupt came before it was known. ``exchanges`` is the conversation with a
    real model. ``occasion`` is what the fault needs in order to take effect.
    """

    config: RunConfig
    fault: str
    reports: tuple[SessionReport, ...]
    stats: EngineStats
    wall_seconds: float
    truth_seconds: float
    engine_error: str = ""
    interrupted: bool = False
    truth: Truth | None = field(default=None, repr=False, compare=False)
    exchanges: tuple[Exchange, ...] = ()
    occasion: str = ""

    @property
    def sessions(self) -> SessionCounts:
        """The sessions by status."""
        return SessionCounts.of(self.reports)

    @property
    def tiers_used(self) -> bool:
        """Whether any page came back from the last tier; without that, a run proves nothing."""
        if self.config.pd:
            return self.stats.handed_pages > 0
        last = self.stats.fetched_pages if self.config.storage else self.stats.host_hit_pages
        return last > 0

    @property
    def counts(self) -> dict[str, int]:
        """Statuses that occurred, the most frequent first."""
        return dict(Counter(report.status.value for report in self.reports).most_common())


def wall_line(result: RunResult) -> str:
    """Return the first line of the summary: the duration, and the sessions by status."""
    return f"wall={result.wall_seconds:.1f}s counts={result.counts}"


def corruption_line(result: RunResult) -> str:
    """Return the second line of the summary: how many sessions were corrupted, and how."""
    counts = result.sessions
    share = counts.corrupted / counts.total if counts.total else 0.0
    return (
        f"CORRUPTION sessions: {counts.corrupted}/{counts.total} = {share:.0%} "
        f"(leak={counts.leak} no_tool={counts.no_tool} error={counts.error} "
        f"ok-ish[done/maxrounds]={counts.done}/{counts.maxrounds})"
    )
