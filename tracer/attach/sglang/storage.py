"""SGLang's third tier: what goes from host pages into a storage backend, and what comes back.

Pages of the anchor cross in four methods of the cache controller (generic and zero-copy, set and
get), which it keeps as bound methods; side pools cross in ``batch_set_v2`` and ``batch_get_v2`` of
the backend. All run on threads of their own, where host pages are digested: before a set, and
before and after a get.
"""

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import wraps
from typing import Any
from zlib import crc32

import numpy as np
import torch
import xxhash

from hicache_dbg.tracer.attach.sglang.classes import ours
from hicache_dbg.tracer.attach.sglang.registry import PoolRecord, Registry
from hicache_dbg.tracer.attach.sglang.say import Say
from hicache_dbg.tracer.attach.sglang.storage_judge import Crossing, StorageJudge
from hicache_dbg.tracer.digest.cpu import CpuDigester
from hicache_dbg.tracer.events import Op
from hicache_dbg.tracer.ledger import Digests, Pages
from hicache_dbg.tracer.settings import Checksum, Settings

__all__ = ["OF_BACKENDS", "OF_CONTROLLERS", "Storage"]

Function = Callable[..., Any]

#: Methods of the cache controller through which the anchor's pages cross.
OF_CONTROLLERS: Mapping[str, Op] = {
    "_generic_page_set": Op.STORE,
    "_page_set_zero_copy": Op.STORE,
    "_generic_page_get": Op.FETCH,
    "_page_get_zero_copy": Op.FETCH,
}
#: Methods of a backend through which pages of side pools cross.
OF_BACKENDS: Mapping[str, Op] = {"batch_set_v2": Op.STORE, "batch_get_v2": Op.FETCH}

_ids = itertools.count(1)


class Storage:
    """Follows pages into storage and back; ``say`` and ``registry`` know session and pools."""

    def __init__(self, say: Say, registry: Registry) -> None:
        self._say = say
        self._registry = registry
        self._digester = CpuDigester()
        self._judge: StorageJudge | None = None
        self._thread = threading.local()

    # -- wrappers -------------------------------------------------------------------------------

    def backing_up(self, original: Function) -> Function:
        """Around ``_page_backup``: whose tokens the pages are that are set meanwhile."""

        @wraps(original)
        def _page_backup(controller: Any, operation: Any, *args: Any, **kwargs: Any) -> Any:
            self._thread.operation = operation
            try:
                return original(controller, operation, *args, **kwargs)
            finally:
                self._thread.operation = None

        return ours(_page_backup)

    def setting(self, original: Function) -> Function:
        """Around a method that stores the anchor's pages."""

        @wraps(original)
        def page_set(controller: Any, keys: Any, indices: Any, *args: Any, **kwargs: Any) -> Any:
            operation = getattr(self._thread, "operation", None)
            crossing = self._begin(Op.STORE, controller, keys, indices, operation)
            return self._run(
                [crossing],
                lambda: original(controller, keys, indices, *args, **kwargs),
                lambda result: [[bool(result)] * len(keys)],
            )

        return ours(page_set)

    def getting(self, original: Function) -> Function:
        """Around a method that fetches the anchor's pages."""

        @wraps(original)
        def page_get(
            controller: Any, operation: Any, keys: Any, indices: Any, *args: Any, **kwargs: Any
        ) -> Any:
            crossing = self._begin(Op.FETCH, controller, keys, indices, operation)
            before = getattr(operation, "completed_tokens", 0)

            def good(result: Any) -> list[list[bool]]:
                # Early versions count in the operation, later ones return the pages.
                moved = (operation.completed_tokens - before) // controller.page_size
                hits = moved if result is None else int(result)
                if crossing is not None:
                    crossing.asked = len(keys) if not operation.is_terminated() else hits
                return [[at < hits for at in range(len(keys))]]

            return self._run(
                [crossing],
                lambda: original(controller, operation, keys, indices, *args, **kwargs),
                good,
            )

        return ours(page_get)

    def batching(self, original: Function, op: Op) -> Function:
        """Around a backend's method for several pools."""

        @wraps(original)
        def batch_v2(backend: Any, transfers: Any, *args: Any, **kwargs: Any) -> Any:
            names = [transfer.name for transfer in transfers]
            crossings = [self._side(op, backend, transfer) for transfer in transfers]
            return self._run(
                crossings,
                lambda: original(backend, transfers, *args, **kwargs),
                lambda result: [list(map(bool, result.get(name) or ())) for name in names],
            )

        return ours(batch_v2)

    # -- one call -------------------------------------------------------------------------------

    def _run(
        self,
        crossings: Sequence[Crossing | None],
        call: Callable[[], Any],
        good: Callable[[Any], list[list[bool]]],
    ) -> Any:
        if not any(crossings):
            return call()
        began, error = time.perf_counter(), None
        result: list[Any] = []
        try:
            result.append(call())
        except BaseException as raised:
            error = raised
            raise
        finally:
            spent = time.perf_counter() - began
            with self._say.errors("attach/storage"):
                ends = good(result[0]) if result else [[]] * len(crossings)
                for crossing, end in zip(crossings, ends, strict=True):
                    if crossing is not None:
                        self._end(crossing, end, error, spent)
        return result[0]

    def _begin(
        self, op: Op, controller: Any, keys: Sequence[str], indices: Any, operation: Any
    ) -> Crossing | None:
        with self._say.errors("attach/storage"):
            pool = getattr(controller, "storage_host_pool", controller.mem_pool_host)
            tokens = _tokens(operation, keys, int(controller.page_size))
            return self._open(op, pool, keys, indices, tokens, controller.storage_backend)
        return None

    def _side(self, op: Op, backend: Any, transfer: Any) -> Crossing | None:
        with self._say.errors("attach/storage"):
            pool = backend.registered_pools[transfer.name]
            keys = transfer.keys or []
            return self._open(op, pool, keys, transfer.host_indices, [0] * len(keys), backend)
        return None

    def _open(  # noqa: PLR0917
        self,
        op: Op,
        pool: Any,
        keys: Sequence[str],
        indices: Any,
        tokens: list[int],
        backend: Any,
    ) -> Crossing | None:
        session = self._say.session()
        anchor = getattr(pool, "anchor_entry", None)
        record = self._registry.of(pool if anchor is None else anchor.host_pool)
        if session is None or record is None or record.geometry is None or not len(keys):
            return None
        settings, mirror = session.settings, record.mirror
        pages = _pages(record, indices, len(keys))
        if pages is None or not _traced(settings, mirror.pool, op):
            return None
        if op is Op.FETCH:
            mirror.writes[pages] += 1
        if self._judge is None or self._judge.session is not session:
            self._judge = StorageJudge(session)
        crossing = Crossing(
            op=op,
            op_id=next(_ids),
            mirror=mirror,
            keys=tuple(keys),
            tokens=tokens,
            pages=pages,
            generations=record.generation(pages),
            indices=len(indices),
            backend=type(backend).__name__,
            chosen=_chosen(settings, keys),
            judge=self._judge,
        )
        crossing.before = self._digests(crossing)
        return crossing

    def _end(
        self, crossing: Crossing, good: list[bool], error: BaseException | None, spent: float
    ) -> None:
        session = self._say.session()
        if session is None:
            return
        crossing.good = (good + [False] * len(crossing.keys))[: len(crossing.keys)]
        crossing.error = error
        crossing.duration_us, crossing.time_ns = spent * 1e6, time.time_ns()
        if crossing.op is Op.FETCH:
            crossing.after = self._digests(crossing)
        if session.bus.push(crossing):
            session.check(crossing.found)

    def _digests(self, crossing: Crossing) -> dict[str, Digests]:
        """By component, uint64 [layers, pages that were chosen], of the host pages as they are."""
        pages = crossing.pages[crossing.chosen]
        if not len(pages):
            return {}
        return {
            component: self._digester.digest(view, range(view.layers), pages)
            for component, view in crossing.mirror.host.items()
        }


