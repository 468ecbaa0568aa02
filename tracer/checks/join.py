"""Join recordings of several processes: ranks with ranks of their role, prefill with decode."""

from collections.abc import Iterable, Sequence

from hicache_dbg.tracer.checks.contract import check_contract
from hicache_dbg.tracer.checks.keys import check_keys
from hicache_dbg.tracer.checks.processes import Process, processes
from hicache_dbg.tracer.checks.ranks import check_ranks
from hicache_dbg.tracer.events import Event, Finding

__all__ = ["join"]


def join(recordings: Sequence[Iterable[Event]]) -> list[Finding]:
    """Return what the processes that wrote ``recordings`` disagree about.

    Each item holds the events of one recording. Ranks are compared with those of their own role,
    and each decode rank with the prefill rank of the same number, or else with the first one.
    """
    roles: dict[str, list[Process]] = {}
    for process in processes(recordings):
        roles.setdefault(process.role, []).append(process)
    everybody = [process for ranks in roles.values() for process in ranks]
    found = check_keys(everybody)
    found += [finding for ranks in roles.values() for finding in check_ranks(ranks)]
    prefills = {process.rank: process for process in roles.get("prefill", [])}
    for decode in roles.get("decode", []):
        prefill = prefills.get(decode.rank, next(iter(prefills.values()), None))
        if prefill is not None:
            found += check_contract(prefill, decode)
    return found
