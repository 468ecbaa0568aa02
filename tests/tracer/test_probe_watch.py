"""A probe whose device follows operations by itself says what one that digests by call says.

The device is played by the CPU: the same watches, roll-ups in a table, digests when launched.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tracer.rig import LAYERS, PAGES, Rig, outcomes

from hicache_dbg.tracer import beside, following
from hicache_dbg.tracer.bus import Bus
from hicache_dbg.tracer.digest.cpu import CpuDigester
from hicache_dbg.tracer.digest.rollup import keys_of, rolled
from hicache_dbg.tracer.digest.tiles import DigestRefusedError
from hicache_dbg.tracer.digest.watch import Seen, Wanted, Watch
from hicache_dbg.tracer.events import Copied, FaultClass, Finding, Op
from hicache_dbg.tracer.judge import Judge
from hicache_dbg.tracer.mirror import Copy
from hicache_dbg.tracer.settings import Checksum

SIDE, STREAM = 0, 5


class Watched(CpuDigester):
    """A CPU that digests by call, and follows what is said to lie on a device."""

    def __init__(self) -> None:
        super().__init__()
        self.rollups: dict[str, np.ndarray] = {}
        self.under_way = 0
        self.refuses: Exception | None = None
        self.lags = False
        self.called: list[str] = []

    def digest(self, view, layers, pages, first=0, last=None):  # type: ignore[no-untyped-def]
        """By call; which device was asked is remembered."""
        self.called.append(view.device)
        return super().digest(replace(view, device="cpu"), layers, pages, first, last)

    def join(self) -> None:
        """Digests by call are there at once."""

    def watch(self, wanted: Wanted) -> Watch | None:
        """A watch of what lies on a device."""
        if self.refuses is not None:
            raise self.refuses
        if wanted.view.device == "cpu" or self.lags:
            return None
        table = self.rollups.setdefault(wanted.component, np.zeros(wanted.size, np.uint64))
        self.under_way += 1
        return Watch(Room(wanted, table, self.take_back), SIDE, loads=wanted.loads)

    def take_back(self) -> None:
        """A room is free again."""
        self.under_way -= 1


@dataclass
class Room:
    """One operation on the played device."""

    wanted: Wanted
    table: np.ndarray
    free: Callable[[], None]

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Two: whatever was digested beside is joined."""
        layers = self.wanted.layers
        return layers[:-1], layers[-1:]

    def launch(self, stream: int, side: int) -> None:
        """Digest now, and store or compare."""
        assert stream in {STREAM, side}
        wanted, keys = self.wanted, keys_of(self.wanted.generations, self.wanted.writes)
        view = replace(wanted.view, device="cpu")
        digests = CpuDigester().digest(view, wanted.layers, wanted.pages)
        found = rolled(digests, wanted.layers, keys)
        same = self.table[wanted.entries] == found if wanted.loads else np.zeros(len(found), bool)
        if not wanted.loads:
            self.table[wanted.entries] = found
        self.found = Seen(same, np.where(same, np.uint64(0), digests))

    def seen(self) -> Seen:
        """What was found."""
        return self.found

    def close(self, stream: int) -> None:
        """The order is the caller's."""
        assert stream in {STREAM, SIDE}

    @property
    def done(self) -> "Room":
        """Done when launched."""
        return self

    def query(self) -> bool:
        """Always."""
        return True

    def synchronize(self) -> None:
        """Nothing to wait for."""


def watched_rig(level: Checksum = Checksum.LOADS, sample: float = 1.0) -> Rig:
    """A rig whose device end is watched."""
    rig = Rig(level, digester=Watched(), sample=sample)
    rig.mirror.device["part"] = replace(rig.mirror.device["part"], device="cuda:0")
    rig.session.probe.watching = rig.on_device = True
    return rig


def watcher_of(rig: Rig) -> Watched:
    """The rig's digester."""
    assert isinstance(rig.digester, Watched)
    return rig.digester


def load_by_layer(rig: Rig, host: list[int], device: list[int]) -> list[int]:
    """A load that says what it queued and opens its gates; the layers whose gates were opened."""
    opened: list[int] = []

    def call(layer_done: Callable[[int], None]) -> None:
        rig.device[:, device] = rig.host[:, host]
        rig.session.probe.queued(STREAM, 3)
        for layer in range(LAYERS):
            layer_done(10 + layer)

    rig.session.probe.observe_layers(
        lambda: [rig.copy(Op.LOAD, host, device)], call, opened.append, on_device=True
    )
    return opened


