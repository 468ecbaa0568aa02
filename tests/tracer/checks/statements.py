"""Short constructors of the statements that processes make."""

from collections.abc import Sequence
from itertools import count

from hicache_dbg.tracer.events import (
    ComponentInfo,
    EndInfo,
    Health,
    MirrorInfo,
    Started,
    Stated,
    Tier,
    Topic,
)

__all__ = [
    "collective",
    "contract",
    "hits",
    "mirror",
    "named",
    "received",
    "sent",
    "started",
    "tiles",
    "word",
]

_times = count(1)


def mirror(
    pool: str = "kv", pages: int = 100, host: int = 200, *, layers: int = 4, **part: object
) -> MirrorInfo:
    """Return a mirror of one component with so many pages at each end."""
    component = ComponentInfo(
        **{  # type: ignore[arg-type]
            "name": "row",
            "dtype": "bfloat16",
            "slot_bytes": 256,
            "page_bytes": 16384,
            "pages": pages,
            "layers": layers,
            **part,
        }
    )
    end = EndInfo(
        tier=Tier.DEVICE,
        cls="Pool",
        layout="layer_first",
        device="cuda:0",
        slots_per_page=64,
        components=(component,),
    )
    mirrored = ComponentInfo(
        name="row", dtype="bfloat16", slot_bytes=256, page_bytes=16384, pages=host, layers=layers
    )
    below = EndInfo(
        tier=Tier.HOST,
        cls="HostPool",
        layout="page_first",
        device="cpu",
        slots_per_page=64,
        components=(mirrored,),
    )
    return MirrorInfo(
        pool=pool, index_unit="page", slot_page=1, tokens_per_page=64, device=end, host=below
    )


def started(*mirrors: MirrorInfo, rank: int = 0) -> Started:
    """Return a rank's start record."""
    return Started(
        time_ns=next(_times),
        rank=rank,
        system="test",
        version="1",
        checksum="loads",
        mirrors=mirrors,
    )


def _stated(topic: Topic, values: Sequence[object], rank: int, **about: object) -> Stated:
    return Stated(
        time_ns=next(_times),
        rank=rank,
        topic=topic,
        values=tuple(map(str, values)),
        **about,  # type: ignore[arg-type]
    )


def hits(request: str, pages: int, rank: int = 0) -> Stated:
    """State the number of pages found for a request."""
    return _stated(Topic.HIT_PAGES, (pages,), rank, request=request)


def collective(name: str, rank: int = 0) -> Stated:
    """State a collective call."""
    return _stated(Topic.COLLECTIVE, (name,), rank)


def contract(role: str, key: str, value: object, rank: int = 0) -> Stated:
    """State a field of the handshake."""
    return _stated(Topic.CONTRACT, (value,), rank, role=role, key=key)


def sent(request: str, pages: int, status: str = "complete") -> Stated:
    """State that prefill has handed a request over."""
    return _stated(Topic.SENT, (pages, status), 0, role="prefill", request=request)


def received(request: str, pages: int, status: str = "complete") -> Stated:
    """State that decode has taken a request over."""
    return _stated(Topic.RECEIVED, (pages, status), 0, role="decode", request=request)


def tiles(
    request: str, page: int, digests: Sequence[str], *, rank: int = 0, **about: object
) -> Stated:
    """State the digests of one logical page, one per layer."""
    given = {"pool": "kv", "component": "row", "layers": tuple(range(len(digests))), **about}
    return _stated(Topic.TILES, digests, rank, request=request, page=page, **given)


def named(tokens: str, key: str, rank: int = 0) -> Stated:
    """State that the content of these tokens is stored under this key."""
    return _stated(Topic.KEY, (key,), rank, request=tokens)


def word(rank: int = 0) -> Health:
    """Return a health event after all statements so far."""
    return Health(time_ns=next(_times), rank=rank)
