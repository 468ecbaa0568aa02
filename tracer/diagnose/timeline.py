"""The timeline of a run: copies as slices, findings as instants, pages as flows.

A flow leaves the operation that last wrote a host page (a backup or a fetch) and arrives at each
operation that read it under the same generation (a load or a store).
"""

from collections.abc import Iterator
from typing import Any

from hicache_dbg.exporters.timeline import Instant, Slice
from hicache_dbg.tracer.diagnose.database import Database
from hicache_dbg.tracer.events import Finding
from hicache_dbg.tracer.words import counted

__all__ = ["findings_of", "slices_of"]

#: Host pages of each operation, one row per page.
_PAGES = """
    CREATE TABLE page_uses AS
    SELECT rank, pool, op, op_id, time_ns, op IN ('backup', 'fetch') AS writes,
           unnest(host_pages) AS page, unnest(generations) AS generation
    FROM copies WHERE op IN ('backup', 'fetch', 'load', 'store')
"""
#: Each pair of operations connected by pages, once, whatever the number of pages. Operation ids
#: restart with each process, so the time distinguishes them.
_FLOWS = """
    CREATE TABLE flows AS
    SELECT row_number() OVER () AS id, * FROM (
        SELECT DISTINCT reader.rank, reader.pool, writer.op AS from_op, writer.op_id AS from_id,
               writer.time_ns AS from_ns, reader.op AS to_op, reader.op_id AS to_id,
               reader.time_ns AS to_ns
        FROM (SELECT * FROM page_uses WHERE NOT writes) AS reader
        ASOF JOIN (SELECT * FROM page_uses WHERE writes) AS writer
        ON reader.rank = writer.rank AND reader.pool = writer.pool AND reader.page = writer.page
           AND reader.generation = writer.generation AND reader.time_ns >= writer.time_ns
    )
"""
_SLICES = """
    SELECT copies.rank, copies.pool, copies.op, copies.op_id,
           time_ns - (duration_us * 1000)::BIGINT AS start_ns, (duration_us * 1000)::BIGINT,
           layout, token_granular, pages, layers, bytes, status,
           verified, witnessed, mismatched, coalesce(list_sum(map_values(skipped)), 0),
           coalesce(leaving.ids, []), coalesce(arriving.ids, [])
    FROM copies
    LEFT JOIN (SELECT rank, pool, from_op AS op, from_id AS op_id, from_ns AS time_ns, list(id) AS ids
               FROM flows GROUP BY ALL) AS leaving USING (rank, pool, op, op_id, time_ns)
    LEFT JOIN (SELECT rank, pool, to_op AS op, to_id AS op_id, to_ns AS time_ns, list(id) AS ids
               FROM flows GROUP BY ALL) AS arriving USING (rank, pool, op, op_id, time_ns)
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


def slices_of(database: Database) -> Iterator[Slice]:
    """Yield one slice per copy, in the order of their start."""
    database.sql(_PAGES)
    database.sql(_FLOWS)
    for rows in database.batches(_SLICES):
        yield from map(_slice, rows)


def _slice(row: tuple[Any, ...]) -> Slice:
    rank, pool, op, op_id, start_ns, duration_ns, *told, leaving, arriving = row
    named = {"op_id": op_id, **dict(zip(_DETAILS, told, strict=True))}
    # An older recording, or an entry of the journal, may lack a field.
    details = {name: value for name, value in named.items() if value is not None}
    details["skipped"] = int(details["skipped"])
    bad = f", {details['mismatched']} mismatched" if details["mismatched"] else ""
    return Slice(
        track=(f"rank {rank}", pool, op),
        name=f"{op} of {counted(details.get('pages', 0), 'page')}{bad}",
        start_ns=start_ns,
        duration_ns=duration_ns,
        details=details,
        begins=tuple(leaving),
        ends=tuple(arriving),
    )


def findings_of(findings: list[Finding]) -> Iterator[Instant]:
    """Yield one instant per finding, beside the copies of its pool."""
    for finding in findings:
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
