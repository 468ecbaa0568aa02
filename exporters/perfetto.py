"""Write a timeline as a Perfetto trace, for https://ui.perfetto.dev.

Packets are written one by one, so that a long run needs no memory. Overlapping slices on one track
would be read as nested, so they are distributed over lanes, each a track of its own.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hicache_dbg.exporters.parts import PartMissingError
from hicache_dbg.exporters.timeline import Instant, Slice, Value
from hicache_dbg.exporters.writing import why_not

__all__ = ["PerfettoError", "write_perfetto"]

#: Packet sequence id: all packets come from one writer.
_SEQUENCE = 1


class PerfettoError(Exception):
    """The trace cannot be written; the message says why and what to do."""


def write_perfetto(path: Path, slices: Iterable[Slice], instants: Iterable[Instant]) -> int:
    """Write ``slices``, sorted by start, and ``instants``; return how many there were.

    Raises:
        PerfettoError: the file cannot be written.
        PartMissingError: the ``perfetto`` package is not installed.
    """
    try:
        from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder
    except ImportError as error:
        raise PartMissingError("a Perfetto trace needs", "perfetto", "perfetto") from error
    try:
        with path.open("wb") as file:
            writer = _Writer(StreamingTraceProtoBuilder(file))
            for one in slices:
                writer.slice(one)
            for instant in instants:
                writer.instant(instant)
    except OSError as error:
        raise PerfettoError(f"cannot write {path}: {why_not(path, error)}") from error
    return writer.written


class _Writer:
    """Turns slices and instants into packets, and creates tracks on first use."""

    def __init__(self, builder: Any) -> None:
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackEvent

        self.written = 0
        self._builder = builder
        self._event = TrackEvent
        self._tracks: dict[tuple[str, ...], int] = {}
        self._lanes: dict[tuple[str, ...], list[int]] = {}

    def slice(self, one: Slice) -> None:
        """Write two packets: begin and end."""
        end_ns = one.start_ns + max(1, one.duration_ns)
        track = self._lane(one.track, one.start_ns, end_ns)
        event = self._packet(one.start_ns, track, self._event.TYPE_SLICE_BEGIN)
        event.track_event.name = one.name
        event.track_event.flow_ids.extend(one.begins)
        event.track_event.terminating_flow_ids.extend(one.ends)
        self._details(event, one.details)
        self._builder.write_packet(event)
        self._builder.write_packet(self._packet(end_ns, track, self._event.TYPE_SLICE_END))
        self.written += 1

    def instant(self, one: Instant) -> None:
        """Write one packet."""
        event = self._packet(one.time_ns, self._track(one.track), self._event.TYPE_INSTANT)
        event.track_event.name = one.name
        self._details(event, one.details)
        self._builder.write_packet(event)
        self.written += 1

    def _lane(self, track: tuple[str, ...], start_ns: int, end_ns: int) -> int:
        """Return the first lane of ``track`` that is free at ``start_ns``.

        Occupy it until ``end_ns``.
        """
        lanes = self._lanes.setdefault(track, [])
        free = next((n for n, until in enumerate(lanes) if until <= start_ns), len(lanes))
        lanes[free : free + 1] = [end_ns]
        return self._track(_numbered(track, free + 1) if free else track)

    def _track(self, track: tuple[str, ...]) -> int:
        """Return the id of ``track``; describe it and its parents on first use."""
        known = self._tracks.get(track)
        if known is not None:
            return known
        *outer, name = track
        above = self._track(tuple(outer)) if outer else 0
        number = self._tracks[track] = len(self._tracks) + 1
        packet = self._builder.create_packet()
        packet.track_descriptor.uuid = number
        packet.track_descriptor.name = name
        if above:
            packet.track_descriptor.parent_uuid = above
        self._builder.write_packet(packet)
        return number

    def _packet(self, time_ns: int, track: int, kind: int) -> Any:
        packet = self._builder.create_packet()
        packet.timestamp = time_ns
        packet.trusted_packet_sequence_id = _SEQUENCE
        packet.track_event.type = kind
        packet.track_event.track_uuid = track
        return packet

    @staticmethod
    def _details(packet: Any, details: Mapping[str, Value]) -> None:
        for name, value in details.items():
            note = packet.track_event.debug_annotations.add()
            note.name = name
            match value:
                case bool():
                    note.bool_value = value
                case int():
                    note.int_value = value
                case _:
                    note.string_value = value


def _numbered(track: tuple[str, ...], number: int) -> tuple[str, ...]:
    *above, name = track
    return (*above, f"{name} ({number})")