def _traced(settings: Settings, pool: str, op: Op) -> bool:
    return settings.traces(pool) and any(fnmatchcase(op, glob) for glob in settings.ops)


def _chosen(settings: Settings, keys: Sequence[str]) -> np.ndarray:
    """Which pages are digested: by key, so that a get looks at what its set looked at."""
    if settings.checksum is not Checksum.SAMPLE:
        return np.full(len(keys), settings.checksum is not Checksum.OFF)
    return np.array([crc32(key.encode()) / 2**32 < settings.sample for key in keys])


def _pages(record: PoolRecord, indices: Any, count: int) -> Pages | None:
    """Host page of each key; None where the indices are not so many whole pages of this pool."""
    if not isinstance(indices, torch.Tensor) or indices.device.type != "cpu":
        return None
    slots, mirror = np.array(indices.reshape(-1).numpy(), np.int64), record.mirror
    page = mirror.tokens_per_page if mirror.index_unit == "page" else mirror.slot_page
    run, rest = divmod(len(slots), count)
    if rest or not run:
        return None
    pages: Pages = slots[::run] // page
    inside = (pages >= 0) & (pages < len(mirror.writes))
    return pages if inside.all() else None


def _tokens(operation: Any, keys: Sequence[str], page: int) -> list[int]:
    """A digest of each page's own tokens, apart from the key that SGLang made of them; 0: unknown."""
    unknown = [0] * len(keys)
    told = getattr(operation, "token_ids", None)
    hashes = list(getattr(operation, "hash_value", None) or ())
    if told is None or keys[0] not in hashes:
        return unknown
    first = hashes.index(keys[0])
    if len(told) < (first + len(keys)) * page:
        return unknown
    found = []
    for at in range(first, first + len(keys)):
        tokens = np.asarray(list(told[at * page : (at + 1) * page]))
        if tokens.dtype == object:
            return unknown
        found.append(xxhash.xxh3_64(tokens.astype(np.int64).tobytes()).intdigest())
    return found
