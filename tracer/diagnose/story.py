"""What happened to one bad page: the operations it took part in, and the conflicting accesses."""

import re
from collections.abc import Iterator
from typing import Any

from hicache_dbg.exporters.html.page import Step, Story
from hicache_dbg.tracer.diagnose.database import Database
from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.events import Finding
from hicache_dbg.tracer.words import counted

__all__ = ["accesses", "story_of"]

#: Number of operations shown up to and including the first bad one, and after it.
BEFORE, AFTER = 10, 3

_FIRST_BAD = """
    SELECT pool, rank, bad_tiles[1][2], bad_tiles[1][1], time_ns
    FROM copies WHERE len(bad_tiles) > 0 AND len(bad_tiles[1]) = 2 ORDER BY time_ns LIMIT 1
"""
#: One page's operations; ``{end}`` is the column to search for the page's id.
_STEPS = """
    SELECT time_ns, op, op_id, verified, witnessed, mismatched,
           coalesce(list_sum(map_values(skipped)), 0), duration_us, status,
           host_pages[list_position({end}, ?)], device_pages[list_position({end}, ?)],
           generations[list_position({end}, ?)],
           list_bool_or([tile[2] = ? FOR tile IN bad_tiles])
    FROM copies WHERE pool = ? AND rank = ? AND list_contains({end}, ?) AND time_ns {when} ?
    ORDER BY time_ns {order} LIMIT ?
"""
_COUNT = "SELECT count(*) FROM copies WHERE pool = ? AND rank = ? AND list_contains({end}, ?)"
#: The parts of a violation's report that name accesses.
_ACCESSES = re.compile(
    r"(?P<part>this access|previous access|allocated): (?P<what>.*?)(?=; (?:previous access|allocated): |$)"
)
_PARTS = {
    "allocated": "handed out",
    "previous access": "first",
    "this access": "then, which must not be",
}


def story_of(database: Database, evidence: Evidence, again: str) -> Story | None:
    """Tell the story of the first tile that differed, or else of the first page of a finding.

    ``again`` is the command that reads the events again.
    """
    first = database.sql(_FIRST_BAD)
    conflicts = [f for f in evidence.causes() if "; this access: " in f.message]
    if first:
        pool, rank, page, layer, until = first[0]
        # Accesses to other pools are unrelated.
        own = next((f for f in conflicts if pool in f.pool.split("+")), None)
        pair = tuple(accesses(own)) if own is not None else ()
        title = f"The first bad tile: {pool}, host page {page}, layer {layer}"
        place = "host_pages", pool, rank, page
        steps = list(_steps(database, *place, until))
        return Story(title, steps, pair, _unshown(database, *place, len(steps), again))
    conflict = next(iter(conflicts), None)
    if conflict is None or not conflict.pages:
        return None
    pool, page = conflict.pool.split("+")[0], conflict.pages[0]
    end = "device" if "device page" in conflict.message.partition("; this access: ")[0] else "host"
    title = f"The first page that a rule was broken for: {conflict.pool}, {end} page {page}"
    place = f"{end}_pages", pool, conflict.rank, page
    steps = list(_steps(database, *place, conflict.time_ns))
    unshown = _unshown(database, *place, len(steps), again)
    return Story(title, steps, tuple(accesses(conflict)), unshown)


def accesses(finding: Finding) -> Iterator[Step]:
    """Yield the two conflicting accesses, and where the page was allocated, in order of time."""
    told = {match["part"]: match["what"] for match in _ACCESSES.finditer(finding.message)}
    for part, name in _PARTS.items():
        what = told.get(part, "")
        if what and not what.startswith(("none on record", "unknown")):
            act, _, site = what.partition(" at ")
            here, _, callers = site.partition(" < ")
            yield Step(
                when=name,
                what=f"{act} at {here}" if here else act,
                detail=callers.replace(" < ", ", from "),
                bad=part == "this access",
            )


def _steps(  # noqa: PLR0917
    database: Database, end: str, pool: str, rank: int, page: int, until: int
) -> Iterator[Step]:
    def rows(when: str, order: str, most: int) -> list[tuple[Any, ...]]:
        query = _STEPS.format(end=end, when=when, order=order)
        return database.sql(query, [page, page, page, page, pool, rank, page, until, most])

    seen = [*reversed(rows("<=", "DESC", BEFORE)), *rows(">", "ASC", AFTER)]
    for row in seen:
        yield _step(row, seen[0][0])


def _unshown(  # noqa: PLR0917
    database: Database, end: str, pool: str, rank: int, page: int, shown: int, again: str
) -> str:
    """Say how many of a page's operations are not shown, and which command shows them."""
    query = _COUNT.format(end=end)
    ((every,),) = database.sql(query, [pool, rank, page])
    if every == shown:
        return ""
    return (
        f"The page took part in {counted(every, 'operation', ',')}, of which those around the first bad one "
        f"are shown; {again} --perfetto FILE draws all of them."
    )


def _step(row: tuple[Any, ...], zero: int) -> Step:
    at, op, op_id, verified, witnessed, mismatched, skipped, took, status, *where, bad = row
    host, device, generation = where
    way = {
        "backup": f"device page {device} to host page {host}",
        "load": f"host page {host} to device page {device}",
    }
    outcomes = {
        "differ": mismatched,
        "came back equal": verified,
        "backed up": witnessed,
        "were not looked at": int(skipped),
    }
    told = ", ".join(f"{count} {name}" for name, count in outcomes.items() if count)
    return Step(
        when=f"+{(at - zero) / 1e6:.3f} ms",
        what=f"{op} {op_id}, {way.get(op, f'host page {host}')}"
        + (": this page differs" if bad else "")
        + ("" if status == "ok" else f": {status}"),
        detail=f"tiles of the operation: {told or 'none was looked at'}; generation {generation}, {took:.0f} us",
        bad=bool(bad) or status != "ok",
    )
