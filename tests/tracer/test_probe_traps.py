"""Probe and judge in cases where a careless tracer accuses the innocent or misses a fault."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from tests.tracer.rig import LAYERS, PAGE, PAGES, Rig, outcomes, view

from hicache_dbg.tracer.digest.cpu import CpuDigester
from hicache_dbg.tracer.events import FaultClass, Finding, Op
from hicache_dbg.tracer.ledger import Digests, Pages
from hicache_dbg.tracer.mirror import MirrorViews
from hicache_dbg.tracer.settings import Checksum
from hicache_dbg.tracer.view import View

LEVELS = [Checksum.LOADS, Checksum.ENDS, Checksum.THREE]


class Beside:
    """Digests as from a GPU: those of a device are valid only after the join."""

    def __init__(self) -> None:
        self._cpu = CpuDigester()
        self._under_way: list[tuple[Digests, Digests]] = []
        self.fails = False

    def digest(
        self,
        view: View,
        layers: Sequence[int],
        pages: Pages,
        first: int = 0,
        last: int | None = None,
    ) -> Digests:
        """Digest now, but return an array that is filled later."""
        got = self._cpu.digest(replace(view, device="cpu"), layers, pages, first, last)
        if view.device == "cpu":
            return got
        later = np.full_like(got, 77)
        self._under_way.append((later, got))
        return later

    def join(self) -> None:
        """Fill the returned arrays."""
        if self.fails:
            raise RuntimeError("planted")
        for later, got in self._under_way:
            later[:] = got
        self._under_way.clear()


def on_a_device(level: Checksum) -> Rig:
    """A rig whose device end is digested beside."""
    rig = Rig(level, digester=Beside())
    rig.mirror.device["part"] = replace(rig.mirror.device["part"], device="cuda:0")
    return rig


@pytest.mark.parametrize("spans", [None, np.array([[1, 3, 1, 3]], np.int64)])
@pytest.mark.parametrize("level", LEVELS)
def test_digests_that_come_later_are_read_after_the_join(
    level: Checksum, spans: Pages | None
) -> None:
    """A flipped bit is found, and nothing else, also where digests are not there at once."""
    rig = on_a_device(level)
    page = rig.copy(Op.BACKUP, [5], [1], spans=spans)

    def store() -> None:
        rig.host[:, 5] = rig.device[:, 1]

    def load(layer_done: Callable[[int], None]) -> None:
        for layer in range(LAYERS):
            rig.device[layer, 3] = rig.host[layer, 5]
            layer_done(10 + layer)

    back = replace(page, op=Op.LOAD, device_pages=np.array([3]))
    rig.session.probe.observe(lambda: [page], store)
    rig.session.probe.observe_layers(lambda: [back], load, lambda _: None)
    rig.session.bus.flush()
    rig.host[1, 5, PAGE // 2] ^= 1
    rig.session.probe.observe_layers(lambda: [back], load, lambda _: None)
    (_, clean, flipped), (finding,) = rig.finish()
    assert outcomes(clean) == (LAYERS, 0, 0, {})
    assert outcomes(flipped) == (LAYERS - 1, 0, 1, {})
    assert finding.layer == 1


def test_a_join_that_fails_vouches_for_nothing(internal_errors: list[str]) -> None:
    """The digests may be missing: tiles are skipped{internal_error}, neither verified nor accused."""
    rig = on_a_device(Checksum.LOADS)
    assert isinstance(rig.digester, Beside)
    rig.backup([5], [1])
    rig.digester.fails = True
    rig.load([5], [3])
    (_, load), findings = rig.finish()
    assert outcomes(load) == (0, 0, 0, {"internal_error": LAYERS})
    assert findings == []
    assert internal_errors == ["digest/join: RuntimeError: planted"]
    internal_errors.clear()


@pytest.mark.parametrize("level", LEVELS)
def test_a_backup_of_some_layers_vouches_for_these_only(level: Checksum) -> None:
    """Other layers are unwitnessed; those backed up, in two parts, are verified."""
    rig = Rig(level)

    def backup(*layers: int) -> None:
        def call() -> None:
            rig.host[list(layers), 5] = rig.device[list(layers), 1]

        part = rig.copy(Op.BACKUP, [5], [1], layers=layers, model_layers=layers)
        rig.session.probe.observe(lambda: [part], call)

    backup(0)
    rig.load([5], [3])
    backup(2)
    rig.load([5], [4])
    (_, first, _, second), findings = rig.finish()
    assert outcomes(first) == (1, 0, 0, {"unwitnessed": 2})
    assert outcomes(second) == (2, 0, 0, {"unwitnessed": 1})
    assert findings == []


@pytest.mark.parametrize("level", LEVELS)
def test_a_component_without_a_mirror_is_named_as_the_cause(level: Checksum) -> None:
    """A component that is never copied keeps its old bytes: sidecar_missing, no internal error."""
    rig = Rig(level)
    scales = np.arange(rig.device.size, dtype=np.uint8).reshape(rig.device.shape)
    scales += np.arange(PAGES, dtype=np.uint8)[None, :, None]
    rig.mirror.device["scale"] = view(scales, "device")
    rig.backup([5], [1])
    rig.load([5], [3])
    (backup, load), (finding,) = rig.finish()
    part = (0, LAYERS) if level is Checksum.LOADS else (LAYERS, 0)
    assert (backup.verified, backup.witnessed) == (part[0], part[1] + LAYERS)
    assert outcomes(load) == (LAYERS, 0, LAYERS, {})
    assert (finding.cls, finding.component) == (FaultClass.SIDECAR_MISSING, "scale")


@pytest.mark.parametrize(
    ("host", "device", "reason"),
    [([PAGES], [1], "unwitnessed"), ([5], [PAGES], "unwitnessed"), ([-1], [1], "unreadable")],
)
def test_a_page_that_does_not_exist_is_recorded_with_the_engines_refusal(
    host: list[int], device: list[int], reason: str
) -> None:
    """The operation is an event with its status, and none of it a failure of the tracer."""
    rig = Rig(Checksum.LOADS)

    def refuse() -> None:
        raise ValueError("out of range")

    wrong = rig.copy(Op.BACKUP, [5], [1], host_pages=np.array(host), device_pages=np.array(device))
    with pytest.raises(ValueError, match="out of range"):
        rig.session.probe.observe(lambda: [wrong], refuse)
    rig.session.probe.observe(lambda: [wrong], lambda: None)
    (refused, passed), findings = rig.finish()
    assert refused.status == "ValueError: out of range"
    assert outcomes(refused) == (0, 0, 0, {"failed": LAYERS})
    assert outcomes(passed) == (0, 0, 0, {reason: LAYERS})
    assert findings == []


@pytest.mark.parametrize(
    ("level", "said"),
    [(Checksum.LOADS, "cannot be told any more"), (Checksum.THREE, "what the host page holds")],
)
def test_a_host_page_given_away_after_the_load_is_no_reuse(
    monkeypatch: pytest.MonkeyPatch, level: Checksum, said: str
) -> None:
    """The engine may reallocate a page once its load is done, however late the bus judges it."""
    rig = Rig(level)
    rig.backup([5], [1])
    rig.session.bus.flush()
    rig.host[0, 5, 0] ^= 1
    gate = False
    monkeypatch.setattr("hicache_dbg.tracer.probe.CopyRecord.ready", lambda _: gate)
    rig.load([5], [3])
    rig.generations[5] += 1
    rig.host[:, 5] = 9
    gate = True
    (_, load), (finding,) = rig.finish()
    assert load.mismatched == 1
    assert finding.cls is FaultClass.BIT_FLIP
    assert said in finding.message


def test_layers_that_nobody_announced_are_digested_at_the_end() -> None:
    """A finished load is complete, whatever it reported of its layers meanwhile."""
    rig = Rig(Checksum.LOADS)
    rig.backup([5], [1])

    def load(layer_done: Callable[[int], None]) -> None:
        rig.device[:, 3] = rig.host[:, 5]
        layer_done(10)

    rig.session.probe.observe_layers(lambda: [rig.copy(Op.LOAD, [5], [3])], load, lambda _: None)
    (_, event), findings = rig.finish()
    assert outcomes(event) == (LAYERS, 0, 0, {})
    assert findings == []


def test_books_of_pools_of_one_name_are_kept_apart() -> None:
    """Two caches in a process may have pools of one name and pages of one number."""
    rig = Rig(Checksum.LOADS)
    other = rig.device + np.uint8(1)
    stored = np.zeros_like(rig.host)
    mirror = MirrorViews(
        pool=rig.mirror.pool,
        device={"part": view(other, "device")},
        host={"part": view(stored, "host")},
        **{
            name: getattr(rig.mirror, name)
            for name in (
                *("device_cls", "host_cls", "index_unit", "slot_page", "tokens_per_page"),
                *("page_indexed", "pinned", "generation"),
            )
        },
    )

    def store() -> None:
        stored[:, 5] = other[:, 1]

    rig.backup([5], [1])
    rig.session.probe.observe(lambda: [rig.copy(Op.BACKUP, [5], [1], mirror=mirror)], store)
    rig.load([5], [3])
    (*_, load), findings = rig.finish()
    assert outcomes(load) == (LAYERS, 0, 0, {})
    assert findings == []


@pytest.mark.parametrize("moved_on", [False, True])
def test_under_ends_a_page_that_was_written_over_is_not_said_to_be_undelivered(
    moved_on: bool,
) -> None:
    """The bus reads the page a moment later, and claims only what it knows of source and copy."""
    rig, looked = Rig(Checksum.ENDS), threading.Event()

    def hold() -> list[Finding]:
        assert looked.wait(30)
        return []

    rig.session.check(hold)
    rig.backup([5], [1])
    rig.host[0, 5, 0] ^= 1
    if moved_on:
        rig.device[:, 1] += 1
    looked.set()
    _, (found,) = rig.finish()
    assert found.cls is FaultClass.FAILED_LOAD
    assert ("the source kept its bytes" in found.message) is not moved_on
    assert "or something wrote over it before it was read" in found.message
