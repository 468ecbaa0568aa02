"""Check that prefill and decode mean the same bytes: geometry by field, counts, and every tile.

Pure functions over what both ends stated. A hash of the whole contract would only tell that
something differs; a field tells what.
"""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median_low

from hicache_dbg.tracer.checks.late_writes import late_writes
from hicache_dbg.tracer.checks.processes import Process
from hicache_dbg.tracer.checks.tiles_joined import differing_tiles
from hicache_dbg.tracer.events import EndInfo, FaultClass, Finding, MirrorInfo, Stated, Topic
from hicache_dbg.tracer.words import counted

__all__ = ["CHECK", "NOT_TAKEN", "WHOLE", "check_contract", "compare_fields", "fields_of"]

CHECK = "contract"
#: The outcomes of a handover: both ends finished it; an end gave it up.
WHOLE, NOT_TAKEN = "complete", "not taken over"
Fields = Mapping[str, str]


def check_contract(prefill: Process, decode: Process) -> list[Finding]:
    """Return what two ends disagree about: in geometry, in counts, and in bytes.

    What an end does not state is unknown, rather than absent, if its recording ends in the handshake
    or lost events.
    """
    ends = prefill, decode
    said = _contract(prefill), _contract(decode)
    whole = tuple(end.told_all_by(max(_when(end), default=0)) for end in ends)
    # If one end states no contract it is not compared: that part of its recording may be removed.
    found = (
        compare_fields("", said[0], said[1], whole=whole, time_ns=decode.last_ns)
        if all(said)
        else []
    )
    found += _unsplittable(*said, time_ns=decode.last_ns)
    split = said[0].get("tp") != said[1].get("tp")
    mirrored = prefill.mirrors and decode.mirrors
    whole = tuple(end.told_all_by(end.started_ns) for end in ends)
    for pool in dict.fromkeys((*prefill.mirrors, *decode.mirrors)) if mirrored else ():
        fields = [fields_of(end.mirrors.get(pool)) for end in ends]
        if split and "heads" in {end.get(f"split.{pool}") for end in said}:
            # A slot holds a different share of the heads at each end: byte counts are incomparable.
            fields = [{k: v for k, v in end.items() if "bytes" not in k} for end in fields]
        found += compare_fields(pool, fields[0], fields[1], whole=whole, time_ns=decode.last_ns)
    found += _counts(prefill, decode)
    found += late_writes(prefill, decode, WHOLE)
    found += differing_tiles(
        (prefill, decode),
        FaultClass.PD_CONTRACT,
        CHECK,
        "a tile arrived different",
        "compare what both ends take for the tile's address, and whether the source was still the "
        "request's when it was read",
    )
    return found


def fields_of(mirror: MirrorInfo | None) -> dict[str, str]:
    """Return the geometry that both ends must share, by field; empty if there is no such pool."""
    if mirror is None:
        return {}
    fields = {
        "index_unit": mirror.index_unit,
        "tokens_per_page": f"{mirror.tokens_per_page}",
        **_end(mirror.device),
    }
    return {name: value for name, value in fields.items() if value}


def _end(end: EndInfo) -> dict[str, str]:
    fields = {"slots_per_page": f"{end.slots_per_page}", "layout": end.layout}
    for part in end.components:
        fields |= {
            f"{part.name}.dtype": part.dtype,
            f"{part.name}.slot_bytes": f"{part.slot_bytes}",
            f"{part.name}.page_bytes": f"{part.page_bytes}",
            f"{part.name}.layers": f"{part.layers}",
        }
    return fields


def compare_fields(
    pool: str,
    prefill: Fields,
    decode: Fields,
    *,
    time_ns: int,
    whole: Sequence[bool] = (True, True),
) -> list[Finding]:
    """Return one finding that names every field in which the two ends differ, if any.

    ``whole`` says of each end whether a field that it does not state is absent, or just unknown.
    """
    names = [
        name
        for name in dict.fromkeys((*prefill, *decode))
        if prefill.get(name) != decode.get(name)
        and all(sure or name in end for sure, end in zip(whole, (prefill, decode), strict=True))
        and name != "tp"
        and not name.startswith("split.")
    ]
    if not names:
        return []
    ours, theirs = (
        ", ".join(f"{name}={end.get(name, 'absent')}" for name in names)
        for end in (prefill, decode)
    )
    one = len(names) == 1
    return [
        _finding(
            pool,
            f"{', '.join(names)} {'differs' if one else 'differ'}: prefill has {ours}; decode has "
            f"{theirs}",
            expected=ours,
            got=theirs,
            advice="give both ends one setting, and compare these fields at the handshake",
            time_ns=time_ns,
        )
    ]


