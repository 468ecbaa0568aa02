"""The parts of a timeline: slices on tracks, instants, and the flows between slices.

Plain data; :mod:`hicache_dbg.exporters.perfetto` writes it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Instant", "Slice", "Value"]

Value = str | int | bool


@dataclass(frozen=True, slots=True)
class Slice:
    """Something that took time, on the track named by ``track`` from the root down.

    Slices come in the order of their start. ``begins`` and ``ends`` are the ids of flows that leave
    the slice and arrive at it; each id leaves one slice and arrives at one.
    """

    track: tuple[str, ...]
    name: str
    start_ns: int
    duration_ns: int
    details: Mapping[str, Value] = field(default_factory=dict)
    begins: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Instant:
    """Something that happened at one point in time."""

    track: tuple[str, ...]
    name: str
    time_ns: int
    details: Mapping[str, Value] = field(default_factory=dict)
