"""Attach to our own engine: ``hicache_dbg.pools``."""

import importlib
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hicache_dbg import __version__
from hicache_dbg.pools.allocator import PageAllocator
from hicache_dbg.pools.group import PoolGroup
from hicache_dbg.pools.host import HostPool, Mirror
from hicache_dbg.pools.transfer import CopyOp, PoolCopy, TransferEngine
from hicache_dbg.tracer.attach.hicache_lifetimes import LifetimeAttachment
from hicache_dbg.tracer.attach.hicache_ranks import RankStatements
from hicache_dbg.tracer.attach.hicache_state import PoolStates
from hicache_dbg.tracer.attach.hicache_storage import StorageAttachment
from hicache_dbg.tracer.attach.hicache_views import mirror_views, pinning_of
from hicache_dbg.tracer.attach.patch import Patches
from hicache_dbg.tracer.attach.requests import RequestSpans
from hicache_dbg.tracer.attach.spans import slot_spans
from hicache_dbg.tracer.checks.layout import check_readings
from hicache_dbg.tracer.checks.pinning import check_pinning
from hicache_dbg.tracer.checks.registration import check_coverage
from hicache_dbg.tracer.events import Op, Tier
from hicache_dbg.tracer.ledger import Pages
from hicache_dbg.tracer.mirror import Copy, MirrorViews, SpanIds
from hicache_dbg.tracer.session import CorruptionFoundError, Session
from hicache_dbg.tracer.sink import PoolState

if TYPE_CHECKING:
    from hicache_dbg.pools.controller import HiCacheController
    from hicache_dbg.pools.pinning import PinState
    from hicache_dbg.tracer.attach.hicache_handover import HandoverAttachment

__all__ = ["HiCacheAttachment"]

SYSTEM = "hicache_dbg.pools"
CONTROLLER = "hicache_dbg.pools.controller"
#: The module whose import means that this process takes part in a prefill-decode handover.
HANDOVER = "hicache_dbg.pools.handover.decode"
GenerationReader = Callable[[Pages], Pages]
#: How long detaching waits for the bus to describe its queued copies, in seconds.
_LAST_WORDS_S = 2.0


class _Fixed(NamedTuple):
    """What all copies on one mirror share.

    ``model_layers`` are the model's numbers of ``layers``.
    """

    views: MirrorViews
    host_slots: int
    device_slots: int
    layers: tuple[int, ...]
    model_layers: tuple[int, ...]


