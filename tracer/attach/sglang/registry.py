"""The host pools of this process: what each is, and how its pages are handed out."""

import weakref
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from hicache_dbg.tracer.attach.sglang.classes import is_host_pool
from hicache_dbg.tracer.attach.sglang.geometry import Geometry
from hicache_dbg.tracer.attach.sglang.inventory import Inventory
from hicache_dbg.tracer.attach.sglang.kinds import KINDS, Kind
from hicache_dbg.tracer.attach.sglang.pool_mirrors import mirror_views, page_indices
from hicache_dbg.tracer.inside import inside
from hicache_dbg.tracer.ledger import Pages
from hicache_dbg.tracer.mirror import MirrorViews
from hicache_dbg.tracer.sink import PoolPages

__all__ = ["Allocations", "PoolRecord", "Registry"]


class Allocations:
    """How often each page of one host pool was handed out."""

    def __init__(self, page: int, pages: int) -> None:
        self.page = page
        self.pages = pages
        self._counts = np.zeros(pages, np.int64)

    def count(self, indices: Any) -> None:
        """Count indices that were just handed out."""
        if isinstance(indices, torch.Tensor) and indices.device.type == "cpu":
            pages = indices.numpy() // self.page
            # Fancy indexing with += counts a page once, however many indices name it.
            self._counts[pages[pages < len(self._counts)]] += 1

    def at(self, pages: Pages) -> Pages:
        """Return the counts of ``pages``; 0 for pages outside this pool."""
        if inside(pages, len(self._counts)):
            return self._counts[pages]  # the usual case
        known = (pages >= 0) & (pages < len(self._counts))
        return np.where(known, self._counts[np.where(known, pages, 0)], 0)


@dataclass(slots=True)
class PoolRecord:
    """One host pool: its mirror and, if its class is known, how it is read.

    ``sources`` are the pools whose allocations this pool's pages follow: its own, and its anchor's
    if it uses another pool's indices.
    """

    mirror: MirrorViews
    kind: Kind | None
    geometry: Geometry | None
    sources: list[Allocations] = field(default_factory=list)

    def generation(self, pages: Pages) -> Pages:
        """Return how often these host pages were handed out so far."""
        return _generation(pages, self.sources, self.geometry)


def _generation(pages: Pages, sources: list[Allocations], geometry: Geometry | None) -> Pages:
    if geometry is not None and geometry.generations is not None:
        return geometry.generations(pages)
    counts = sources[0].at(pages)
    for other in sources[1:]:
        counts = counts + other.at(pages)
    return counts


class Registry:
    """Records of host pools, for as long as the pools live."""

    def __init__(self) -> None:
        self.inventory = Inventory()
        self._records: dict[int, PoolRecord] = {}
        self._by_mirror: dict[int, PoolRecord] = {}  # by identity: asked for at every copy
        self._pools: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._allocations: dict[int, Allocations] = {}
        self._names: Counter[str] = Counter()

    def of(self, pool: Any) -> PoolRecord | None:
        """Return the record of a pool that was added."""
        return self._records.get(id(pool))

    def add(self, pool: Any) -> PoolRecord:
        """Read a pool that was just built; one that cannot be read is noted as not recognised."""
        cls = type(pool).__name__
        kind = KINDS.get(cls)
        name = self._name(pool, kind)
        geometry = self._geometry(pool, name, kind)
        record = PoolRecord(mirror_views(pool, name, geometry), kind, geometry)
        # Not the record's own method: a mirror that refers to its record is kept until garbage is
        # collected, and the pool's pinned memory with it.
        generation = partial(_generation, sources=record.sources, geometry=geometry)
        object.__setattr__(record.mirror, "generation", generation)
        record.sources.append(self.allocations(pool))
        self._records[id(pool)] = record
        self._pools[id(pool)] = pool
        self._by_mirror[id(record.mirror)] = record
        weakref.finalize(pool, self._records.pop, id(pool), None)
        weakref.finalize(pool, self._by_mirror.pop, id(record.mirror), None)
        self.inventory.built.add(cls)
        if geometry is not None:
            self.inventory.add(record.mirror)
        return record

    def _geometry(self, pool: Any, name: str, kind: Kind | None) -> Geometry | None:
        """Read a pool's geometry; return None, with the reason noted, if that is impossible."""
        if _is_dummy(pool):
            reason = "no bytes on this rank, another one loads and broadcasts them"
        elif kind is None:
            reason = "no view of this class"
        else:
            try:
                return kind.read(pool, name)
            except Exception as error:  # noqa: BLE001 - whatever a class of another version lacks
                reason = f"{type(error).__name__}: {error}"
        self.inventory.not_recognised(f"{type(pool).__name__} (pool {name}): {reason}")
        return None

    def follow(self, pool: Any, anchor: Any) -> None:
        """Note that ``pool`` uses the indices of ``anchor``."""
        record, source = self.of(pool), self.allocations(anchor)
        if record is not None and source not in record.sources:
            record.sources.append(source)

    def allocations(self, pool: Any) -> Allocations:
        """Return how often a pool's pages were handed out, also for an anchor that holds no bytes."""
        known = self._allocations.get(id(pool))
        if known is None:
            page = page_indices(pool)
            # Device pools reserve one page per rank in front of those that are handed out.
            front = 0 if is_host_pool(pool) else int(getattr(pool, "shard_size", 1))
            known = Allocations(page, -(-int(pool.size) // page) + front)
            known = self._allocations.setdefault(id(pool), known)
            weakref.finalize(pool, self._allocations.pop, id(pool), None)
        return known

    def known_allocations(self, pool: Any) -> Allocations | None:
        """Return :meth:`allocations` of a pool, if it was seen before."""
        return self._allocations.get(id(pool))

    def by_mirror(self, mirror: MirrorViews) -> PoolRecord:
        """Return the record that has this mirror."""
        return self._by_mirror[id(mirror)]

    def pool_state(self) -> Iterator[PoolPages]:
        """Yield host pages by pool and state, for every live pool with an allocator."""
        for key, pool in list(self._pools.items()):
            record = self._records.get(key)
            if record is None or record.geometry is None:
                continue
            free = _free_pages(pool)
            if free is None:
                continue
            pages = max(view.pages for view in record.mirror.host.values())
            yield PoolPages(record.mirror.pool, "host", "free", free)
            yield PoolPages(record.mirror.pool, "host", "used", max(0, pages - free))

    def _name(self, pool: Any, kind: Kind | None) -> str:
        """Return the pool's own name, numbered from the second pool on; a name is never reused."""
        own = getattr(pool, "pool_name", None) or getattr(pool, "pool_label", None)
        name = str(own or (kind.name if kind else type(pool).__name__))
        self._names[name] += 1
        return name if self._names[name] == 1 else f"{name}#{self._names[name]}"


def _is_dummy(pool: Any) -> bool:
    return bool(getattr(pool, "_is_dummy", False))


def _free_pages(pool: Any) -> int | None:
    """Return the free pages; None if the pool has no allocator, or is being torn down."""
    try:
        return int(pool.available_size()) // page_indices(pool)
    except Exception:  # noqa: BLE001 - a scrape goes on with the other pools
        return None
