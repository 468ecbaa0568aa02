"""Tiles that decode received, compared with what prefill sent: known only once both are joined."""

from collections import Counter
from collections.abc import Iterable, Sequence

from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.events import Event, Op, Stated, Topic

__all__ = ["settle"]

#: Request, pool, component, logical page, layer.
Tile = tuple[str, str, str, int, int]


def settle(evidence: Evidence, recordings: Sequence[Iterable[Event]]) -> None:
    """Count received tiles as verified or mismatched where both ends stated their digests.

    Either end by itself can only witness them. ``recordings`` are those that ``evidence`` is of.
    """
    ends = _digests(recordings)
    equal, different = Counter[str](), Counter[str]()
    for tile, digest in ends["decode"].items():
        sent = ends["prefill"].get(tile)
        if sent is not None:
            (equal if sent == digest else different)[tile[1]] += 1
    for pool in equal | different:
        tiles = evidence.by_pool.get((pool, Op.RECV.value))
        for one in (tiles, evidence.tiles) if tiles is not None else ():
            one.verified += equal[pool]
            one.mismatched += different[pool]
            one.witnessed -= equal[pool] + different[pool]


def _digests(recordings: Sequence[Iterable[Event]]) -> dict[str, dict[Tile, str]]:
    found: dict[str, dict[Tile, str]] = {"prefill": {}, "decode": {}}
    lost: set[str] = set()
    for events in recordings:
        for event in events:
            if not isinstance(event, Stated) or event.role not in found:
                continue
            if event.topic is Topic.TILES:
                for layer, digest in zip(event.layers, event.values, strict=True):
                    place = event.request, event.pool, event.component, event.page, layer
                    found[event.role][place] = digest
            elif event.topic is Topic.RECEIVED and event.values[1:] != ("complete",):
                lost.add(event.request)  # its tiles count as failed, whatever is in them
    found["decode"] = {tile: d for tile, d in found["decode"].items() if tile[0] not in lost}
    return found
