"""Collapse equal findings into one finding with a count."""

from collections.abc import Iterable, Iterator

import msgspec

from hicache_dbg.tracer.events import Event, Finding

__all__ = ["FindingCollapser"]

Key = tuple[str, str, str, str, str]


class FindingCollapser:
    """Passes the first finding of a kind on at once, and counts its like until drained.

    Two findings are alike if class, pool, operation, component and check agree: a fault that hits
    every page of every load is one cause, not a thousand. :meth:`drain` returns the latest finding
    of each kind that recurred, with ``count`` set to how many were held back since.
    """

    def __init__(self) -> None:
        self._held: dict[Key, tuple[Finding, int]] = {}
        self._seen: set[Key] = set()

    def pass_on(self, events: Iterable[Event]) -> Iterator[Event]:
        """Yield the events, except findings whose like has been passed on before."""
        for event in events:
            if not isinstance(event, Finding):
                yield event
                continue
            key = (event.cls, event.pool, event.op, event.component, event.check)
            if key not in self._seen:
                self._seen.add(key)
                yield event
                continue
            _, held = self._held.get(key, (event, 0))
            self._held[key] = (event, held + event.count)

    def drain(self) -> list[Event]:
        """Return the findings held back since the last call, one per kind, first seen first."""
        held, self._held = self._held, {}
        return [msgspec.structs.replace(finding, count=count) for finding, count in held.values()]
