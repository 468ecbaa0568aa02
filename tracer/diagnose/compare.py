"""Compare two or more runs side by side: what is new, gone or changed."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.diagnose.hypothesis import Answer, Verdict
from hicache_dbg.tracer.events import EndInfo, Finding
from hicache_dbg.tracer.words import counted

__all__ = ["Comparison", "Row", "compare"]

ABSENT = "-"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One item of the comparison, with its text in each run, in the order of the runs."""

    kind: str
    what: str
    values: tuple[str, ...]
    change: str  # new, gone, changed, same


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """All rows, differing ones first within each kind."""

    runs: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def differing(self) -> list[Row]:
        """Rows whose values differ."""
        return [row for row in self.rows if row.change != "same"]


def compare(runs: Sequence[tuple[str, Evidence, Sequence[Answer]]]) -> Comparison:
    """Compare runs by geometry, paths, shares of tiles, findings and verdicts.

    Counts of copies and tiles depend on a run's length, so paths are compared by whether they were
    taken and tiles by their shares.
    """
    rows: list[Row] = []
    for kind, tell in _KINDS.items():
        told = [tell(evidence, answers) for _, evidence, answers in runs]
        things = list(dict.fromkeys(what for one in told for what in one))
        made = [_row(kind, what, [one.get(what, ABSENT) for one in told]) for what in things]
        rows += sorted(made, key=lambda row: row.change == "same")
    return Comparison(runs=tuple(name for name, _, _ in runs), rows=tuple(rows))


def _row(kind: str, what: str, values: Sequence[str]) -> Row:
    first, last = values[0], values[-1]
    if len(set(values)) == 1:
        change = "same"
    elif first == ABSENT:
        change = "new"
    elif last == ABSENT:
        change = "gone"
    else:
        change = "changed"
    return Row(kind=kind, what=what, values=tuple(values), change=change)


def _geometry(evidence: Evidence, _: Sequence[Answer]) -> Mapping[str, str]:
    return _gathered(
        (f"{mirror.pool} {end.tier}", _end(end))
        for mirror in evidence.mirrors
        for end in (mirror.device, mirror.host)
    )


def _gathered(told: Iterable[tuple[str, str]]) -> Mapping[str, str]:
    """Return the texts by what they are about: several, if ranks differ, are joined in order."""
    texts: dict[str, set[str]] = {}
    for what, text in told:
        texts.setdefault(what, set()).add(text)
    return {what: "; also ".join(sorted(found)) for what, found in texts.items()}


def _end(end: EndInfo) -> str:
    parts = ", ".join(
        f"{part.name} {part.dtype} {part.slot_bytes} B/slot {part.page_bytes} B/page "
        f"{counted(part.layers, 'layer')}"
        for part in end.components
    )
    return f"{end.cls} {end.layout}: {parts}"


def _paths(evidence: Evidence, _: Sequence[Answer]) -> Mapping[str, str]:
    return _gathered(
        (f"{pool} {op} token_granular={granular}", layout)
        for pool, op, granular, layout in sorted(evidence.paths)
    )


def _tiles(evidence: Evidence, _: Sequence[Answer]) -> Mapping[str, str]:
    told = {}
    for (pool, op), tiles in sorted(evidence.by_pool.items()):
        shares = {
            name: getattr(tiles, name) / tiles.moved
            for name in ("verified", "witnessed", "mismatched", "skipped")
            if tiles.moved and getattr(tiles, name)
        }
        told[f"{pool} {op}"] = ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
    return told


def _findings(evidence: Evidence, _: Sequence[Answer]) -> Mapping[str, str]:
    return _gathered(
        (f"{finding.cls} {_place(finding)} {finding.op or finding.check}", _finding(finding))
        for finding in evidence.kinds_of_finding()
    )


def _place(finding: Finding) -> str:
    return f"{finding.pool}.{finding.component}" if finding.component else finding.pool


def _finding(finding: Finding) -> str:
    if finding.expected and finding.got:
        return f"expected {finding.expected}, got {finding.got}"
    return finding.message


def _confirmed(_: Evidence, answers: Sequence[Answer]) -> Mapping[str, str]:
    """Return the confirmed hypotheses; the others may change just because a run is longer."""
    confirmed = [answer for answer in answers if answer.verdict is Verdict.CONFIRMED]
    return {answer.name: answer.verdict.value for answer in confirmed}


_KINDS = {
    "geometry": _geometry,
    "path": _paths,
    "tiles": _tiles,
    "finding": _findings,
    "hypothesis": _confirmed,
}
