"""No page can be written again between its digest and the mark behind its operation.

The watch that the GPU's digests run under is driven here over simulated streams, which take any
order a device may take, beside a stream that writes every page again as soon as it may. What is
found is checked twice: by the bytes each digest saw, and by the happens-before of the ordering checks.
"""

from collections.abc import Callable
from itertools import count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hicache_dbg.pools.streams import Event, SimulatedStreams
from hicache_dbg.tracer.checks.ordering import Ordering, Role, Space
from hicache_dbg.tracer.checks.ordering_clocks import ActorId, Clocks
from hicache_dbg.tracer.checks.violation import Access, Violation
from hicache_dbg.tracer.digest.watch import Seen, Watch

LAYERS, PAGES = 5, 6
#: A load's groups: the last layers are digested by themselves.
GROUPS = ((0, 1), (2, 3, 4))
#: A backup's, and a small load's.
WHOLE = (tuple(range(LAYERS)),)
SPACE = Space("device", "kv")
HOST = ActorId(1000)
COPY, SIDE, WRITER = (ActorId(2000 + n) for n in range(3))

Pages = list[int]


class World:
    """Streams and memory; every access is also told to the ordering checks."""

    def __init__(self, seed: int) -> None:
        self.memory = np.zeros((LAYERS, PAGES), np.int64)
        self.found: list[Violation] = []
        self._streams = SimulatedStreams(seed)
        self._clocks, self._ordering = Clocks(), Ordering()
        self._ordering.watch(SPACE, LAYERS, PAGES)
        self._kept: list[Event] = []  # so that no two have one identity

    def submit(
        self,
        stream: int,
        role: Role,
        layers: tuple[int, ...],
        pages: Pages,
        work: Callable[[], object],
    ) -> None:
        """Work of ``stream`` on these tiles."""
        actor = ActorId(stream)
        self.found += self._ordering.access(
            SPACE,
            layers,
            np.array(pages),
            role=role,
            stamp=self._clocks.submit(HOST, actor),
            by=Access(role.name, f"stream {stream}"),
        )
        self._streams.stream(str(stream)).submit(work)

    def record(self, stream: int) -> Event:
        """Record an event after the work of ``stream`` so far."""
        event = self._streams.stream(str(stream)).record()
        self._kept.append(event)
        self._clocks.record(ActorId(stream), id(event))
        return event

    def wait(self, stream: int, event: Event) -> None:
        """Make ``stream`` wait for ``event``."""
        self._streams.stream(str(stream)).wait_for(event)
        self._clocks.wait(ActorId(stream), id(event))

    def block(self, event: Event) -> None:
        """Make the host wait for ``event``."""
        event.synchronize()
        self._clocks.wait(HOST, id(event))

    def run(self) -> None:
        """Run everything."""
        self._streams.synchronize()


class Room:
    """The device's side of a watch, on simulated streams."""

    def __init__(
        self, world: World, pages: Pages, *, loads: bool, groups: tuple[tuple[int, ...], ...]
    ) -> None:
        self.world, self.pages = world, pages
        self.role = Role.COMPUTE_READ if loads else Role.BACKUP_READ
        self.groups = groups if loads else WHOLE
        self.values = np.full((LAYERS, len(pages)), -1)

    def launch(self, stream: int, side: int) -> None:
        """Digest the first group."""
        del side
        self._submit(stream, self.groups[0])
        self._event = self._beside = self.world.record(stream)

    def close(self, stream: int) -> None:
        """Digest the second group after the first."""
        self.world.wait(stream, self._beside)
        for layers in self.groups[1:]:
            self._submit(stream, layers)
            self._event = self.world.record(stream)

    def _submit(self, stream: int, layers: tuple[int, ...]) -> None:
        self.world.submit(stream, self.role, layers, self.pages, lambda: self._digest(layers))

    @property
    def done(self) -> "Room":
        """Event; host waits on it are also reported to the checks."""
        return self

    def query(self) -> bool:
        """Return whether the digests are complete."""
        return self._event.query()

    def synchronize(self) -> None:
        """Block until they are complete."""
        self.world.block(self._event)

    def seen(self) -> Seen:
        """Do nothing: nobody reads here."""
        raise NotImplementedError

    def free(self) -> None:
        """Do nothing: every operation has its own room."""

    def _digest(self, layers: tuple[int, ...]) -> None:
        self.values[list(layers)] = self.world.memory[np.ix_(layers, self.pages)]


class Unheld(Room):
    """A faulty watch: the engine's stream does not wait for the side stream."""

    def close(self, stream: int) -> None:
        """Wait for nothing."""
        for layers in self.groups[1:]:
            self._submit(stream, layers)


class Unplaced(Room):
    """A faulty watch: the second group is digested on the side stream, not after its copies."""

    def close(self, stream: int) -> None:
        """Digest on the side stream."""
        super().close(SIDE)
        self.world.wait(stream, self._event)


class Aside(Room):
    """A faulty watch: all of a load is digested on the side stream, not after its copies."""

    def launch(self, stream: int, side: int) -> None:
        """Digest on the side stream, for which the engine's stream waits."""
        super().launch(side, side)
        self.world.wait(stream, self._event)


