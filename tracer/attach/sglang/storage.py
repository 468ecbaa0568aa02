"""SGLang's third tier: pages that go from the host into a storage backend, and come back.

The anchor's pages cross in four methods of the cache controller (generic and zero-copy, set and
get), which it keeps as bound methods. Side pools cross in the backend's ``batch_set_v2`` and
``batch_get_v2``. All run on their own threads, where host pages are digested: before a set, and
before and after a get.
"""

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any
from zlib import crc32

import numpy as np
import torch
import xxhash

from hicache_dbg.tracer.attach.sglang.arguments import argument
from hicache_dbg.tracer.attach.sglang.around import around
from hicache_dbg.tracer.attach.sglang.classes import ours
from hicache_dbg.tracer.attach.sglang.registry import PoolRecord, Registry
from hicache_dbg.tracer.attach.sglang.say import Say
from hicache_dbg.tracer.attach.sglang.storage_judge import Crossing, StorageJudge, failure_of
from hicache_dbg.tracer.attach.sglang.whose import Request
from hicache_dbg.tracer.digest.cpu import CpuDigester
from hicache_dbg.tracer.events import Op
from hicache_dbg.tracer.ledger import Digests, Pages
from hicache_dbg.tracer.settings import Checksum, Settings

__all__ = ["OF_BACKENDS", "OF_CONTROLLERS", "Storage"]

Function = Callable[..., Any]

#: Methods of the cache controller that move the anchor's pages.
OF_CONTROLLERS: Mapping[str, Op] = {
    "_generic_page_set": Op.STORE,
    "_page_set_zero_copy": Op.STORE,
    "_generic_page_get": Op.FETCH,
    "_page_get_zero_copy": Op.FETCH,
}
#: Methods of a backend that move pages of side pools.
OF_BACKENDS: Mapping[str, Op] = {"batch_set_v2": Op.STORE, "batch_get_v2": Op.FETCH}

_ids = itertools.count(1)


