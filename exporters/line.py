"""Format one event as one line of text.

The fields of a copy's line are fixed, so that ``sort | uniq -c`` over many lines is a table of
paths. Only copies and findings carry the ``[HICACHE_DBG]`` mark such a pipeline greps for. Start
and health lines begin with ``hicache-dbg`` instead and stay out of the table.
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hicache_dbg.tracer.events import (
    Copied,
    EndInfo,
    Event,
    Finding,
    Health,
    MirrorInfo,
    Started,
    Stated,
)

__all__ = ["MARK", "line", "page_ranges", "printable"]

MARK = "[HICACHE_DBG]"
NOTHING = "-"

_PLAIN = re.compile(r"[\w.:/@+*,;()\[\]<>-]+")


def line(event: Event) -> str:
    """Return one line for ``event``, without a line break, a time or an id."""
    return _LINES[type(event)](event)


def page_ranges(pages: Sequence[int], count: int = 0) -> str:
    """Format page numbers as ranges: ``0-3,7``, with ``(+12)`` if ``count`` says there are more."""
    pieces: list[list[int]] = []
    for page in pages:
        if pieces and page == pieces[-1][1] + 1:
            pieces[-1][1] = page
        else:
            pieces.append([page, page])
    text = ",".join(str(a) if a == b else f"{a}-{b}" for a, b in pieces)
    more = count - len(pages)
    if more <= 0:
        return text or NOTHING
    return f"{text}(+{more})" if text else f"({count})"


def _word(text: str) -> str:
    """Return ``text`` as one word, quoted if whitespace would split it."""
    if not text:
        return NOTHING
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


def printable(text: str) -> str:
    """Return ``text`` on one line, with control and invisible characters as escapes.

    A request's id comes from outside and must neither forge a line nor move a terminal's cursor.
    """
    flat = " ".join(text.split())
    if flat.isprintable():
        return flat
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in flat)


def _words(texts: Iterable[str]) -> str:
    return ",".join(_word(text) for text in texts) or NOTHING


def _counts(counts: dict[str, int]) -> str:
    inside = ",".join(f"{_word(key)}:{n}" for key, n in sorted(counts.items()) if n)
    return f"({inside})" if inside else ""


def _copied(event: Copied) -> str:
    return (
        f"{MARK} pool={_word(event.pool)} op={event.op} token_granular={event.token_granular} "
        f"layout={_word(event.layout)} h={event.h} d={event.d} slot_page={event.slot_page}"
    )


def _finding(event: Finding) -> str:
    layer = "all" if event.layer < 0 else str(event.layer)
    words = [
        f"{MARK} finding={event.cls}",
        f"pool={_word(event.pool)}",
        f"op={_word(event.op)}",
        f"layer={layer}",
        f"pages={page_ranges(event.pages, event.page_count)}",
    ]
    for name, value in (("expected", event.expected), ("got", event.got)):
        if value:
            words.append(f"{name}={_word(printable(value))}")
    if event.count > 1:
        words.append(f"count={event.count}")
    return f"{' '.join(words)}: {printable(event.message)}"


def _end(end: EndInfo) -> str:
    components = " + ".join(
        f"{_word(c.name)} {c.dtype} {c.slot_bytes} B/slot {c.page_bytes} B/page "
        f"{c.pages} pages {c.layers} layers"
        for c in end.components
    )
    pinned = {None: "", True: " pinned", False: " not pinned"}[end.pinned]
    where = f"{end.tier} {_word(end.cls)} {_word(end.layout)} {_word(end.device)}{pinned}"
    return f"{where} ({components})"


def _indexed(mirror: MirrorInfo) -> str:
    """Return what an index counts, and how many make up a page unless that is clear."""
    clear = {"token": mirror.tokens_per_page, "page": 1}.get(mirror.index_unit)
    count = "" if mirror.slot_page == clear else f" ({mirror.slot_page}/page)"
    return f"indexed by {mirror.index_unit}{count}"


def _mirror(mirror: MirrorInfo) -> str:
    return (
        f"{_word(mirror.pool)}: {mirror.tokens_per_page} tokens/page, {_indexed(mirror)}, "
        f"{_end(mirror.device)} <-> {_end(mirror.host)}"
    )


def _started(event: Started) -> str:
    place = f"{printable(event.place)} " if event.place else ""
    head = (
        f"hicache-dbg started rank={event.rank} {place}system={_word(event.system)} "
        f"version={_word(event.version)} checksum={_word(event.checksum)} "
        f"built={_words(event.classes_built)} unbuilt={_words(event.classes_unbuilt)} "
        f"unrecognised={_words(event.unrecognised)} pools={len(event.mirrors)}"
    )
    return "; ".join([head, *map(_mirror, event.mirrors)])


def _health(event: Health) -> str:
    state = "closing" if event.closing else "alive"
    skipped = sum(event.skipped.values())
    return (
        f"hicache-dbg health rank={event.rank} {state} copies={event.copies} "
        f"verified={event.verified} witnessed={event.witnessed} mismatched={event.mismatched} "
        f"skipped={skipped}{_counts(event.skipped)} findings={event.findings} "
        f"events={event.events} queue={event.queue_depth} "
        f"dropped={sum(event.dropped.values())}{_counts(event.dropped)} "
        f"errors={sum(event.errors.values())}{_counts(event.errors)} "
        f"overhead_s={event.overhead_s:.3f}"
    )


def _stated(event: Stated) -> str:
    about = " ".join(
        f"{name}={_word(value)}"
        for name, value in (
            ("role", event.role),
            ("key", event.key),
            ("request", event.request),
            ("pool", event.pool),
        )
        if value
    )
    return (
        f"hicache-dbg stated rank={event.rank} topic={event.topic} {about} "
        f"values={_words(event.values)}"
    )


_LINES: dict[type[Event], Callable[[Any], str]] = {
    Copied: _copied,
    Finding: _finding,
    Started: _started,
    Health: _health,
    Stated: _stated,
}
