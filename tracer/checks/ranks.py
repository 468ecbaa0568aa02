"""Check that the ranks of one engine agree on capacities, hits, collective calls, and equal tiles.

Ranks that decide independently and differently hang each other, or use a page that one of them does
not have.
"""

from collections.abc import Iterator, Sequence

from hicache_dbg.tracer.checks.processes import LATE_NS, Process
from hicache_dbg.tracer.checks.tiles_joined import differing_tiles
from hicache_dbg.tracer.events import EndInfo, FaultClass, Finding, Stated, Topic
from hicache_dbg.tracer.words import counted

__all__ = ["CHECK", "check_ranks", "collective_gap"]

CHECK = "ranks"
Values = dict[str, int]


def check_ranks(ranks: Sequence[Process]) -> list[Finding]:
    """Return what ``ranks`` of one role disagree about; empty for fewer than two."""
    if len(ranks) < 2:
        return []
    return [
        *_capacities(ranks),
        *_hits(ranks),
        *collective_gap(ranks),
        *differing_tiles(
            ranks,
            FaultClass.RANK_DIVERGENCE,
            CHECK,
            "ranks hold different bytes of one tile that all of them should have",
            "look at what each rank computes or loads by itself; broadcast decisions from one rank",
        ),
    ]


def _capacities(ranks: Sequence[Process]) -> Iterator[Finding]:
    pools = dict.fromkeys(pool for rank in ranks for pool in rank.mirrors)
    for pool in pools:
        for tier in ("device", "host"):
            has = {
                str(rank): _pages(getattr(rank.mirrors[pool], tier))
                for rank in ranks
                if pool in rank.mirrors
            }
            if len(set(has.values())) > 1:
                usable = min(has.values())
                yield _finding(
                    ranks,
                    pool,
                    f"ranks have different numbers of {tier} pages ({_words(has)}): "
                    f"every rank has {usable}, page {usable} is out of range on {_least(has)}",
                    expected=f"{counted(usable, 'page')} on every rank",
                    got=_words(has),
                    advice="agree on the least capacity of all ranks at start",
                )


def _hits(ranks: Sequence[Process]) -> Iterator[Finding]:
    """Report the first request for which ranks found different page counts, and how many there are.

    If a recording lost events, repeated lookups of a request cannot be matched, so nothing is
    reported.
    """
    if any(rank.lost for rank in ranks):
        return
    found: dict[str, Values] = {}
    for rank in ranks:
        for said in rank.on(Topic.HIT_PAGES):
            # Number the lookups of a request: a later one must not be compared with an earlier one.
            found.setdefault(f"{said.request}#{_turn(found, said, str(rank))}", {})[str(rank)] = (
                int(said.values[0])
            )
    wrong = {key: has for key, has in found.items() if len(set(has.values())) > 1}
    if wrong:
        key, has = next(iter(wrong.items()))
        agreed = min(has.values())
        yield _finding(
            ranks,
            "+".join(ranks[0].mirrors),
            f"ranks found different prefixes for {counted(len(wrong), 'request')}, the first "
            f"{key.partition('#')[0]} ({_words(has)} pages): {agreed} may be used",
            expected=f"{counted(agreed, 'page')} on every rank",
            got=_words(has),
            advice="agree on the least hit of all ranks before any of them loads",
        )


def _turn(found: dict[str, Values], said: Stated, rank: str) -> int:
    turn = 0
    while rank in found.get(f"{said.request}#{turn}", {}):
        turn += 1
    return turn


def collective_gap(ranks: Sequence[Process]) -> Iterator[Finding]:
    """Report the first collective call that some rank did not make, or made in another order.

    A rank whose recording ends before the others made the call is not accused: it may have made it.
    If any recording lost events nothing is reported: the call may be among them, and all later ones
    shift.
    """
    if any(rank.lost for rank in ranks):
        return
    made = [(rank, list(rank.on(Topic.COLLECTIVE))) for rank in ranks]
    calls = {str(rank): [said.values[0] for said in said_all] for rank, said_all in made}
    most = max((len(names) for names in calls.values()), default=0)
    for at in range(most):
        here = {rank: names[at] for rank, names in calls.items() if at < len(names)}
        when = min(said[at].time_ns for _, said in made if at < len(said))
        absent = [str(rank) for rank, said in made if at >= len(said) and _lived_on(rank, when)]
        if len(set(here.values())) == 1 and not absent:
            continue
        name = next(iter(here.values()))
        words = (
            f"{' and '.join(absent)} never made collective call #{at + 1} ({name}), which "
            f"{' and '.join(here)} made"
            if absent
            else f"collective call #{at + 1} is not the same on all ranks ({_texts(here)})"
        )
        yield _finding(
            ranks,
            "",
            f"{words}: those that wait for it hang",
            expected=f"call #{at + 1} {name} on every rank",
            got=_texts(here | dict.fromkeys(absent, "none")),
            advice="take every decision that leads to a collective from values that all ranks have",
        )
        return


def _lived_on(rank: Process, when: int) -> bool:
    """Return whether the rank had time to reach a call; killed ranks end at different moments."""
    return rank.last_ns >= when + (0 if rank.closed else LATE_NS)


def _pages(end: EndInfo) -> int:
    return min((component.pages for component in end.components), default=0)


def _least(has: Values) -> str:
    return min(has, key=lambda rank: has[rank])


def _words(has: Values) -> str:
    return ", ".join(f"{rank}: {value}" for rank, value in has.items())


def _texts(has: dict[str, str]) -> str:
    return ", ".join(f"{rank}: {value}" for rank, value in has.items())


def _finding(
    ranks: Sequence[Process], pool: str, words: str, *, expected: str, got: str, advice: str
) -> Finding:
    return Finding(
        time_ns=max(rank.last_ns for rank in ranks),
        cls=FaultClass.RANK_DIVERGENCE,
        pool=pool,
        message=f"{pool}: {words}" if pool else words,
        expected=expected,
        got=got,
        advice=advice,
        check=CHECK,
    )
