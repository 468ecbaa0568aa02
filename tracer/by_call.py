"""Synchronous digests around a copy: taken where the bytes lie, called from the host's thread."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from hicache_dbg.tracer.digest.tiles import DigestRefusedError
from hicache_dbg.tracer.events import Op, SkipReason, Tier
from hicache_dbg.tracer.ledger import Digests
from hicache_dbg.tracer.mirror import Copy
from hicache_dbg.tracer.record import CopyRecord, Digester, Pending, Point
from hicache_dbg.tracer.selfcheck import InternalErrors
from hicache_dbg.tracer.view import View

__all__ = ["ByCall", "digest_tiles"]


class ByCall:
    """Takes a copy's digests into its record, and waits for them.

    Args:
        digester: takes the digests.
        errors: counts failures; they never stop the copy.
        points: which digests are taken around an operation.
    """

    def __init__(
        self, digester: Digester, errors: InternalErrors, points: Mapping[Op, tuple[Point, ...]]
    ) -> None:
        self._digester = digester
        self._errors = errors
        self._points = points

    def _take(self, records: Sequence[CopyRecord], point: Point, layer: int | None = None) -> None:
        """Take the digests configured for ``point``: of all layers, or of the model's ``layer``."""
        for record in records:
            copy = record.copy
            if record.is_followed or record.skip is not None:
                continue
            if point not in self._points.get(copy.op, ()):
                continue
            rows = slice(None)
            if layer is not None:
                if layer not in copy.model_layers:
                    continue
                row = copy.model_layers.index(layer)
                rows = slice(row, row + 1)
            watched = {part.component for part in record.watched}
            try:
                for component in copy.mirror.device:
                    if component not in watched:
                        self._digest(record, point, component, rows)
            except DigestRefusedError as refused:
                record.skip = SkipReason(refused.reason)
            except Exception as error:  # noqa: BLE001 - our failure must not stop the copy
                record.skip = SkipReason.INTERNAL_ERROR
                self._errors.record(f"digest/{point}", error)

    def _digest(self, record: CopyRecord, point: Point, component: str, rows: slice) -> None:
        view = _view(record.copy, component, point)
        if view is None:  # this end lacks the component
            return
        into = record.room(point, component)
        parts = digest_tiles(self._digester, record.copy, component, point, record.digested, rows)
        for columns, digests in parts:
            if view.device == "cpu":
                into[rows, columns] = digests
            else:
                record.pending.append(Pending(into, (rows, columns), digests))

    def _join(self, records: Sequence[CopyRecord] = ()) -> None:
        """Wait until every digest is taken: in its next step the engine may overwrite the pages."""
        try:
            self._digester.join()
            for record in records:
                record.settle()
                for part in record.watched:
                    part.watch.finish()
        except Exception as error:  # noqa: BLE001 - as above; incomplete digests prove nothing
            for record in records:
                record.skip = SkipReason.INTERNAL_ERROR
            self._errors.record("digest/join", error)


def _view(copy: Copy, component: str, point: Point) -> View | None:
    mirror = copy.mirror
    return (mirror.host if _tier(copy, point) is Tier.HOST else mirror.device).get(component)


def _tier(copy: Copy, point: Point) -> Tier:
    source, destination = copy.tiers
    return destination if point is Point.DESTINATION else source


def digest_tiles(  # noqa: PLR0917
    digester: Digester,
    copy: Copy,
    component: str,
    point: Point,
    digested: np.ndarray,
    rows: slice = slice(None),
) -> Iterator[tuple[slice | np.ndarray, Digests]]:
    """Digest the chosen tiles of one component at one point, in parts.

    Each end is read through its own view. Pages of a token-granular copy are digested in groups of
    equal slot range.

    Args:
        digester: takes the digests.
        copy: the copy whose tiles are digested.
        component: name of the component.
        point: the end of the copy to read.
        digested: bool ``[pages]``, which pages of the copy to digest.
        rows: which of the copy's layers to digest.

    Yields:
        Which of the digested pages, and their digests, uint64 ``[layers, pages]``.
    """
    at_host = _tier(copy, point) is Tier.HOST
    view = (copy.mirror.host if at_host else copy.mirror.device)[component]
    pages = (copy.host_pages if at_host else copy.device_pages)[digested]
    layers = copy.layers[rows]
    if copy.spans is None:
        yield slice(None), digester.digest(view, layers, pages)
        return
    ends = copy.spans[digested][:, 0:2] if at_host else copy.spans[digested][:, 2:4]
    for first, last in np.unique(ends, axis=0):
        group = (ends == (first, last)).all(axis=1)
        if last > first:
            yield group, digester.digest(view, layers, pages[group], int(first), int(last))
