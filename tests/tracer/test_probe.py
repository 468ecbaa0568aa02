"""Probe and judge together, on real memory: outcome of every tile, and the cause of every mismatch.

Each fault stands beside its clean twin, and each test shows that bytes moved.
"""

import threading
from collections.abc import Callable
from functools import partial

import msgspec
import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tracer.rig import LAYERS, PAGE, PAGES, WIDTH, Rig, outcomes

from hicache_dbg.tracer.digest.tiles import DigestRefusedError
from hicache_dbg.tracer.events import FaultClass, Op
from hicache_dbg.tracer.mirror import Copy
from hicache_dbg.tracer.settings import Checksum


def test_an_honest_round_trip_is_witnessed_then_verified() -> None:
    """A backup is witnessed, the load to other pages verified, and the bytes are those."""
    rig = Rig(Checksum.LOADS)
    before = rig.device[:, [1, 2]].copy()
    rig.backup([5, 6], [1, 2])
    rig.load([5, 6], [3, 4])
    (backup, load), findings = rig.finish()
    assert outcomes(backup) == (0, 6, 0, {})
    assert outcomes(load) == (6, 0, 0, {})
    assert findings == []
    assert (rig.device[:, [3, 4]] == before).all()
    assert (backup.bytes, load.bytes) == (LAYERS * 2 * PAGE,) * 2


@pytest.mark.parametrize("level", [Checksum.LOADS, Checksum.ENDS, Checksum.THREE])
def test_one_flipped_bit_at_rest_is_one_mismatched_tile(level: Checksum) -> None:
    """A bit that changes on the host between backup and load is found and called bit_flip."""
    rig = Rig(level)
    rig.backup([5, 6], [1, 2])
    rig.session.bus.flush()
    rig.host[2, 6, 9] ^= 1
    rig.load([5, 6], [3, 4])
    (_, load), (finding,) = rig.finish()
    assert outcomes(load) == (5, 0, 1, {})
    assert (finding.cls, finding.layer, finding.pages, finding.op) == (
        FaultClass.BIT_FLIP,
        2,
        (6,),
        "load",
    )
    assert finding.got == f"{xxhash.xxh3_64_intdigest(rig.host[2, 6].tobytes()):016x}"
    assert finding.expected == f"{xxhash.xxh3_64_intdigest(rig.device[2, 2].tobytes()):016x}"


def test_a_load_that_did_not_deliver_is_a_failed_load() -> None:
    """The host page is right, the device page keeps what it had: failed_load, all layers."""
    rig = Rig(Checksum.LOADS)
    rig.backup([5], [1])
    rig.load([5], [3], deliver=False)
    (_, load), (finding,) = rig.finish()
    assert outcomes(load) == (0, 0, 3, {})
    assert finding.cls is FaultClass.FAILED_LOAD


def test_a_source_that_changes_under_the_copy_is_store_before_write() -> None:
    """Three digests tell a writer that came too late from a bad transfer."""
    rig = Rig(Checksum.THREE)

    def write() -> None:
        rig.device[1, 1, 0] ^= 0xFF

    rig.backup([5], [1], during=write)
    (backup,), (finding,) = rig.finish()
    assert backup.mismatched == 1
    assert (finding.cls, finding.layer) == (FaultClass.STORE_BEFORE_WRITE, 1)


@pytest.mark.parametrize("level", [Checksum.ENDS, Checksum.THREE])
def test_both_ends_of_a_clean_backup_are_compared(level: Checksum) -> None:
    """With the host end digested too, a clean backup is verified, not only witnessed."""
    rig = Rig(level)
    rig.backup([5, 6], [1, 2])
    (backup,), findings = rig.finish()
    assert outcomes(backup) == (6, 0, 0, {})
    assert findings == []


