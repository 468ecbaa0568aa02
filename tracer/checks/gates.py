"""Whether a layer is read before anything orders the reader after the load that writes it.

A load brings its layers in order and opens a gate behind each. Pure bookkeeping on ints: whoever
calls says what a device's events answer, so nothing here waits or asks one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from hicache_dbg.tracer.checks.ownership import Pages
from hicache_dbg.tracer.checks.slots import named
from hicache_dbg.tracer.checks.violation import Access, Violation
from hicache_dbg.tracer.events import FaultClass

__all__ = ["CHECK", "Loading"]

CHECK = "gates"
_ADVICE = "wait for the gate of every layer that is read, in every reader, before it is read"


@dataclass(slots=True, eq=False)
class Loading:
    """One load on its way: which gates it has opened, and who has passed which.

    Args:
        layers: how many layers it brings.
        by: where it was begun.
        pages: device pages that it writes, by pool; filled as the pools' copies begin.
        opened: the highest layer whose gate is behind its bytes, -1 before the first.
        passed: the highest opened layer that each reader has waited for.
    """

    layers: int
    by: Access
    pages: dict[str, Pages] = field(default_factory=dict)
    opened: int = -1
    passed: dict[int, int] = field(default_factory=dict)

    def open(self, layer: int) -> None:
        """The gate of ``layer`` is behind its bytes; those before it are as well."""
        self.opened = max(self.opened, layer)

    def moves(self, pool: str, pages: Pages) -> None:
        """The load writes these device pages of ``pool``; unknown ones are negative."""
        pages = pages[pages >= 0]
        before = self.pages.get(pool)
        self.pages[pool] = pages if before is None else np.concatenate([before, pages])

    def wait(self, reader: int, layer: int) -> None:
        """``reader`` waited for ``layer``: it comes after what was behind a gate by then, no more."""
        self.passed[reader] = max(self.passed.get(reader, -1), min(layer, self.opened))

    def read(self, reader: int, layer: int, pool: str, by: Access) -> list[Violation]:
        """``reader`` takes ``layer``, which its device has not reported as arrived."""
        waited = self.passed.get(reader, -1)
        if waited >= layer:
            return []
        pages = self.pages.get(pool, np.zeros(0, np.int64))
        return [self._violation(pool, by, pages, (layer,), f"a wait for layer {layer}", waited)]

    def touch(self, pages: Mapping[str, Pages], by: Access) -> list[Violation]:
        """These device pages are read in all layers, and the device still has layers to come."""
        waited = max(self.passed.values(), default=-1)
        if waited >= self.layers - 1:
            return []
        missing = tuple(range(waited + 1, self.layers))
        found = []
        for pool, ids in pages.items():
            both = np.intersect1d(ids, self.pages.get(pool, np.zeros(0, np.int64)))
            if len(both):
                wanted = f"a wait for layer {self.layers - 1}"
                found.append(self._violation(pool, by, both, missing, wanted, waited))
        return found

    def _violation(  # noqa: PLR0917
        self,
        pool: str,
        by: Access,
        pages: Pages,
        layers: tuple[int, ...],
        wanted: str,
        waited: int,
    ) -> Violation:
        there = named("layer", range(self.opened + 1)) if self.opened >= 0 else "no layer"
        return Violation(
            FaultClass.READ_BEFORE_LOAD,
            CHECK,
            "device",
            f"read while a load writes it and nothing orders the two ({there} sent off, "
            f"{self.layers} to come in all)",
            tuple(np.unique(pages).tolist()),
            by,
            self.by,
            layers=layers,
            expected=wanted,
            got=f"a wait for layer {waited}" if waited >= 0 else "no wait",
            advice=_ADVICE,
            pool=pool,
        )
