"""From a database of events to the counts that the hypotheses use."""

from hicache_dbg.exporters.recording_format import Header
from hicache_dbg.tracer.diagnose.database import Database
from hicache_dbg.tracer.diagnose.evidence import Evidence, Tiles
from hicache_dbg.tracer.events import SkipReason

__all__ = ["gather"]

#: One pass over the copies. A copy's ``skipped`` maps reasons to tiles: copies with the same
#: reasons form one group, in which the tiles of the n-th reason are summed.
_COUNTS = f"""
    SELECT pool, op, token_granular, layout, map_keys(skipped) AS reasons,
           count(*), sum(verified), sum(witnessed), sum(mismatched),
           [{", ".join(f"sum(map_values(skipped)[{n + 1}])" for n in range(len(SkipReason)))}]
    FROM copies GROUP BY ALL ORDER BY ALL
"""  # noqa: S608 - nothing of it comes from outside


def gather(database: Database) -> Evidence:
    """Count everything in ``database``: copies in one query, the rare events one by one."""
    evidence = Evidence(sql=database.sql, elsewhere=database.elsewhere)
    for event in database.rare():
        if isinstance(event, Header):
            evidence.begin(event.run_id)
        else:
            evidence.add(event)
    evidence.unread = database.unread
    for pool, op, granular, layout, reasons, count, good, kept, bad, skipped in database.sql(
        _COUNTS
    ):
        evidence.paths[pool, op, granular, layout] += count
        by_reason = {reason: int(n) for reason, n in zip(reasons or (), skipped, strict=False)}
        counted = Tiles(int(good), int(kept), int(bad), sum(by_reason.values()))
        evidence.by_pool.setdefault((pool, op), Tiles()).__iadd__(counted)
        evidence.tiles += counted
        evidence.skipped.update(by_reason)
    return evidence
