"""What an end says of its contract, and the findings that a refused one makes."""

import time

from hicache_dbg.pools.handover.errors import ContractRefused
from hicache_dbg.pools.handover.link import Link
from hicache_dbg.tracer.checks.contract import compare_fields
from hicache_dbg.tracer.events import Finding, Topic
from hicache_dbg.tracer.session import Session

__all__ = ["refusals", "state_contract"]


def state_contract(session: Session, link: Link) -> None:
    """State the fields that belong to no pool; the others follow from the mirrors' geometry."""
    for field, value in link.ours.contract.items():
        if "." not in field:
            session.state(Topic.CONTRACT, (value,), role=link.role, key=field)


def refusals(link: Link, refused: ContractRefused) -> list[Finding]:
    """Return one finding per pool, at prefill only: a join of both recordings finds it as well."""
    if link.role != "prefill":
        return []
    by_pool: dict[str, list[dict[str, str]]] = {}
    for name, *values in refused.differences:
        pool, _, field = name.rpartition(".") if "." in name else ("", "", name)
        pool, _, component = pool.partition(".")
        ends = by_pool.setdefault(pool, [{}, {}])
        for end, value in zip(ends, values, strict=True):
            end[f"{component}.{field}" if component else field] = value
    now = time.time_ns()
    return [
        finding
        for pool, (ours, theirs) in by_pool.items()
        for finding in compare_fields(pool, ours, theirs, time_ns=now)
    ]