def _contract(end: Process) -> dict[str, str]:
    return {said.key: said.values[0] for said in end.on(Topic.CONTRACT)}


def _when(end: Process) -> Iterator[int]:
    """Yield when the end stated each field of its contract."""
    return (said.time_ns for said in end.on(Topic.CONTRACT))


def _unsplittable(prefill: Fields, decode: Fields, *, time_ns: int) -> list[Finding]:
    """Report pools that neither split by heads nor are replicated, if ``tp`` differs."""
    sizes = prefill.get("tp"), decode.get("tp")
    if sizes[0] == sizes[1] or None in sizes:
        return []
    stuck = sorted(
        name.removeprefix("split.")
        for name, value in {**prefill, **decode}.items()
        if name.startswith("split.") and value == "no"
    )
    return [
        _finding(
            pool,
            f"prefill has tp={sizes[0]}, decode tp={sizes[1]}, and {pool} cannot be split between them",
            expected=f"tp={sizes[0]}",
            got=f"tp={sizes[1]}",
            advice="give both ends the same tp, or refuse the pair at bootstrap, at both ends",
            time_ns=time_ns,
        )
        for pool in stuck
    ]


def _counts(prefill: Process, decode: Process) -> Iterator[Finding]:
    """Compare pages sent with pages received by request, unless a recording lost events.

    Silence does not accuse a prefill process that was killed, or that began to record later or in the
    middle of the request, by whatever clocks. Nor does a request that decode gave up while its last
    bytes arrived, which prefill sent to the end.
    """
    if prefill.lost or decode.lost:
        return
    sent = {said.request: said.values for said in prefill.on(Topic.SENT)}
    received = {said.request: said for said in decode.on(Topic.RECEIVED)}
    ahead_ns = _ahead(prefill, received)
    wrong = [
        said
        for request, said in received.items()
        if said.values != sent.get(request)
        and not (said.values[1:] == (NOT_TAKEN,) and sent.get(request) == (said.values[0], WHOLE))
        and (_heard(prefill, said, ahead_ns) or not _unfinished(sent.get(request), said.values))
    ]
    if not wrong:
        return
    first, got = wrong[0].request, wrong[0].values
    has = sent.get(first, ("0", "never sent"))
    yield _finding(
        "+".join(decode.mirrors),
        f"{counted(len(wrong), 'request')} not taken over as handed over; first: request {first}: "
        f"prefill sent {_pages(has)}, decode took {_pages(got)}",
        expected=_pages(has),
        got=_pages(got),
        advice="let decode commit a request only when prefill says that it is complete, with the count",
        time_ns=wrong[0].time_ns,
    )


def _ahead(prefill: Process, received: Mapping[str, Stated]) -> int:
    """Return by how many nanoseconds decode's clock says more than prefill's, as it seems.

    Two hosts' clocks differ. Both ends state a request that they agree on at about the same time.
    """
    sent = {said.request: said for said in prefill.on(Topic.SENT)}
    apart = [
        said.time_ns - sent[request].time_ns
        for request, said in received.items()
        if request in sent and sent[request].values == said.values
    ]
    return median_low(apart) if apart else 0


def _heard(prefill: Process, said: Stated, ahead_ns: int) -> bool:
    """Return whether prefill's recordings hold what it said of a request, from its begin on."""
    began_ns = said.began_ns or said.time_ns
    return prefill.heard(said.time_ns - ahead_ns) and prefill.heard(began_ns - ahead_ns)


def _unfinished(sent: Sequence[str] | None, received: Sequence[str]) -> bool:
    """Return whether a further statement of prefill could make both ends agree."""
    if sent is None:
        return received[1:] in {(), (WHOLE,)}
    return len(sent) == 1 and int(sent[0]) < int(received[0])  # without an outcome: so far


def _pages(values: Sequence[str]) -> str:
    pages = counted(int(values[0]), "page")
    return f"{pages} ({', '.join(values[1:])})" if len(values) > 1 else pages


def _finding(
    pool: str, words: str, *, expected: str, got: str, advice: str, time_ns: int
) -> Finding:
    return Finding(
        time_ns=time_ns,
        cls=FaultClass.PD_CONTRACT,
        pool=pool,
        message=f"{pool}: {words}" if pool else words,
        expected=expected,
        got=got,
        advice=advice,
        check=CHECK,
    )
