"""Write a timeline as a Perfetto trace, for https://ui.perfetto.dev.

The packets of https://perfetto.dev/docs/reference/synthetic-track-event are written one by one, so
that a long run needs no memory. What slices of one kind have in common is encoded once, and names
are written once and then referred to by number. Overlapping slices on one track would be read as
nested, so they are distributed over lanes, each a track of its own.
"""

from collections.abc import Callable, Iterable, Mapping
from heapq import heappop, heappush
from pathlib import Path

from hicache_dbg.exporters.protobuf import fixed64, message, number, text, varint
from hicache_dbg.exporters.timeline import Instant, Kind, Slice, Value
from hicache_dbg.exporters.writing import why_not

__all__ = ["PerfettoError", "write_perfetto"]

#: Fields of the messages, by name.
_TRACE_PACKET = 1
_TIMESTAMP, _SEQUENCE_ID, _TRACK_EVENT, _INTERNED, _FLAGS, _TRACK = 8, 10, 11, 12, 13, 60
_ANNOTATION, _TYPE, _NAME_IID, _TRACK_UUID, _FLOW, _LAST_FLOW = 4, 9, 10, 11, 47, 48
_UUID, _TRACK_NAME, _PARENT = 1, 2, 5
_NOTE_IID, _NOTE_BOOL, _NOTE_INT, _NOTE_TEXT = 1, 2, 4, 6
_EVENT_NAMES, _NOTE_NAMES = 2, 3
_IID, _IID_NAME = 1, 2
_CLEARED, _NEEDED = 1, 2
_BEGIN, _END, _INSTANT = number(_TYPE, 1), number(_TYPE, 2), number(_TYPE, 3)
#: All packets come from one writer, and refer to names that it wrote before.
_SEQUENCE = number(_SEQUENCE_ID, 1)
_REFERRING = _SEQUENCE + number(_FLAGS, _NEEDED)

#: Most kinds whose encoding is kept.
_MOST_KINDS = 1 << 16
_HALF_BITS = 14
_HALF = (1 << _HALF_BITS) - 1
#: 14 bits each, as two bytes of a longer varint.
_HALVES = [bytes((low & 127 | 128, low >> 7 | 128)) for low in range(_HALF + 1)]
_TIMESTAMP_TAG = number(_TIMESTAMP, 0)[:-1]
_EVENT_TAG = message(_TRACK_EVENT, b"")[:-1]
_FLOW_TAG, _LAST_FLOW_TAG = fixed64(_FLOW, 0)[:-8], fixed64(_LAST_FLOW, 0)[:-8]
_PACKET_TAG = message(_TRACE_PACKET, b"")[:-1]


class PerfettoError(Exception):
    """The trace cannot be written; the message says why and what to do."""


def write_perfetto(path: Path, slices: Iterable[Slice], instants: Iterable[Instant]) -> int:
    """Write ``slices``, sorted by start, and ``instants``; return how many there were.

    Raises:
        PerfettoError: the file cannot be written.
    """
    try:
        with path.open("wb", buffering=1 << 20) as file:
            writer = _Writer(file.write)
            for one in slices:
                writer.slice(one)
            for instant in instants:
                writer.instant(instant)
    except OSError as error:
        raise PerfettoError(f"cannot write {path}: {why_not(path, error)}") from error
    return writer.written


class _Lanes:
    """The lanes of a track: which are free from when on."""

    def __init__(self) -> None:
        self.count = 0
        self._busy: list[tuple[int, int]] = []  # until when, and the lane
        self._free: list[int] = []

    def taken(self, start_ns: int, end_ns: int) -> int:
        """Return the first lane that is free at ``start_ns``, and occupy it until ``end_ns``."""
        busy, free = self._busy, self._free
        while busy and busy[0][0] <= start_ns:
            heappush(free, heappop(busy)[1])
        if free:
            lane = heappop(free)
        else:
            lane, self.count = self.count, self.count + 1
        heappush(busy, (end_ns, lane))
        return lane


