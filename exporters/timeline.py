"""The parts of a timeline: slices on tracks, instants, and the flows between slices.

Plain data; :mod:`hicache_dbg.exporters.perfetto` writes it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["Instant", "Kind", "Slice", "Value"]

Value = str | int | bool


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """What many slices have in common. ``track`` names their track from the root down."""

    track: tuple[str, ...]
    name: str
    details: Mapping[str, Value] = field(default_factory=dict)


class Slice(NamedTuple):
    """Something that took time.

    Slices come in the order of their start. ``begins`` and ``ends`` are the ids of flows that leave
    the slice and arrive at it; each id leaves one slice and arrives at one.
    """

    kind: Kind
    start_ns: int
    duration_ns: int
    op_id: int | None = None
    begins: Sequence[int] = ()
    ends: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Instant:
    """Something that happened at one point in time."""

    track: tuple[str, ...]
    name: str
    time_ns: int
    details: Mapping[str, Value] = field(default_factory=dict)