@pytest.mark.parametrize("level", [Checksum.LOADS, Checksum.ENDS, Checksum.THREE])
def test_a_narrower_host_is_row_width_from_the_bytes_too(level: Checksum) -> None:
    """Without registration the digests find it: which slots of a page never came back is named."""
    rig = Rig(level, host_width=WIDTH // 2)
    rig.backup([5], [1])
    rig.load([5], [3])
    (_, load), findings = rig.finish()
    assert load.mismatched == 3
    assert {finding.cls for finding in findings} == {FaultClass.ROW_WIDTH}
    assert all(finding.slots == "2..3" for finding in findings)


def test_a_page_of_another_generation_is_skipped_not_accused() -> None:
    """A host page given away and never seen to be written again is reused."""
    rig = Rig(Checksum.LOADS)
    rig.backup([5, 6], [1, 2])
    rig.generations[5] += 1
    rig.load([5, 6], [3, 4])
    (_, load), findings = rig.finish()
    assert outcomes(load) == (3, 0, 0, {"reused": 3})
    assert findings == []


def test_a_late_attach_skips_what_it_never_saw() -> None:
    """A load of pages whose backup was not seen is skipped, never a mismatch."""
    rig = Rig(Checksum.LOADS)
    rig.load([5, 6], [3, 4])
    (load,), findings = rig.finish()
    assert outcomes(load) == (0, 0, 0, {"unwitnessed": 6})
    assert findings == []


def test_events_only_says_that_nothing_was_checked() -> None:
    """With checksums off every tile is skipped with that reason, and paths are counted."""
    rig = Rig(Checksum.OFF)
    rig.backup([5], [1])
    (backup,), findings = rig.finish()
    assert outcomes(backup) == (0, 0, 0, {"off": 3})
    assert findings == []


def test_sampled_pages_are_the_same_at_backup_and_load() -> None:
    """What backup left out, load leaves out: the rest is verified and nothing is unwitnessed."""
    rig = Rig(Checksum.SAMPLE, sample=0.5)
    everything = list(range(PAGES))
    rig.backup(everything, everything)
    rig.load(everything, everything[::-1])
    (backup, load), findings = rig.finish()
    assert backup.witnessed == load.verified > 0
    assert backup.skipped == load.skipped == {"sampled_out": 24 - load.verified}
    assert findings == []


def test_an_exception_of_the_copy_reaches_the_host_and_its_pages_are_forgotten() -> None:
    """The host sees its own error; what the failed backup wrote is not vouched for."""
    rig = Rig(Checksum.LOADS)
    rig.backup([5], [1])

    def fail() -> None:
        raise OSError("the bus is gone")

    with pytest.raises(OSError, match="the bus is gone"):
        rig.backup([5], [2], during=fail)
    rig.load([5], [3])
    (_, failed, load), findings = rig.finish()
    assert failed.status == "OSError: the bus is gone"
    assert outcomes(failed) == (0, 0, 0, {"failed": 3})
    assert outcomes(load) == (0, 0, 0, {"unwitnessed": 3})
    assert findings == []


def test_a_digest_that_fails_costs_the_host_nothing(
    monkeypatch: pytest.MonkeyPatch, internal_errors: list[str]
) -> None:
    """Our own failure is counted and shown as skipped{internal_error}; the copy is done."""
    rig = Rig(Checksum.LOADS)

    def broken(*_: object, **__: object) -> None:
        raise MemoryError("planted")

    monkeypatch.setattr(rig.session.probe._digester, "digest", broken)
    rig.backup([5], [1])
    (backup,), _ = rig.finish()
    assert backup.skipped == {"internal_error": 3}
    assert (rig.host[:, 5] == rig.device[:, 1]).all()
    assert len(internal_errors) == 1
    internal_errors.clear()


def test_during_graph_capture_the_reason_is_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """A digest that is refused because a graph is captured is skipped{graph}, and no error."""
    rig = Rig(Checksum.LOADS)

    def capturing(*_: object, **__: object) -> None:
        raise DigestRefusedError("graph")

    monkeypatch.setattr(rig.session.probe._digester, "digest", capturing)
    rig.backup([5], [1])
    (backup,), _ = rig.finish()
    assert backup.skipped == {"graph": 3}


def test_armed_records_nothing_until_it_is_switched_on() -> None:
    """Armed is in place and silent; switched on, the next copy is seen."""
    rig = Rig(Checksum.LOADS)
    rig.session.probe.enabled = False
    rig.backup([5], [1])
    rig.session.probe.enabled = True
    rig.backup([6], [2])
    copies, _ = rig.finish()
    assert [event.host_pages for event in copies] == [(6,)]


def test_what_is_described_later_is_the_same_event() -> None:
    """With nothing to digest copies are looked at on the bus's thread, and told as they always are."""
    told = []
    for later in (False, True):
        rig = Rig(Checksum.OFF)
        rig.session.probe.describes_later = later
        threads: list[int] = []
        opened: list[int] = []

        def copies(op: Op, rig: Rig = rig, threads: list[int] = threads) -> list[Copy]:
            threads.append(threading.get_ident())
            return [rig.copy(op, [5], [1])]

        def load(layer_done: Callable[[int], None]) -> None:
            layer_done(12)

        def fail() -> None:
            raise OSError("the bus is gone")

        probe = rig.session.probe
        probe.observe(partial(copies, Op.BACKUP), lambda: None)
        probe.observe_layers(partial(copies, Op.LOAD), load, opened.append)
        with pytest.raises(OSError, match="the bus is gone"):
            probe.observe(partial(copies, Op.BACKUP), fail)
        events, findings = rig.finish()
        assert (opened, findings) == ([12], [])
        assert (threading.get_ident() in threads) != later
        assert len(threads) == 3
        told.append(
            [msgspec.structs.replace(event, time_ns=0, duration_us=0.0) for event in events]
        )
    assert told[0] == told[1]
    assert [event.status for event in told[0]] == ["ok", "ok", "OSError: the bus is gone"]


def test_a_slot_range_is_compared_with_the_same_range_only() -> None:
    """A token-granular copy of slots 1 and 2 is verified; a load of the whole page is not vouched for."""
    rig = Rig(Checksum.LOADS)
    span = np.array([[1, 3, 1, 3]], np.int64)

    def move() -> None:
        rig.host[:, 5, WIDTH : 3 * WIDTH] = rig.device[:, 1, WIDTH : 3 * WIDTH]

    def back() -> None:
        rig.device[:, 3, WIDTH : 3 * WIDTH] = rig.host[:, 5, WIDTH : 3 * WIDTH]

    observe, part = (
        rig.session.probe.observe,
        {"spans": span, "token_granular": True, "h": 2, "d": 2},
    )
    observe(lambda: [rig.copy(Op.BACKUP, [5], [1], **part)], move)
    observe(lambda: [rig.copy(Op.LOAD, [5], [3], **part)], back)
    rig.load([5], [4])
    (backup, load, whole), findings = rig.finish()
    assert outcomes(backup) == (0, 3, 0, {})
    assert outcomes(load) == (3, 0, 0, {})
    assert outcomes(whole) == (0, 0, 0, {"unwitnessed": 3})
    assert findings == []
    assert backup.token_granular
    assert backup.bytes == LAYERS * 2 * WIDTH


def test_a_loads_last_gate_opens_after_its_digest() -> None:
    """Whoever takes the last gate for the end of the load may overwrite the pages at once."""
    rig = Rig(Checksum.LOADS)
    rig.backup([5], [1])
    opened = []

    def opens(layer: int) -> None:
        opened.append(layer)
        if layer == 12:
            rig.device[:, 3] = 0

    def load(layer_done: Callable[[int], None]) -> None:
        for layer in range(LAYERS):
            rig.device[layer, 3] = rig.host[layer, 5]
            layer_done(10 + layer)

    rig.session.probe.observe_layers(lambda: [rig.copy(Op.LOAD, [5], [3])], load, opens)
    (_, event), findings = rig.finish()
    assert opened == [10, 11, 12]
    assert outcomes(event) == (3, 0, 0, {})
    assert findings == []


page_lists = st.lists(st.integers(0, PAGES - 1), min_size=1, max_size=4, unique=True)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), page_lists), min_size=1, max_size=8),
    st.sampled_from(list(Checksum)),
    st.data(),
)
def test_outcomes_add_up_and_clean_copies_accuse_nobody(
    ops: list[tuple[bool, list[int]]], level: Checksum, data: st.DataObject
) -> None:
    """Over any order of honest backups and loads: tiles add up, and there is no finding."""
    rig = Rig(level, sample=0.5)
    for is_backup, pages in ops:
        other = data.draw(st.permutations(range(PAGES)))[: len(pages)]
        (rig.backup if is_backup else rig.load)(pages, other)
    copies, findings = rig.finish()
    assert findings == []
    assert [event.tiles for event in copies] == [LAYERS * len(pages) for _, pages in ops]
    assert not any(event.mismatched for event in copies)
