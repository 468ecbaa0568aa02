"""The timeline of a run: copies as slices, findings as instants, pages as flows.

A flow leaves the operation that last wrote a host page (a backup or a fetch) and arrives at each
operation that read it under the same generation (a load or a store).
"""

from collections.abc import Iterator, Sequence
from typing import Any

from hicache_dbg.exporters.timeline import Instant, Kind, Slice
from hicache_dbg.tracer.diagnose.database import Database
from hicache_dbg.tracer.events import Finding
from hicache_dbg.tracer.words import counted

__all__ = ["findings_of", "slices_of", "span_around"]

#: Half the length of the time around a finding, in nanoseconds.
AROUND_NS = 5 * 10**9
#: A span of time: its first and last nanosecond.
Span = tuple[int, int]

#: The operations to show; a kept table numbers its rows.
_SHOWN = "CREATE OR REPLACE VIEW shown AS SELECT rowid AS use, * FROM copies"
#: Host pages of each operation, one row per page. One number stands for rank, pool, page and
#: generation, because a long run has millions of rows: of 10^7 different ones, two are the same with
#: a chance of 10^-5.
_PAGES = """
    CREATE OR REPLACE TABLE page_uses AS
    SELECT use, time_ns, writes, hash(rank, pool, page, generation) AS page
    FROM (SELECT use, time_ns, rank, pool, op IN ('backup', 'fetch') AS writes,
                 unnest(host_pages) AS page, unnest(generations) AS generation
          FROM shown WHERE op IN ('backup', 'fetch', 'load', 'store'))
    WHERE page IS NOT NULL AND generation IS NOT NULL
"""
#: Each pair of operations connected by pages, once, whatever the number of pages.
_FLOWS = """
    CREATE OR REPLACE TABLE flows AS
    SELECT row_number() OVER () AS id, * FROM (
        SELECT DISTINCT writer.use AS from_use, reader.use AS to_use
        FROM (SELECT * FROM page_uses WHERE NOT writes) AS reader
        ASOF JOIN (SELECT * FROM page_uses WHERE writes) AS writer
        ON reader.page = writer.page AND reader.time_ns >= writer.time_ns
    )
"""
_SLICES = """
    SELECT time_ns - (duration_us * 1000)::BIGINT AS start_ns, (duration_us * 1000)::BIGINT, op_id,
           leaving.ids, arriving.ids, rank, pool, op,
           layout, token_granular, pages, layers, bytes, status,
           verified, witnessed, mismatched, coalesce(list_sum(map_values(skipped)), 0)::BIGINT
    FROM shown
    LEFT JOIN (SELECT from_use AS use, list(id) AS ids FROM flows GROUP BY ALL) AS leaving
        USING (use)
    LEFT JOIN (SELECT to_use AS use, list(id) AS ids FROM flows GROUP BY ALL) AS arriving
        USING (use)
    ORDER BY start_ns
"""
_DETAILS = (
    "layout",
    "token_granular",
    "pages",
    "layers",
    "bytes",
    "status",
    "verified",
    "witnessed",
    "mismatched",
    "skipped",
)
#: Most kinds of slices that are remembered.
_MOST_KINDS = 1 << 16


def span_around(findings: Sequence[Finding], cls: str) -> Span | None:
    """Return the time around the first finding of a class, or of any; None if there is none."""
    times = [finding.time_ns for finding in findings if cls in (finding.cls, "any")]
    return (min(times) - AROUND_NS, min(times) + AROUND_NS) if times else None


def slices_of(database: Database, span: Span | None = None) -> Iterator[Slice]:
    """Yield one slice per copy, in the order of their start.

    ``database`` keeps its copies. With a ``span``, only copies that ended in it.
    """
    within = f" WHERE time_ns BETWEEN {span[0]:d} AND {span[1]:d}" if span else ""
    database.sql(_SHOWN + within)
    database.sql(_PAGES)
    database.sql(_FLOWS)
    kinds: dict[tuple[Any, ...], Kind] = {}
    for rows in database.batches(_SLICES):
        for start_ns, duration_ns, op_id, leaving, arriving, *told in rows:
            common = tuple(told)
            kind = kinds.get(common)
            if kind is None:
                if len(kinds) >= _MOST_KINDS:
                    kinds.clear()
                kind = kinds[common] = _kind(*common)
            yield Slice(kind, start_ns, duration_ns, op_id, leaving or (), arriving or ())


def _kind(rank: int, pool: str, op: str, *told: Any) -> Kind:
    # An older recording, or an entry of the journal, may lack a field.
    details = {name: value for name, value in zip(_DETAILS, told, strict=True) if value is not None}
    bad = f", {details['mismatched']} mismatched" if details["mismatched"] else ""
    return Kind(
        track=(f"rank {rank}", pool, op),
        name=f"{op} of {counted(details.get('pages', 0), 'page')}{bad}",
        details=details,
    )


def findings_of(findings: Sequence[Finding], span: Span | None = None) -> Iterator[Instant]:
    """Yield one instant per finding, beside the copies of its pool; with a ``span``, those in it."""
    for finding in findings:
        if span and not span[0] <= finding.time_ns <= span[1]:
            continue
        yield Instant(
            track=(f"rank {finding.rank}", finding.pool, "findings"),
            name=finding.cls.value,
            time_ns=finding.time_ns,
            details={
                "message": finding.message,
                "layer": finding.layer,
                "pages": ", ".join(map(str, finding.pages)),
                "expected": finding.expected,
                "got": finding.got,
                "advice": finding.advice,
            },
        )
