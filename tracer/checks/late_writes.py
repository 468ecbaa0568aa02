"""Detect bytes of an abandoned request that landed in pages reused by another request.

A one-sided write lands whether or not anybody waits for it. Prefill's statements tell what it sent
for the abandoned request and for the request that owns the page now.
"""

from collections.abc import Iterator

from hicache_dbg.tracer.checks.processes import Process
from hicache_dbg.tracer.checks.tiles_joined import tiles_of
from hicache_dbg.tracer.events import FaultClass, Finding, Stated, Topic
from hicache_dbg.tracer.words import counted, named

__all__ = ["late_writes"]

CHECK = "contract"
FEW = 8
#: Shard, pool, component, layer, digest: a tile's content and where it belongs.
_Content = tuple[str, str, str, int, str]


def late_writes(prefill: Process, decode: Process, whole: str) -> Iterator[Finding]:
    """Return one finding per pool and component, about the first request with another's bytes.

    ``whole`` is the status decode states for a request that it took over completely.
    """
    given_up = {
        said.request for said in decode.on(Topic.RECEIVED) if said.values[1:] not in {(), (whole,)}
    }
    lost = {
        content: said.request
        for said in prefill.on(Topic.TILES)
        if said.request in given_up
        for content in _contents(said)
    }
    if not lost:
        return
    own = {
        (said.request, said.page, content)
        for said in prefill.on(Topic.TILES)
        for content in _contents(said)
    }
    wrong: dict[tuple[str, str], list[tuple[Stated, _Content]]] = {}
    for said in decode.on(Topic.TILES):
        for content in _contents(said):
            if said.request in given_up or (said.request, said.page, content) in own:
                continue
            if content in lost:
                wrong.setdefault((said.pool, said.component), []).append((said, content))
    for tiles in wrong.values():
        yield _finding(tiles, lost)


def _finding(tiles: list[tuple[Stated, _Content]], lost: dict[_Content, str]) -> Finding:
    first, content = min(tiles, key=lambda tile: tile[0].time_ns)
    _, pool, component, layer, digest = content
    pages = sorted({said.page for said, _ in tiles if said.request == first.request})
    return Finding(
        time_ns=max(said.time_ns for said, _ in tiles),
        cls=FaultClass.SLOT_REUSE,
        pool=pool,
        component=component,
        layer=layer,
        pages=tuple(pages[:FEW]),
        page_count=len(pages),
        expected=f"the bytes of request {first.request}",
        got=digest,
        message=(
            f"{pool}.{component}: a write that was given up landed in pages that were reused: "
            f"{counted(len(tiles), 'tile')}; first: request {first.request}, "
            f"{named('logical page', pages)}, layer {layer}, holds "
            f"what was sent for request {lost[content]}, which decode did not take over"
        ),
        advice=(
            "keep the pages of a request that failed until its write is over: its notification came, or "
            "prefill wrote nothing, or both ends have let it go"
        ),
        check=CHECK,
    )


def _contents(said: Stated) -> Iterator[_Content]:
    return (
        (said.shard, said.pool, said.component, layer, digest) for layer, digest in tiles_of(said)
    )
