"""Compare the tiles that decode received with what prefill sent, once both are joined."""

from collections import Counter
from collections.abc import Iterable, Sequence

from hicache_dbg.tracer.checks.tiles_joined import tiles_of
from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.events import Event, Op, Stated, Topic

__all__ = ["settle"]

#: Request, pool, component, logical page.
Place = tuple[str, str, str, int]
#: What an end stated about each page; a dictionary of all tiles of a long run would not fit.
Pages = dict[Place, list[Stated]]


def settle(evidence: Evidence, recordings: Sequence[Iterable[Event]]) -> None:
    """Count received tiles as verified or mismatched if both ends stated their digests.

    Either end alone can only witness them. ``recordings`` are those that ``evidence`` was built
    from. Statements without exactly one value per layer are counted as errors, at ``join/tiles``.
    """
    ends = _pages(recordings, evidence.errors)
    equal, different = Counter[str](), Counter[str]()
    for place, received in ends["decode"].items():
        sent = _digests(ends["prefill"].get(place, ()))
        for layer, digest in _digests(received).items():
            if layer in sent:
                (equal if sent[layer] == digest else different)[place[1]] += 1
    for pool in equal | different:
        tiles = evidence.by_pool.get((pool, Op.RECV.value))
        for one in (tiles, evidence.tiles) if tiles is not None else ():
            one.verified += equal[pool]
            one.mismatched += different[pool]
            one.witnessed -= equal[pool] + different[pool]


def _pages(recordings: Sequence[Iterable[Event]], errors: Counter[str]) -> dict[str, Pages]:
    found: dict[str, Pages] = {"prefill": {}, "decode": {}}
    lost: set[str] = set()
    for events in recordings:
        for event in events:
            if not isinstance(event, Stated) or event.role not in found:
                continue
            if event.topic is Topic.TILES:
                place = event.request, event.pool, event.component, event.page
                found[event.role].setdefault(place, []).append(event)
                if len(event.layers) != len(event.values):
                    errors["join/tiles"] += 1
            elif event.topic is Topic.RECEIVED and event.values[1:] != ("complete",):
                lost.add(event.request)  # its tiles count as failed, whatever they contain
    found["decode"] = {
        place: said for place, said in found["decode"].items() if place[0] not in lost
    }
    return found


def _digests(stated: Iterable[Stated]) -> dict[int, str]:
    """Return the digest of each layer; if one was stated twice, the last counts."""
    return {layer: digest for said in stated for layer, digest in tiles_of(said)}
