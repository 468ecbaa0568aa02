"""Check that no layer is read before something orders the reader after the load that writes it.

A load brings its layers in order and opens a gate behind each. Pure bookkeeping on ints: the caller
queries the device's events, so nothing here waits or asks a device.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from hicache_dbg.tracer.checks.ownership import Pages
from hicache_dbg.tracer.checks.violation import Access, Violation
from hicache_dbg.tracer.events import FaultClass
from hicache_dbg.tracer.words import named

__all__ = ["CHECK", "Loading"]

CHECK = "gates"
_ADVICE = "wait for the gate of every layer that is read, in every reader, before it is read"


@dataclass(slots=True, eq=False)
class Loading:
    """One load in flight: the gates it has opened, and who has passed which.

    Args:
        layers: number of layers it brings.
        by: where it was started.
        pages: device pages it writes, by pool; filled as the pools' copies start.
        opened: the highest layer whose gate is ordered after its bytes, -1 before the first.
        passed: the highest opened layer that each reader has waited for.
        sender: the thread that submits its layers, while that thread can be asked how far it is, else 0.
    """

    layers: int
    by: Access
    pages: dict[str, Pages] = field(default_factory=dict)
    opened: int = -1
    passed: dict[int, int] = field(default_factory=dict)
    sender: int = 0

    def open(self, layer: int) -> None:
        """Record that the gate of ``layer``, and of all before it, is ordered after its bytes."""
        self.opened = max(self.opened, layer)

    def sent(self, layers: int) -> None:
        """Record that it went through this many layers, and that nobody submits any more."""
        self.open(min(layers, self.layers) - 1)
        self.sender = 0

    def moves(self, pool: str, pages: Pages) -> None:
        """Record the device pages of ``pool`` that the load writes; unknown ones are negative."""
        pages = pages[pages >= 0]
        before = self.pages.get(pool)
        self.pages[pool] = pages if before is None else np.concatenate([before, pages])

    def wait(self, reader: int, layer: int) -> None:
        """Record that ``reader`` waited for ``layer``, as far as gates had been opened by then."""
        self.passed[reader] = max(self.passed.get(reader, -1), min(layer, self.opened))

    def read(self, reader: int, layer: int, pool: str, by: Access) -> list[Violation]:
        """Check that ``reader`` waited for ``layer``, which has not been reported as arrived."""
        waited = self.passed.get(reader, -1)
        if waited >= layer:
            return []
        pages = self.pages.get(pool, np.zeros(0, np.int64))
        return [self._violation(pool, by, pages, (layer,), f"a wait for layer {layer}", waited)]

    def touch(self, pages: Mapping[str, Pages], by: Access) -> list[Violation]:
        """Check a read of all layers of device pages while layers are still to come."""
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