class Never:
    """A record that is never ready, so that the bus takes nothing behind it."""

    def ready(self) -> bool:
        """Return False."""
        return False

    def events(self) -> tuple[()]:
        """Return nothing."""
        return ()


@pytest.mark.parametrize("sample", [1.0, 0.999999])
def test_copies_that_the_bus_never_judged_give_their_rooms_back(sample: float) -> None:
    """The session closes while they wait; the device's rooms outlive the session."""
    rig = watched_rig(Checksum.LOADS if sample == 1.0 else Checksum.SAMPLE, sample)
    rig.session.push(Never())
    rig.backup([5, 6], [1, 2])
    assert watcher_of(rig).under_way == 1
    rig.session.close(0.1)
    rig.session.bus._thread.join(30)
    assert watcher_of(rig).under_way == 0


def test_a_watched_round_trip_asks_for_no_digest_by_call() -> None:
    """Backup and load are witnessed and verified, gates open, and every room is given back."""
    rig = watched_rig()
    rig.backup([5, 6], [1, 2])
    assert load_by_layer(rig, [5, 6], [3, 4]) == [10, 11, 12]
    (backup, load), findings = rig.finish()
    assert outcomes(backup) == (0, 6, 0, {})
    assert outcomes(load) == (6, 0, 0, {})
    assert findings == []
    assert watcher_of(rig).called == []
    assert watcher_of(rig).under_way == 0


