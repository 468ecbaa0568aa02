"""The state that a failed operation leaves behind."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import numpy as np
import pytest
from tests.pools.copying import COMBINATIONS, mirror_of

from hicache_dbg.pools import transfer
from hicache_dbg.pools.backends import BoundMove, Copier, copier_for
from hicache_dbg.pools.geometry import IoBackend
from hicache_dbg.pools.indices import Indices
from hicache_dbg.pools.operation import CopyOp, PoolCopy
from hicache_dbg.pools.plan import Move
from hicache_dbg.pools.transfer import TransferEngine


class _Late:
    """Copies that are carried out only when waited for, the latest that a device may."""

    in_flight = 1
    stream = 1

    def __init__(self, copier: Copier) -> None:
        self._copier = copier
        self.queued: list[Callable[[], None]] = []

    def bind(self, move: Move, *, to_host: bool) -> BoundMove:
        self._bound = self._copier.bind(move, to_host=to_host)
        return self

    def copy(self, layers: Sequence[int]) -> None:
        self.queued.append(lambda: self._bound.copy(layers))

    def mark(self) -> Callable[[], None]:
        until = list(self.queued)

        def wait() -> None:
            for one in until:
                if one in self.queued:
                    one()
                    self.queued.remove(one)

        return wait


class _Told(TransferEngine):
    """A callback that raises when a backup is queued or a layer arrives, and notes how much was queued."""

    def __init__(self, late: _Late) -> None:
        self._late = late
        self.queued: list[int] = []

    def on_queued(self, stream: int, under_way: int) -> None:
        if not under_way:
            self.fail(stream)

    def fail(self, _: int) -> None:
        self.queued.append(len(self._late.queued))
        raise RuntimeError("told so")


def _copy() -> PoolCopy:
    """Return a copy of all four layers of two pages, between the host and the CPU."""
    kind, layout = COMBINATIONS[0][:2]
    mirror, _ = mirror_of(kind, layout, layers=4, host_pages=2, device_pages=2, seed=1)
    pages = Indices.pages([0, 1], mirror.device.geometry)
    return PoolCopy(
        mirror,
        pages,
        pages,
        token_granular=False,
        io_backend=IoBackend.KERNEL,
        layers=(0, 1, 2, 3),
    )


@pytest.mark.parametrize("way", ["backup", "load"])
def test_an_error_leaves_no_copy_under_way(
    way: Literal["backup", "load"], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failed operation its pages may be reused: nothing writes to them later."""
    late = _Late(copier_for("cpu", IoBackend.KERNEL))
    monkeypatch.setattr(transfer, "copier_for", lambda *_: late)
    copy = _copy()
    op = CopyOp(1, way, (copy,), np.zeros(2, dtype=np.uint32))
    engine = _Told(late)
    carry_out = (
        engine.backup if way == "backup" else partial(engine.load, on_layer_done=engine.fail)
    )
    with pytest.raises(RuntimeError, match="told so"):
        carry_out(op)
    assert engine.queued == [1]
    assert late.queued == []
    assert op.status == "failed"


class _Steps(TransferEngine):
    """Records when the load says that it is about to wait."""

    def __init__(self) -> None:
        self.steps: list[object] = []

    def on_ahead(self) -> None:
        self.steps.append("ahead")


def test_a_load_says_once_that_it_is_about_to_wait() -> None:
    """Before the first layer is reported, and never again; a backup does not."""
    copy = _copy()
    engine = _Steps()
    engine.backup(CopyOp(1, "backup", (copy,), np.zeros(2, dtype=np.uint32)))
    assert engine.steps == []
    engine.load(CopyOp(2, "load", (copy,), np.zeros(2, dtype=np.uint32)), engine.steps.append)
    assert engine.steps == ["ahead", *copy.mirror.device.geometry.layer_ids]
