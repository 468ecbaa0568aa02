"""The ``HICACHE_*`` fields of an event: an ordered mapping of strings for key-value sinks."""

import re
from collections.abc import Callable
from typing import Any

from hicache_dbg.exporters.encoding import encoded
from hicache_dbg.exporters.journal_format import Values
from hicache_dbg.tracer.events import Copied, Event, Finding, Health, Started, Stated

__all__ = ["IDENTIFIER", "MESSAGE_IDS", "PRIORITIES", "fields"]

#: The identifier for ``journalctl -t``.
IDENTIFIER = "hicache-dbg"

#: One constant id per event type: ``journalctl MESSAGE_ID=...`` selects it in any version.
MESSAGE_IDS: dict[type[Event], str] = {
    Started: "a40a27bb0a414d20b46324379ea73ab5",
    Copied: "42b149dc40154b35a66abdf8a2d7a2ab",
    Finding: "e740cb6bdfc84a1b8faa471d32a1c3a6",
    Health: "b1286ccb46e347d990d1bb0a35a77ece",
    Stated: "3f5aedc7a50244709d20046b25428f9d",
}

#: Syslog priority of each event type: err, info, debug.
PRIORITIES: dict[type[Event], int] = {Finding: 3, Started: 6, Health: 6, Copied: 7, Stated: 7}

#: journald ignores an entry of more than 1,024 fields, and says nothing.
MOST_VALUES = 500


def fields(event: Event) -> dict[str, Values]:
    """Return the fields of ``event`` in a fixed order, without empty ones.

    Counts and sizes are decimal, sizes in bytes, booleans ``True`` and ``False`` as in the line.
    ``HICACHE_PAGE`` is the first affected page, ``HICACHE_PAGES`` the number of them. A field is a
    tuple if it has several values: the journal finds an entry by each of them.
    """
    named = {
        "HICACHE_EVENT": str(event.__struct_config__.tag),
        **_FIELDS[type(event)](event),
        "HICACHE_RANK": f"{event.rank}",
    }
    return {name: value for name, value in named.items() if value}


def _copied(event: Copied) -> dict[str, Values]:
    return {
        "HICACHE_POOL": event.pool,
        "HICACHE_OP": str(event.op),
        "HICACHE_TOKEN_GRANULAR": f"{event.token_granular}",
        "HICACHE_LAYOUT": event.layout,
        "HICACHE_H": f"{event.h}",
        "HICACHE_D": f"{event.d}",
        "HICACHE_SLOT_PAGE": f"{event.slot_page}",
        "HICACHE_UNIT": event.unit,
        "HICACHE_PAGES": f"{event.pages}",
        "HICACHE_ITEM_BYTES": f"{event.item_bytes}",
        "HICACHE_DTYPE": event.dtype,
        "HICACHE_LAYERS": f"{event.layers}",
        "HICACHE_CLASS": event.cls,
        "HICACHE_IO_BACKEND": event.io_backend,
        "HICACHE_SRC": str(event.src),
        "HICACHE_DST": str(event.dst),
        "HICACHE_BYTES": f"{event.bytes}",
        "HICACHE_DURATION_US": f"{event.duration_us:.3f}",
        "HICACHE_VERIFIED": f"{event.verified}",
        "HICACHE_WITNESSED": f"{event.witnessed}",
        "HICACHE_MISMATCHED": f"{event.mismatched}",
        "HICACHE_SKIPPED": f"{sum(event.skipped.values())}",
        "HICACHE_SKIP_REASON": _reasons(event.skipped),
        "HICACHE_STATUS": event.status,
        "HICACHE_REQUEST": _values(event.requests),
        "TRACE_ID": event.trace_id,
        "SPAN_ID": event.span_id,
    }


