"""What happened to one bad page: the operations it was in, and the accesses that conflict."""

import re
from collections.abc import Iterator
from typing import Any

from hicache_dbg.exporters.html.page import Step, Story
from hicache_dbg.tracer.diagnose.database import Database
from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.events import Finding

__all__ = ["story_of"]

#: Operations shown up to and including the first bad one.
MOST_STEPS = 12

_FIRST_BAD = """
    SELECT pool, rank, bad_tiles[1][2], bad_tiles[1][1], time_ns
    FROM copies WHERE len(bad_tiles) > 0 ORDER BY time_ns LIMIT 1
"""
_STEPS = """
    SELECT time_ns, op, op_id, verified, witnessed, mismatched,
           coalesce(list_sum(map_values(skipped)), 0), duration_us, status,
           device_pages[list_position(host_pages, ?)], generations[list_position(host_pages, ?)]
    FROM copies WHERE pool = ? AND rank = ? AND list_contains(host_pages, ?) AND time_ns <= ?
    ORDER BY time_ns DESC, op_id DESC LIMIT ?
"""
#: The parts of a violation's report that name accesses.
_ACCESSES = re.compile(
    r"(?P<part>this access|previous access|allocated): (?P<what>.*?)(?=; (?:previous access|allocated): |$)"
)
_PARTS = {
    "allocated": "handed out",
    "previous access": "conflicting access, first",
    "this access": "conflicting access, second",
}


def story_of(database: Database, evidence: Evidence) -> Story | None:
    """The story of the first tile that differed, else of the first page a finding names."""
    first = database.sql(_FIRST_BAD)
    conflict = _conflict(evidence)
    if first:
        pool, rank, page, layer, until = first[0]
        steps = [*_steps(database, pool, rank, page, until)]
        title = f"The first bad tile: {pool}, host page {page}, layer {layer}"
        return Story(title=title, steps=[*steps, *_pair(conflict)])
    if conflict is not None and conflict.pages:
        pool, page = conflict.pool.split("+")[0], conflict.pages[0]
        steps = [*_steps(database, pool, conflict.rank, page, conflict.time_ns)]
        title = f"The first page that two accesses conflict in: {conflict.pool}, page {page}"
        return Story(title=title, steps=[*steps, *_pair(conflict)])
    return None


def _conflict(evidence: Evidence) -> Finding | None:
    return next((f for f in evidence.causes() if "previous access: " in f.message), None)


def _steps(database: Database, pool: str, rank: int, page: int, until: int) -> Iterator[Step]:
    rows = database.sql(_STEPS, [page, page, pool, rank, page, until, MOST_STEPS])
    if not rows:
        return
    zero = rows[-1][0]
    for row in reversed(rows):
        yield _step(row, zero)


def _step(row: tuple[Any, ...], zero: int) -> Step:
    (
        at,
        op,
        op_id,
        verified,
        witnessed,
        mismatched,
        skipped,
        duration,
        status,
        device,
        generation,
    ) = row
    outcomes = {
        "differ": mismatched,
        "equal": verified,
        "witnessed": witnessed,
        "not looked at": int(skipped),
    }
    told = ", ".join(f"{count} {name}" for name, count in outcomes.items() if count)
    way = "from" if op in {"backup", "recv"} else "to"
    other = (
        f" {way} device page {device}" if device is not None and op in {"backup", "load"} else ""
    )
    return Step(
        when=f"+{(at - zero) / 1e6:.3f} ms",
        what=f"{op}{other}: {told or 'no tile looked at'}",
        detail=f"operation {op_id}, generation {generation}, {duration:.0f} us"
        + ("" if status == "ok" else f", status {status}"),
        bad=bool(mismatched) or status != "ok",
    )


def _pair(conflict: Finding | None) -> Iterator[Step]:
    """The two accesses that do not go together, and where the page came from."""
    if conflict is None:
        return
    told = {match["part"]: match["what"] for match in _ACCESSES.finditer(conflict.message)}
    for part, name in _PARTS.items():
        if part in told:
            yield Step(when="", what=told[part], part=name, bad=part == "this access")