class Engine:
    """Copies in one stream; another writes pages again once their operation is marked as over."""

    def __init__(self, seed: int, room: type[Room]) -> None:
        self.world, self._room = World(seed), room
        self._values = count(1)
        self._may_use: dict[int, Event] = {}
        self.rooms: list[tuple[Room, np.ndarray]] = []
        self.watches: list[Watch] = []
        everything = list(range(PAGES))
        self._last = np.zeros((LAYERS, PAGES), np.int64)
        self._write(WRITER, tuple(range(LAYERS)), everything, Role.LOAD_WRITE)
        self._release(everything, self.world.record(WRITER))

    def operate(self, pages: Pages, *, loads: bool, says: str, small: bool = False) -> None:
        """One operation; what it ``says`` of its copies is one of :data:`SAYS`."""
        for page in pages:
            self.world.wait(COPY, self._may_use[page])
            if not loads:  # it is asked for when its source is whole
                self.world.block(self._may_use[page])
        groups = WHOLE if small else GROUPS
        room = self._room(self.world, pages, loads=loads, groups=groups)
        watch = Watch(room, SIDE, loads=loads)
        expected = np.zeros((LAYERS, len(pages)), np.int64)
        for group in GROUPS:
            if loads:
                expected[list(group)] = self._write(COPY, group, pages, Role.LOAD_WRITE)
            else:
                expected[list(group)] = self._last[np.ix_(group, pages)]
                self.world.submit(COPY, Role.BACKUP_READ, group, pages, lambda: None)
            if loads and group is not GROUPS[-1]:
                self._tell(watch, says)
        self._finish(watch, says)
        self.rooms.append((room, expected))
        self.watches.append(watch)
        self.world.wait(WRITER, self.world.record(COPY))
        self._write(WRITER, tuple(range(LAYERS)), pages, Role.LOAD_WRITE)
        self._release(pages, self.world.record(WRITER))

    def _tell(self, watch: Watch, says: str) -> None:
        if says == "each group":
            watch.arrived(COPY)
        elif says == "what is there":
            self.world.block(self.world.record(COPY))

    def _finish(self, watch: Watch, says: str) -> None:
        if says != "nothing":
            watch.queued(COPY, len(GROUPS[-1]) if says == "what is there" else LAYERS)
        else:
            self.world.block(self.world.record(COPY))
            watch.finish()

    def _write(self, stream: int, layers: tuple[int, ...], pages: Pages, role: Role) -> int:
        value, tiles = next(self._values), np.ix_(layers, pages)
        self._last[tiles] = value

        def work() -> None:
            self.world.memory[tiles] = value

        self.world.submit(stream, role, layers, pages, work)
        return value

    def _release(self, pages: Pages, event: Event) -> None:
        self._may_use |= dict.fromkeys(pages, event)


#: What an engine says of an operation's copies: nothing, so that it is waited for; that all are
#: queued; that a load's first group is, and then all; that all are, when the host has seen the first.
SAYS = ("nothing", "all", "each group", "what is there")

operations = st.lists(
    st.tuples(
        st.lists(st.integers(0, PAGES - 1), min_size=1, max_size=3, unique=True),
        st.booleans(),
        st.sampled_from(SAYS),
        st.booleans(),
    ),
    min_size=1,
    max_size=8,
)


@settings(deadline=None)
@given(seed=st.integers(0, 10_000), program=operations)
def test_every_digest_is_of_its_own_operations_bytes(
    seed: int, program: list[tuple[Pages, bool, str, bool]]
) -> None:
    """In any order a device may take: no digest is early or late, and none is unordered."""
    engine = Engine(seed, Room)
    for pages, loads, says, small in program:
        engine.operate(pages, loads=loads, says=says, small=small)
    engine.world.run()
    assert engine.world.found == []
    assert all(watch.ready() for watch in engine.watches)
    for room, expected in engine.rooms:
        assert (room.values == expected).all()


@pytest.mark.parametrize(
    ("room", "loads", "says", "small"),
    [
        (Unheld, False, "all", False),
        (Unheld, True, "what is there", False),
        (Unplaced, True, "what is there", False),
        (Unplaced, True, "each group", False),
        (Aside, True, "all", False),
        (Aside, True, "each group", False),
        (Aside, True, "all", True),
    ],
)
def test_without_one_of_its_waits_a_digest_can_be_wrong(
    room: type[Room], loads: bool, says: str, small: bool
) -> None:
    """Each wait is needed: without it some order gives a wrong digest, and the checks see it in all."""
    wrong = 0
    for seed in range(60):
        engine = Engine(seed, room)
        engine.operate([1, 2], loads=loads, says=says, small=small)
        engine.world.run()
        assert engine.world.found
        ((seen, expected),) = engine.rooms
        wrong += bool((seen.values != expected).any())
    assert wrong


@pytest.mark.parametrize("under_way", range(LAYERS + 1))
def test_a_first_group_that_may_be_missing_is_digested_behind_its_copies(under_way: int) -> None:
    """Only what the host knows to be there is digested beside the rest, on a stream that waits for nothing."""
    launched: list[int] = []

    class Listening(Room):
        def launch(self, stream: int, side: int) -> None:
            launched.append(stream)
            super().launch(stream, side)

    engine = Engine(1, Listening)
    room = Listening(engine.world, [1], loads=True, groups=GROUPS)
    watch = Watch(room, SIDE, loads=True)
    watch.queued(COPY, under_way)
    assert launched == [COPY if under_way > len(GROUPS[-1]) else SIDE]
