"""Values that every exporter labels and buckets by: which sinks lose events why, and durations.

A series that does not exist is read as "no data", not as zero, so exporters create each of these
at 0 before the first event. A reason that is not listed still gets its series, when it occurs.
"""

from collections.abc import Mapping

__all__ = ["DURATION_BUCKETS_S", "LOSS_REASONS"]

#: The bus's own doing, and a sink that could not be built.
_ANY_SINK = ("queue_full", "closed", "refused")

#: Why each sink of this package loses events.
LOSS_REASONS: Mapping[str, tuple[str, ...]] = {
    "bus": ("queue_full", "closed"),
    "journald": (*_ANY_SINK, "absent", "blocked"),
    "otel": (*_ANY_SINK, "export"),
    "prometheus": _ANY_SINK,
    "recording": (*_ANY_SINK, "enospc", "eio"),
    "stderr": (*_ANY_SINK, "io"),
}

#: Seconds. A page of one layer on PCIe takes tens of microseconds, a stuck tier seconds.
DURATION_BUCKETS_S = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0)