def test_a_confirmed_load_is_judged_without_its_digests(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bus shares the GIL with the engine: it looks no closer where the device confirmed all."""
    monkeypatch.setattr(Judge, "_load", None)
    rig = watched_rig()
    rig.backup([5, 6], [1, 2])
    load_by_layer(rig, [5, 6], [3, 4])
    (_, load), findings = rig.finish()
    assert outcomes(load) == (6, 0, 0, {})
    assert findings == []


def test_an_operation_of_many_pages_is_followed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """More pages than one watch takes: every part is given back, and what is found is the same."""
    monkeypatch.setattr(following, "MOST_PAGES", 2)
    rig = watched_rig()
    host, device = [5, 6, 1, 0, 3], [1, 2, 0, 5, 4]
    rig.backup(host, device)
    rig.session.bus.flush()
    rig.host[1, 0, 7] ^= 1
    load_by_layer(rig, host, device)
    (backup, load), (finding,) = rig.finish()
    assert outcomes(backup) == (0, 5 * LAYERS, 0, {})
    assert outcomes(load) == (5 * LAYERS - 1, 0, 1, {})
    assert (finding.layer, finding.pages) == (1, (0,))
    assert watcher_of(rig).under_way == 0


@pytest.mark.parametrize("level", [Checksum.LOADS, Checksum.ENDS])
def test_a_flipped_bit_is_found_by_the_watch(level: Checksum) -> None:
    """The bus resolves what was expected: one tile, with both digests, is named."""
    rig = watched_rig(level)
    rig.backup([5, 6], [1, 2])
    rig.session.bus.flush()
    rig.host[2, 6, 9] ^= 1
    load_by_layer(rig, [5, 6], [3, 4])
    (_, load), (finding,) = rig.finish()
    assert outcomes(load) == (5, 0, 1, {})
    assert (finding.cls, finding.layer, finding.pages) == (FaultClass.BIT_FLIP, 2, (6,))
    assert finding.got != finding.expected


def test_a_page_written_again_by_a_way_that_is_not_watched_is_not_confirmed() -> None:
    """A load of older bytes than the ledger's is a mismatch, whatever the device remembers of them."""
    rig = watched_rig()
    rig.backup([5], [1])
    rig.session.bus.flush()
    old = rig.host[:, 5].copy()
    span = np.array([[0, 4, 0, 4]], np.int64)  # a token-granular copy of every slot

    def store() -> None:
        rig.host[:, 5] = rig.device[:, 2]

    rig.session.probe.observe(
        lambda: [rig.copy(Op.BACKUP, [5], [2], spans=span)], store, on_device=True
    )
    rig.host[:, 5] = old
    rig.load([5], [3])
    (_, _, load), (finding,) = rig.finish()
    assert outcomes(load) == (0, 0, LAYERS, {})
    assert finding.cls is FaultClass.BIT_FLIP


@pytest.mark.parametrize(
    ("refusal", "reason"),
    [(DigestRefusedError("graph"), "graph"), (MemoryError("planted"), "internal_error")],
)
def test_what_cannot_be_watched_is_skipped_with_its_reason(
    refusal: Exception, reason: str, internal_errors: list[str]
) -> None:
    """While a graph is captured, or where we fail, the copy is done and its tiles say why not."""
    rig = watched_rig()
    watcher_of(rig).refuses = refusal
    rig.backup([5], [1])
    (backup,), _ = rig.finish()
    assert backup.skipped == {reason: LAYERS}
    assert (rig.host[:, 5] == rig.device[:, 1]).all()
    assert len(internal_errors) == (reason == "internal_error")
    internal_errors.clear()


@pytest.mark.parametrize("place", ["seen", "misfit"])
def test_a_copy_that_cannot_be_judged_gives_every_room_back(
    monkeypatch: pytest.MonkeyPatch, internal_errors: list[str], place: str
) -> None:
    """A copy watched in parts is given up at one of them, or before the first one is read."""
    monkeypatch.setattr(following, "MOST_PAGES", 1)
    rig = watched_rig()
    rig.session.bus.flush()
    if place == "seen":
        monkeypatch.setattr(Room, "seen", _broken)
    else:
        monkeypatch.setattr(beside, "misfit", _broken)
    rig.backup([5, 6, 7], [1, 2, 3])
    rig.finish()
    assert watcher_of(rig).under_way == 0
    assert len(internal_errors) == 1
    internal_errors.clear()


def test_a_room_is_given_back_once_however_much_fails(
    monkeypatch: pytest.MonkeyPatch, internal_errors: list[str]
) -> None:
    """Two operations would share a room that is given back twice, and accuse each other."""
    monkeypatch.setattr(following, "MOST_PAGES", 1)
    rig = watched_rig()
    rig.session.bus.flush()
    monkeypatch.setattr(Room, "seen", _broken)
    monkeypatch.setattr(Judge, "__call__", _broken)
    rig.backup([5, 6, 7], [1, 2, 3])
    rig.finish()
    assert watcher_of(rig).under_way == 0
    assert internal_errors == ["digest/read: OSError: planted", "bus: OSError: planted"]
    internal_errors.clear()


def test_a_watch_that_cannot_be_read_vouches_for_nothing(
    monkeypatch: pytest.MonkeyPatch, internal_errors: list[str]
) -> None:
    """A failure on the bus's thread is counted; the tiles are skipped, and the room is free again."""
    rig = watched_rig()
    rig.backup([5], [1])
    rig.session.bus.flush()
    monkeypatch.setattr(Room, "seen", _broken)
    monkeypatch.setattr(Room, "launch", lambda *_: None)
    rig.load([5], [3])
    (_, load), findings = rig.finish()
    assert load.skipped == {"internal_error": LAYERS}
    assert findings == []
    assert watcher_of(rig).under_way == 0
    assert internal_errors == ["digest/read: OSError: planted"]
    internal_errors.clear()


def _broken(*_: object) -> Seen:
    raise OSError("planted")


def test_a_failed_operation_and_a_full_ring_give_their_rooms_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever becomes of an operation or of its record, its room on the device is free again."""
    rig = watched_rig()

    def fail() -> None:
        raise OSError("the bus is gone")

    with pytest.raises(OSError, match="the bus is gone"):
        rig.backup([5], [1], during=fail)
    monkeypatch.setattr(Bus, "push", lambda *_: False)
    rig.backup([6], [2])
    monkeypatch.undo()
    (failed,), _ = rig.finish()
    assert outcomes(failed) == (0, 0, 0, {"failed": LAYERS})
    assert watcher_of(rig).under_way == 0


def test_while_the_bus_lags_digests_are_taken_by_call() -> None:
    """Where no room is free the worker waits for its digests; of a load, before the last gate opens."""
    rig = watched_rig()
    watcher = watcher_of(rig)
    watcher.lags = True
    rig.backup([5, 6], [1, 2])
    assert watcher.called == ["cuda:0"]
    seen: list[int] = []

    def call(layer_done: Callable[[int], None]) -> None:
        rig.device[:, [3, 4]] = rig.host[:, [5, 6]]
        rig.session.probe.queued(STREAM, 3)
        for layer in range(LAYERS):
            layer_done(10 + layer)

    rig.session.probe.observe_layers(
        lambda: [rig.copy(Op.LOAD, [5, 6], [3, 4])],
        call,
        lambda _: seen.append(len(watcher.called)),
        on_device=True,
    )
    (backup, load), findings = rig.finish()
    assert outcomes(backup) == (0, 6, 0, {})
    assert outcomes(load) == (6, 0, 0, {})
    assert findings == []
    assert seen == [1, 2, 1 + LAYERS]  # the last layer is digested before its gate


def test_what_moves_is_described_while_it_is_under_way() -> None:
    """No description comes before the copies are queued; of a load, one comes before its first gate."""
    rig, steps = watched_rig(), []

    def described(op: Op, host: list[int], device: list[int]) -> list[Copy]:
        steps.append("described")
        return [rig.copy(op, host, device)]

    def store() -> None:
        rig.host[:, [5]] = rig.device[:, [1]]
        steps.append("queued")
        rig.session.probe.queued(STREAM, 0)

    def fetch(layer_done: Callable[[int], None]) -> None:
        rig.device[:, [3]] = rig.host[:, [5]]
        steps.append("queued")
        for layer in range(LAYERS):
            layer_done(10 + layer)
        rig.session.probe.queued(STREAM, 3)

    probe = rig.session.probe
    probe.observe(lambda: described(Op.BACKUP, [5], [1]), store, on_device=True)
    probe.observe_layers(
        lambda: described(Op.LOAD, [5], [3]),
        fetch,
        lambda layer: steps.append(f"gate {layer}"),
        on_device=True,
    )
    assert steps == ["queued", "described", "queued", "described", "gate 10", "gate 11", "gate 12"]
    (backup, load), findings = rig.finish()
    assert (outcomes(backup), outcomes(load)) == ((0, LAYERS, 0, {}), (LAYERS, 0, 0, {}))
    assert findings == []


page_lists = st.lists(st.integers(0, PAGES - 1), min_size=1, max_size=4, unique=True)
programs = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["backup", "load"]), page_lists),
        st.tuples(st.sampled_from(["flip", "age", "part", "layers"]), page_lists),
    ),
    min_size=1,
    max_size=10,
)


@settings(max_examples=25, deadline=None)
@given(programs, st.sampled_from([Checksum.SAMPLE, Checksum.LOADS, Checksum.ENDS]), st.data())
def test_outcomes_are_those_of_digests_by_call(
    program: list[tuple[str, list[int]]], level: Checksum, data: st.DataObject
) -> None:
    """Over any program of copies, faults and reused pages: the same tiles, the same findings."""
    orders = [data.draw(st.permutations(range(PAGES))) for _ in program]
    facts = []
    for rig in (Rig(level, sample=0.5), watched_rig(level, sample=0.5)):
        for (what, pages), order in zip(program, orders, strict=True):
            _step(rig, what, pages, order[: len(pages)])
        copies, findings = rig.finish()
        facts.append(([outcomes(event) for event in copies], [_fact(item) for item in findings]))
        assert all(isinstance(event, Copied) for event in copies)
    assert facts[0] == facts[1]


def _step(rig: Rig, what: str, pages: list[int], other: list[int]) -> None:
    rig.session.bus.flush()  # what is looked at again lies still meanwhile
    if what == "flip":
        rig.host[1, pages[0], 3] ^= 4
    elif what == "age":
        rig.generations[pages] += 1
    elif what == "part":
        spans = np.tile(np.array([[0, 4, 0, 4]], np.int64), (len(pages), 1))

        def store() -> None:
            rig.host[:, pages] = rig.device[:, other]

        rig.session.probe.observe(
            lambda: [rig.copy(Op.BACKUP, pages, other, spans=spans)],
            store,
            on_device=rig.on_device,
        )
    elif what == "layers":

        def some() -> None:
            rig.host[:2, pages] = rig.device[:2, other]

        rig.session.probe.observe(
            lambda: [rig.copy(Op.BACKUP, pages, other, layers=(0, 1), model_layers=(10, 11))],
            some,
            on_device=rig.on_device,
        )
    else:
        (rig.backup if what == "backup" else rig.load)(pages, other)


def _fact(finding: Finding) -> tuple[object, ...]:
    return finding.cls, finding.layer, finding.pages, finding.expected, finding.got, finding.message