class Storage:
    """Follows pages into storage and back; ``say`` and ``registry`` know session and pools.

    ``whom`` returns the requests that a storage operation serves.
    """

    whom: Callable[[Any], tuple[Request, ...]] = staticmethod(lambda _: ())

    def __init__(self, say: Say, registry: Registry) -> None:
        self._say = say
        self._registry = registry
        self._digester = CpuDigester()
        self._judge: StorageJudge | None = None
        self._thread = threading.local()
        self._lock = threading.Lock()
        self._gap = False  # whether a store found no room in the ring

    # -- wrappers -------------------------------------------------------------------------------

    def backing_up(self, original: Function) -> Function:
        """Wrap ``_page_backup``: the operation whose pages are set meanwhile."""
        operation_of = argument(original, "operation", at=1)

        @wraps(original)
        def _page_backup(*args: Any, **kwargs: Any) -> Any:
            self._thread.operation = operation_of(args, kwargs)
            try:
                return original(*args, **kwargs)
            finally:
                self._thread.operation = None

        return ours(_page_backup)

    def setting(self, original: Function) -> Function:
        """Wrap a method that stores the anchor's pages."""
        keys_of, indices_of = argument(original, "", at=1), argument(original, "host_indices", at=2)

        def before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Crossing | None:
            operation = getattr(self._thread, "operation", None)
            given = keys_of(args, kwargs), indices_of(args, kwargs)
            return self._begin(Op.STORE, args[0], *given, operation)

        def after(crossing: Crossing, result: Any, error: BaseException | None) -> None:
            self._end(crossing, [error is None and bool(result)] * len(crossing.keys), error)

        return around(self._say, "attach/storage", original, before, after)

    def getting(self, original: Function) -> Function:
        """Wrap a method that fetches the anchor's pages."""
        operation_of = argument(original, "operation", at=1)
        keys_of, indices_of = argument(original, "", at=2), argument(original, "host_indices", at=3)

        def before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            operation = operation_of(args, kwargs)
            given = keys_of(args, kwargs), indices_of(args, kwargs)
            crossing = self._begin(Op.FETCH, args[0], *given, operation)
            if crossing is None:
                return None
            done = getattr(operation, "completed_tokens", 0)
            return crossing, operation, done, int(args[0].page_size)

        def after(about: Any, result: Any, error: BaseException | None) -> None:
            crossing, operation, done, page = about
            hits = 0
            if error is None:
                # Early versions count in the operation; later ones return the number of pages.
                hits = (
                    (operation.completed_tokens - done) // page if result is None else int(result)
                )
                crossing.asked = len(crossing.keys) if not operation.is_terminated() else hits
            self._end(crossing, [at < hits for at in range(len(crossing.keys))], error)

        return around(self._say, "attach/storage", original, before, after)

    def batching(self, original: Function, op: Op) -> Function:
        """Wrap a backend's method for several pools."""
        transfers_of = argument(original, "transfers", at=1)

        def before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            transfers = transfers_of(args, kwargs)
            if not isinstance(transfers, (list, tuple)):  # iterating a generator would consume it
                return None
            sides = [(each.name, self._side(op, args[0], each)) for each in transfers]
            return [(name, crossing) for name, crossing in sides if crossing is not None] or None

        def after(sides: Any, result: Any, error: BaseException | None) -> None:
            for name, crossing in sides:
                good = list(map(bool, result.get(name) or ())) if error is None else []
                self._end(crossing, good, error)

        return around(self._say, "attach/storage", original, before, after)

    # -- one call -------------------------------------------------------------------------------

    def _begin(
        self, op: Op, controller: Any, keys: Sequence[str], indices: Any, operation: Any
    ) -> Crossing | None:
        if self._say.session() is None:
            return None
        pool = getattr(controller, "storage_host_pool", None) or controller.mem_pool_host
        tokens = _tokens(operation, keys, int(controller.page_size))
        return self._open(op, pool, keys, indices, tokens, controller.storage_backend, operation)

    def _side(self, op: Op, backend: Any, transfer: Any) -> Crossing | None:
        with self._say.errors("attach/storage"):
            pool = backend.registered_pools[transfer.name]
            keys = transfer.keys or []
            indices, tokens = transfer.host_indices, [0] * len(keys)
            operation = getattr(self._thread, "operation", None)
            return self._open(op, pool, keys, indices, tokens, backend, operation)
        return None  # only this pool failed; the others are still followed

    def _open(  # noqa: PLR0917
        self,
        op: Op,
        pool: Any,
        keys: Sequence[str],
        indices: Any,
        tokens: list[int],
        backend: Any,
        operation: Any,
    ) -> Crossing | None:
        session = self._say.session()
        anchor = getattr(pool, "anchor_entry", None)
        record = self._registry.of(pool if anchor is None else anchor.host_pool)
        if session is None or record is None or record.geometry is None or not len(keys):
            return None
        settings, mirror = session.settings, record.mirror
        pages = _pages(record, indices, len(keys))
        if pages is None or not (settings.traces(mirror.pool) and settings.traces_op(op)):
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
            names=tuple(request.name for request in self.whom(operation)),
        )
        crossing.before = self._digests(crossing)
        crossing.began = time.perf_counter()
        return crossing

    def _end(self, crossing: Crossing, good: list[bool], error: BaseException | None) -> None:
        session = self._say.session()
        if session is None:
            return
        spent = time.perf_counter() - crossing.began
        crossing.good = (good + [False] * len(crossing.keys))[: len(crossing.keys)]
        crossing.status = "ok" if error is None else f"{type(error).__name__}: {error}"
        crossing.failure = failure_of(error)
        crossing.duration_us, crossing.time_ns = spent * 1e6, time.time_ns()
        if crossing.op is Op.FETCH:
            crossing.after = self._digests(crossing)
        with self._lock:
            crossing.after_gap = self._gap
            self._gap = not session.push(crossing) and (self._gap or crossing.op is Op.STORE)

    def _digests(self, crossing: Crossing) -> dict[str, Digests]:
        """Digest the chosen host pages as they are: by component, uint64 ``[layers, pages]``."""
        pages = crossing.pages[crossing.chosen]
        if not len(pages):
            return {}
        return {
            component: self._digester.digest(view, range(view.layers), pages)
            for component, view in crossing.mirror.host.items()
        }


def _chosen(settings: Settings, keys: Sequence[str]) -> np.ndarray:
    """Choose the pages to digest, by key, so that a get checks what its set digested."""
    if settings.checksum is not Checksum.SAMPLE:
        return np.full(len(keys), settings.checksum is not Checksum.OFF)
    return np.array([crc32(key.encode()) / 2**32 < settings.sample for key in keys])


def _pages(record: PoolRecord, indices: Any, count: int) -> Pages | None:
    """Return the host page of each key; None if the indices are not that many whole pages."""
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
    """Digest each page's own tokens, independently of SGLang's key; 0 if unknown."""
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
