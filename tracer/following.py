"""Hand a copy over to a device that follows it by itself, part by part."""

from typing import NamedTuple, Protocol, runtime_checkable

from hicache_dbg.tracer.digest.watch import MOST_PAGES, Wanted, Watch
from hicache_dbg.tracer.events import Op
from hicache_dbg.tracer.ledger import Flags, Pages
from hicache_dbg.tracer.mirror import Copy
from hicache_dbg.tracer.view import View

__all__ = ["Part", "Watcher", "free", "let_go", "parts_of"]


@runtime_checkable
class Watcher(Protocol):
    """A digester that can also follow whole operations on the device."""

    def watch(self, wanted: Wanted) -> Watch | None:
        """Start following ``wanted``; return None if that is not possible."""
        ...


class Part(NamedTuple):
    """A watch of one component over some of a copy's digested pages."""

    component: str
    columns: slice
    watch: Watch


def parts_of(  # noqa: PLR0917
    watcher: Watcher, copy: Copy, digested: Flags | None, writes: Pages, component: str, view: View
) -> list[Part]:
    """Watch all pages of one component that are ``digested`` (None: all pages).

    ``writes`` are the write counts of the copy's host pages.

    Returns:
        The watches; an empty list if the component's device cannot follow every page.
    """
    mirror, loads, layers = copy.mirror, copy.op is Op.LOAD, copy.layers
    pages, entries, generations = copy.device_pages, copy.host_pages, copy.generations
    if digested is not None:
        pages, entries = pages[digested], entries[digested]
        generations, writes = generations[digested], writes[digested]
    size, count = len(mirror.writes), len(pages)
    parts: list[Part] = []
    for first in range(0, count, MOST_PAGES):
        these = slice(first, min(first + MOST_PAGES, count))
        wanted = Wanted(
            mirror, component, view, loads, layers, pages, entries, generations, writes, size
        )
        watch = watcher.watch(wanted if count <= MOST_PAGES else wanted.part(these))
        if watch is None:
            let_go(parts)
            return []
        parts.append(Part(component, these, watch))
    return parts


def let_go(parts: list[Part]) -> None:
    """Finish and drop watches whose results are no longer needed."""
    for part in parts:
        part.watch.finish()
        part.watch.drop()


def free(parts: list[Part]) -> None:
    """Drop watches without waiting, and take them off the list: a room that is freed twice is shared.

    The room of one that a device still writes to is not reused.
    """
    while parts:
        part = parts.pop()
        if part.watch.ready():
            part.watch.drop()
