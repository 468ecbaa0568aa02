"""Compare the bytes in SGLang's own counters with the bytes really moved."""

import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any

from hicache_dbg.tracer.attach.sglang.arguments import argument
from hicache_dbg.tracer.attach.sglang.classes import ours
from hicache_dbg.tracer.mirror import Copy

__all__ = ["COLLECTOR", "ByteCounters", "Moved"]

#: Module, class and method that increment ``sglang:hicache_backup_bytes_total``.
COLLECTOR = (
    "sglang.srt.observability.metrics_collector",
    "RadixCacheMetricsCollector",
    "increment_backup_num_bytes",
)

_log = logging.getLogger("hicache_dbg")


@dataclass(frozen=True, slots=True)
class Moved:
    """Bytes of one pool's backups so far: really moved, and as SGLang's counters compute them."""

    real: int = 0
    counted: int = 0


class ByteCounters:
    """Compares SGLang's byte counters, such as ``sglang:hicache_backup_bytes_total``, with reality.

    SGLang multiplies indices by ``size_per_token``. DeepSeek-V4's pools keep the bytes of a whole
    page of one layer there, so these counters are too high by (indices per page) / (layers). This
    is logged once, and both totals at the end.
    """

    def __init__(self) -> None:
        self._moved: dict[str, Moved] = {}
        self._warned = False
        #: Bytes added to SGLang's own counter, over all pools.
        self.of_sglang = 0

    @property
    def moved(self) -> Mapping[str, Moved]:
        """Totals by pool."""
        return self._moved

    def add(self, pool: Any, copy: Copy, indices: int) -> None:
        """Count one copy of all layers of ``pool``, for which SGLang counts ``indices`` indices."""
        name, per_index = copy.mirror.pool, int(getattr(pool, "size_per_token", 0))
        real, counted = copy.moved_bytes, per_index * indices
        before = self._moved.get(name, Moved())
        self._moved[name] = Moved(before.real + real, before.counted + counted)
        if counted != real and not self._warned:
            self._warned = True
            _log.warning(
                "hicache-dbg: sglang:hicache_backup_bytes_total and load_back_bytes_total are wrong: this %s of pool "
                "%s moved %d B and counts there as %d B (%.4g times); hicache_dbg_copied_bytes_total is right",
                copy.op.value,
                name,
                real,
                counted,
                counted / max(1, real),
            )

    def counting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the method that increments SGLang's own counter."""
        added = argument(original, "num_bytes", at=1)

        @wraps(original)
        def increment(*args: Any, **kwargs: Any) -> Any:
            with contextlib.suppress(Exception):  # the argument may be of any type
                self.of_sglang += int(added(args, kwargs))
            return original(*args, **kwargs)

        return ours(increment)

    def tell(self) -> None:
        """Log both totals, if SGLang counted anything."""
        if not self.of_sglang:
            return
        real = sum(moved.real for moved in self._moved.values())
        pools = ", ".join(f"{name} {moved.real} B" for name, moved in sorted(self._moved.items()))
        _log.info(
            "hicache-dbg: backups moved %d B (%s); sglang:hicache_backup_bytes_total has %d B (%.4g times)",
            real,
            pools,
            self.of_sglang,
            self.of_sglang / max(1, real),
        )
        self.of_sglang = 0