def _finding(event: Finding) -> dict[str, Values]:
    return {
        "HICACHE_FINDING": str(event.cls),
        "HICACHE_POOL": _pools(event.pool),
        "HICACHE_OP": event.op,
        "HICACHE_COMPONENT": event.component,
        "HICACHE_LAYER": f"{event.layer}" if event.layer >= 0 else "all",
        "HICACHE_PAGE": f"{event.pages[0]}" if event.pages else "",
        "HICACHE_PAGES": f"{event.page_count}",
        "HICACHE_SLOTS": event.slots,
        "HICACHE_EXPECTED": event.expected,
        "HICACHE_GOT": event.got,
        "HICACHE_ADVICE": event.advice,
        "HICACHE_CHECK": event.check,
        "HICACHE_COUNT": f"{event.count}",
        "HICACHE_RECORD": _record(event),
        "HICACHE_REQUEST": _values(event.requests),
        "TRACE_ID": event.trace_id,
        "SPAN_ID": event.span_id,
    }


def _started(event: Started) -> dict[str, Values]:
    return {
        "HICACHE_SYSTEM": event.system,
        "HICACHE_VERSION": event.version,
        "HICACHE_CHECKSUM": event.checksum,
        "HICACHE_CLASSES_BUILT": ",".join(event.classes_built),
        "HICACHE_CLASSES_UNBUILT": ",".join(event.classes_unbuilt),
        "HICACHE_UNRECOGNISED": ",".join(event.unrecognised),
        "HICACHE_PLACE": event.place,
        "HICACHE_RECORD": _record(event),
    }


def _health(event: Health) -> dict[str, Values]:
    return {
        "HICACHE_COPIES": f"{event.copies}",
        "HICACHE_VERIFIED": f"{event.verified}",
        "HICACHE_WITNESSED": f"{event.witnessed}",
        "HICACHE_MISMATCHED": f"{event.mismatched}",
        "HICACHE_SKIPPED": f"{sum(event.skipped.values())}",
        "HICACHE_SKIP_REASON": _reasons(event.skipped),
        "HICACHE_FINDINGS": f"{event.findings}",
        "HICACHE_DROPPED": f"{sum(event.dropped.values())}",
        "HICACHE_ERRORS": f"{sum(event.errors.values())}",
        "HICACHE_CLOSING": f"{event.closing}",
        "HICACHE_RECORD": _record(event),
    }


def _stated(event: Stated) -> dict[str, Values]:
    return {
        "HICACHE_TOPIC": event.topic.value,
        "HICACHE_POOL": _pools(event.pool),
        "HICACHE_COMPONENT": event.component,
        "HICACHE_RECORD": _record(event),
    }


def _values(texts: tuple[str, ...]) -> Values:
    """Return a single text as it is, and the first of very many."""
    return texts[:MOST_VALUES] if len(texts) > 1 else "".join(texts)


def _reasons(skipped: dict[str, int]) -> Values:
    return _values(tuple([reason for reason, tiles in sorted(skipped.items()) if tiles]))


def _pools(pool: str) -> Values:
    """Return the name by which a finding goes and, if it is about several pools, theirs."""
    return (pool, *pool.split("+")) if "+" in pool else pool


def _record(event: Event) -> str:
    """Return the whole event as JSON, so that journal readers can restore rare kinds exactly.

    ``journalctl -o json`` prints a value with characters that it holds for unprintable as a list of
    bytes, so all but ASCII is escaped if there is any such character.
    """
    text = encoded(event).decode()
    return text if text.isprintable() else re.sub("[^ -~]", _escaped, text)


def _escaped(found: re.Match[str]) -> str:
    """Return a character as JSON escapes it: a pair of escapes beyond the first 65,536."""
    return re.sub("(....)", r"\\u\1", found[0].encode("utf-16-be").hex())


_FIELDS: dict[type[Event], Callable[[Any], dict[str, Values]]] = {
    Copied: _copied,
    Finding: _finding,
    Started: _started,
    Health: _health,
    Stated: _stated,
}