class _Writer:
    """Turns slices and instants into packets, and creates tracks and names on first use."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self.written = 0
        self._write = write
        self._tracks: dict[tuple[str, ...], int] = {}
        self._lanes: dict[tuple[str, ...], _Lanes] = {}
        self._ends: dict[tuple[tuple[str, ...], int], tuple[bytes, bytes]] = {}
        self._names: dict[tuple[int, str], int] = {}
        self._kinds: dict[Kind, bytes] = {}
        self._late = -1
        self._late_bytes = b""
        self._packet(_SEQUENCE + number(_FLAGS, _CLEARED))
        self._op_id = (
            number(_NOTE_IID, self._named(_NOTE_NAMES, "op_id")) + number(_NOTE_INT, 0)[:-1]
        )

    def slice(self, one: Slice) -> None:
        """Write two packets: begin and end."""
        kind, start_ns, duration_ns, op_id, begins, ends = one
        end_ns = start_ns + max(1, duration_ns)
        begin, end = self._lane(kind.track, start_ns, end_ns)
        event = begin + (self._kinds.get(kind) or self._encoded(kind))
        if op_id is not None:
            event += message(_ANNOTATION, self._op_id + varint(op_id))
        for flow in begins:
            event += _FLOW_TAG + flow.to_bytes(8, "little")
        for flow in ends:
            event += _LAST_FLOW_TAG + flow.to_bytes(8, "little")
        self._timed(start_ns, _event(event))
        self._timed(end_ns, end)
        self.written += 1

    def instant(self, one: Instant) -> None:
        """Write one packet."""
        event = _INSTANT + number(_TRACK_UUID, self._track(one.track))
        name = number(_NAME_IID, self._named(_EVENT_NAMES, one.name))
        self._timed(one.time_ns, _event(event + name + self._details(one.details)))
        self.written += 1

    def _timed(self, time_ns: int, rest: bytes) -> None:
        """Write a packet of a time and the rest; a time before 1970 would spoil the whole file."""
        time_ns = max(0, time_ns)
        late = time_ns >> 2 * _HALF_BITS
        if late != self._late:
            self._late, self._late_bytes = late, varint(late)
        self._packet(
            _TIMESTAMP_TAG
            + _HALVES[time_ns & _HALF]
            + _HALVES[time_ns >> _HALF_BITS & _HALF]
            + self._late_bytes
            + rest
        )

    def _packet(self, packet: bytes) -> None:
        self._write(_PACKET_TAG + varint(len(packet)) + packet)

    def _lane(self, track: tuple[str, ...], start_ns: int, end_ns: int) -> tuple[bytes, bytes]:
        """Occupy a free lane of ``track``.

        Return how a begin event on it begins, and what its end's packet holds beside the time.
        """
        lanes = self._lanes.get(track)
        if lanes is None:
            lanes = self._lanes[track] = _Lanes()
        place = track, lanes.taken(start_ns, end_ns)
        known = self._ends.get(place)
        if known is None:
            lane = place[1]
            uuid = number(_TRACK_UUID, self._track(_numbered(track, lane + 1) if lane else track))
            known = self._ends[place] = _BEGIN + uuid, _event(_END + uuid)
        return known

    def _track(self, track: tuple[str, ...]) -> int:
        """Return the id of ``track``; describe it and its parents on first use."""
        known = self._tracks.get(track)
        if known is not None:
            return known
        *outer, name = track
        above = self._track(tuple(outer)) if outer else 0
        uuid = self._tracks[track] = len(self._tracks) + 1
        described = number(_UUID, uuid) + text(_TRACK_NAME, name)
        if above:
            described += number(_PARENT, above)
        self._packet(_SEQUENCE + message(_TRACK, described))
        return uuid

    def _named(self, of: int, name: str) -> int:
        """Return the number of a name; write the name on first use."""
        known = self._names.get((of, name))
        if known is None:
            known = self._names[of, name] = len(self._names) + 1
            entry = message(of, number(_IID, known) + text(_IID_NAME, name))
            self._packet(_REFERRING + message(_INTERNED, entry))
        return known

    def _encoded(self, kind: Kind) -> bytes:
        """Return a kind's name and details, and keep them."""
        if len(self._kinds) >= _MOST_KINDS:
            self._kinds.clear()
        name = number(_NAME_IID, self._named(_EVENT_NAMES, kind.name))
        encoded = self._kinds[kind] = name + self._details(kind.details)
        return encoded

    def _details(self, details: Mapping[str, Value]) -> bytes:
        return b"".join(
            message(_ANNOTATION, number(_NOTE_IID, self._named(_NOTE_NAMES, name)) + _value(value))
            for name, value in details.items()
        )


def _event(event: bytes) -> bytes:
    """Return what the packet of a track event holds beside the time."""
    return _REFERRING + _EVENT_TAG + varint(len(event)) + event


def _value(value: Value) -> bytes:
    match value:
        case bool():
            return number(_NOTE_BOOL, value)
        case int():
            return number(_NOTE_INT, value)
        case _:
            return text(_NOTE_TEXT, value)


def _numbered(track: tuple[str, ...], lane: int) -> tuple[str, ...]:
    *above, name = track
    return (*above, f"{name} ({lane})")