class HiCacheAttachment:
    """Wraps the two methods of the engine through which bytes cross a tier.

    ``attach`` and ``detach`` are a symmetric, idempotent pair; after ``detach`` the engine's
    functions are the very same objects as before.
    """

    system = SYSTEM
    version = __version__

    def __init__(self, session: Session) -> None:
        self._session = session
        self._patches = Patches()
        self.lifetimes = LifetimeAttachment(session)
        #: Follows pages from prefill to decode; None until a handover module is imported.
        self.handover: HandoverAttachment | None = None
        self._ranks = RankStatements(session, self._views_of)
        self._requests = RequestSpans(session.errors)
        self._views: dict[int, MirrorViews] = {}
        self._fixed: dict[int, _Fixed] = {}
        self._storage = StorageAttachment(
            session, self._views_of, self.lifetimes.filled, self._requests.here
        )
        self._pinned: dict[int, PinState] = {}
        self._states = PoolStates()

    def attach(self) -> None:
        """Wrap what is not wrapped yet; idempotent."""
        self._patches.replace(TransferEngine, "backup", self._around_backup)
        self._patches.replace(TransferEngine, "load", self._around_load)
        self._patches.replace(TransferEngine, "on_queued", self._around_on_queued)
        self._patches.replace(TransferEngine, "on_ahead", self._around_on_ahead)
        self._session.probe.watching = self._session.probe.describes_later = True
        if CONTROLLER not in sys.modules:
            importlib.import_module(CONTROLLER)
        # While that module is still being imported, the class does not exist yet: the gate's
        # post-import hook for it calls attach() again.
        controller = getattr(sys.modules[CONTROLLER], "HiCacheController", None)
        if controller is not None:
            self._patches.replace(controller, "__init__", self._after_construction)
            self.lifetimes.attach_controller(controller)
            self._ranks.attach(controller)
        self.lifetimes.attach()
        self._storage.attach()
        if self.handover is None and HANDOVER in sys.modules:
            from hicache_dbg.tracer.attach.hicache_handover import HandoverAttachment

            self.handover = HandoverAttachment(self._session, self._views_of)
        if self.handover is not None:
            self.handover.attach()
        self._requests.attach()

    def detach(self) -> None:
        """Restore the engine's own functions; idempotent."""
        # The functions are restored one by one while the host runs. Whatever is seen in between is
        # incomplete and would lead to false findings.
        self._session.probe.enabled = False
        self._requests.detach()  # these two first: they wrap our own wrappers
        self._ranks.detach()
        self.lifetimes.detach()
        self._storage.detach()
        if self.handover is not None:
            self.handover.detach()
        self._patches.undo()
        self._session.probe.watching = self._session.probe.describes_later = False
        self._session.bus.settle(_LAST_WORDS_S)  # the bus may still have copies to describe
        self._views.clear()
        self._fixed.clear()
        self._pinned.clear()

    def pool_state(self) -> Iterator[PoolState]:
        """Return pages by pool, tier and state, and lookup outcomes, at the time of the call."""
        return self._states.read()

    def _around_backup(self, original: Callable[..., None]) -> Callable[..., None]:
        def backup(engine: TransferEngine, op: CopyOp) -> None:
            if not self._session.probe.enabled:
                original(engine, op)
                return
            if op.after is not None:  # the source's writer, for which the engine would wait anyway
                op.after.synchronize()
            self._look_at(op)
            asked = self._requests.of(op)
            self._session.probe.observe(
                lambda: self._copies(op, Op.BACKUP, asked),
                lambda: original(engine, op),
                on_device=_on_device(op),
            )

        return backup

    def _around_load(self, original: Callable[..., None]) -> Callable[..., None]:
        def load(engine: TransferEngine, op: CopyOp, on_layer_done: Callable[[int], None]) -> None:
            if not self._session.probe.enabled:
                original(engine, op, on_layer_done)
                return
            self._look_at(op)
            asked = self._requests.of(op)
            self._session.probe.observe_layers(
                lambda: self._copies(op, Op.LOAD, asked),
                lambda layer_done: original(engine, op, layer_done),
                on_layer_done,
                on_device=_on_device(op),
            )

        return load

    def _around_on_queued(self, original: Callable[..., None]) -> Callable[..., None]:
        def on_queued(engine: TransferEngine, stream: int, under_way: int) -> None:
            original(engine, stream, under_way)
            self._session.probe.queued(stream, under_way)

        return on_queued

    def _around_on_ahead(self, original: Callable[..., None]) -> Callable[..., None]:
        def on_ahead(engine: TransferEngine) -> None:
            original(engine)
            self._session.probe.ahead()

        return on_ahead

    def _after_construction(self, original: Callable[..., None]) -> Callable[..., None]:
        def __init__(controller: "HiCacheController", *args: Any, **kwargs: Any) -> None:  # noqa: N807
            original(controller, *args, **kwargs)
            with self._session.errors.at("attach/controller"):
                self._states.add(controller)
                host = controller.allocators[Tier.HOST.value]
                self._register(controller.group.mirrors, _generations_of(host))
                self._ranks.built(map(self._views_of, controller.group.mirrors))
                self._look_at_coverage(controller.group)
            try:
                self._session.enforce()
            except CorruptionFoundError:
                controller.close()  # its workers are running, and no caller will ever own it
                raise

        return __init__

    def _look_at(self, op: CopyOp) -> None:
        """Check the pinning now, before the copy; the copies themselves may be described later."""
        try:
            for copy in op.copies:
                mirror = copy.mirror
                if self._pinned.get(id(mirror)) is not mirror.host.pinned:
                    self._views_of(mirror)
                    self._look_at_pinning(mirror)
        except Exception as error:
            self._session.errors.record("attach/mirrors", error)
            if self._session.errors.reraise:
                raise

    def _copies(self, op: CopyOp, kind: Op, asked: Sequence[SpanIds]) -> list[Copy]:
        return [self._copy(op, copy, kind, asked) for copy in op.copies]

    def _copy(self, op: CopyOp, copy: PoolCopy, kind: Op, asked: Sequence[SpanIds]) -> Copy:
        fixed = self._fixed.get(id(copy.mirror)) or self._fix(copy.mirror)
        host_ids, device_ids = copy.host, copy.device
        host_pages = host_ids.page_ids(fixed.host_slots)
        device_pages = device_ids.page_ids(fixed.device_slots)
        generations, spans = op.host_generations.astype(np.int64), None
        if copy.token_granular:
            host_pages, device_pages, spans, first = slot_spans(
                host_ids.ids, device_ids.ids, fixed.host_slots, fixed.device_slots
            )
            generations = generations[first]
        layers, model_layers = fixed.layers, fixed.model_layers
        if copy.layers != layers:
            layers = copy.layers
            model_layers = tuple(model_layers[own] for own in layers)
        return Copy(
            mirror=fixed.views,
            op=kind,
            host_pages=host_pages,
            device_pages=device_pages,
            generations=generations,
            h=len(host_ids),
            d=len(device_ids),
            token_granular=copy.token_granular,
            io_backend=copy.io_backend.value,
            layers=layers,
            model_layers=model_layers,
            op_id=op.op_id,
            spans=spans,
            requests=asked,
        )

    def _fix(self, mirror: Mirror) -> "_Fixed":
        host, device = mirror.host.geometry, mirror.device.geometry
        fixed = self._fixed[id(mirror)] = _Fixed(
            views=self._views_of(mirror),
            host_slots=host.slots_per_page,
            device_slots=device.slots_per_page,
            layers=tuple(range(device.layers)),
            model_layers=tuple(device.layer_ids),
        )
        weakref.finalize(mirror, self._fixed.pop, id(mirror), None)
        return fixed

    def _look_at_coverage(self, group: PoolGroup) -> None:
        """Report device pools under these pages that are never copied and not waived."""
        bytes_of = {
            pool.geometry.name: pool.nbytes // pool.pages for pool in group.unmirrored if pool.pages
        }
        now, rank = time.time_ns(), self._session.settings.rank
        self._session.check(lambda: check_coverage(bytes_of, group.waived, time_ns=now, rank=rank))

    def _look_at_pinning(self, mirror: Mirror) -> None:
        """Report host memory whose pinning changed since the pool was registered."""
        state = mirror.host.pinned
        before = self._pinned.get(id(mirror))
        if before is state:
            return
        self._pinned[id(mirror)] = state
        if before is None:
            return
        was, pin = self._views_of(mirror).pinning, pinning_of(mirror.host)
        now, rank = time.time_ns(), self._session.settings.rank
        self._session.check(
            lambda: check_pinning(mirror.name, pin, time_ns=now, rank=rank, was=was)
        )

    def _views_of(self, mirror: Mirror) -> MirrorViews:
        views = self._views.get(id(mirror))
        if views is None:  # the engine is used without a controller, or we attached late
            (views,) = self._register([mirror], None)
        return views

    def _register(
        self, mirrors: Iterable[Mirror], generation: GenerationReader | None
    ) -> list[MirrorViews]:
        """Read both ends of each mirror off the tensors, check them, and announce them.

        ``generation`` reads the host allocator of the cache that the mirrors form; None for a
        single mirror.
        """
        seen, known = [], tuple(self._views.values())
        for mirror in mirrors:
            views, before = mirror_views(mirror, generation), self._views.get(id(mirror))
            if before is not None:  # an earlier cache had these pools, or they were met alone
                views = replace(views, writes=before.writes)
            self._views[id(mirror)] = views
            self._fixed.pop(id(mirror), None)
            self._pinned[id(mirror)] = mirror.host.pinned
            weakref.finalize(mirror, self._views.pop, id(mirror), None)
            weakref.finalize(mirror, self._pinned.pop, id(mirror), None)
            seen.append(views)
        # A mirror registered alone may belong to a cache whose other mirrors are not known yet.
        cache = () if generation is None else [views.pool for views in seen]
        self._session.register(seen, host_classes=host_classes(), cache=cache)
        now, rank = time.time_ns(), self._session.settings.rank
        self._session.check(
            lambda: [
                finding
                for views in seen
                for finding in check_readings(views, known, time_ns=now, rank=rank)
            ]
        )
        return seen


def _on_device(op: CopyOp) -> bool:
    """Return whether a device can follow every copy."""
    return all(copy.mirror.device.device.type != "cpu" for copy in op.copies)


def _generations_of(allocator: PageAllocator) -> GenerationReader:
    return lambda pages: allocator.generation(pages).astype(np.int64)


def host_classes() -> tuple[str, ...]:
    """Return the names of every host pool class of the engine, built or not."""
    found, waiting = [], list(HostPool.__subclasses__())
    while waiting:
        cls = waiting.pop()
        waiting.extend(cls.__subclasses__())
        found.append(cls.__name__)
    return tuple(sorted(found))
