"""Build the contents of the report page from a run's events."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from hicache_dbg import __version__
from hicache_dbg.exporters.html.page import Cell, Grid, Item, Page, Share, Table
from hicache_dbg.tracer.diagnose.by_class import briefly
from hicache_dbg.tracer.diagnose.database import Database
from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.diagnose.grids import grids_of
from hicache_dbg.tracer.diagnose.hypothesis import Answer, Verdict
from hicache_dbg.tracer.diagnose.meanings import MEANINGS
from hicache_dbg.tracer.diagnose.report import Report, verdict_of
from hicache_dbg.tracer.diagnose.sizes import geometry, same_size
from hicache_dbg.tracer.diagnose.story import accesses, story_of
from hicache_dbg.tracer.events import Finding, Op
from hicache_dbg.tracer.words import counted

__all__ = ["page_of"]

BACK = (Op.LOAD, Op.FETCH, Op.RECV)
DOWN = (Op.BACKUP, Op.STORE, Op.SEND)
#: Most kinds of findings that are told one by one.
MOST_FINDINGS = 100
BLIND, INNOCENT = "tracer_was_blind", "copies_are_innocent"
_ANSWERS = {
    "bad": "Corrupt",
    "fault": "Fault found, no wrong byte seen",
    "good": "No bad copy found",
    "unknown": "Not known",
}

#: Glossary for the reader.
WORDS = (
    (
        "tier",
        "where pages live: device (the GPU), host (memory), storage, remote (another process)",
    ),
    ("pool", "buffers of one geometry in one tier; its mirror is its copy in the next tier"),
    ("page", "what moves together; slots are its entries, one a token in most pools"),
    ("tile", "the bytes of one page, layer and pool: what is digested and compared"),
    ("backup, load", "device to host, and back; store, fetch: host to storage, and back"),
    (
        "digest",
        "a checksum (XXH3-64) of a tile, taken when it was backed up and again when it came back",
    ),
    ("generation", "how often a host page was handed out: another number is another owner"),
)


def page_of(
    database: Database, evidence: Evidence, report: Report, source: str, again: str
) -> Page:
    """Return the page's contents.

    Args:
        database: the run's operations.
        evidence: the counts over them.
        report: the verdict and the answers.
        source: says where the events came from.
        again: the command that reads them again.
    """
    confirmed = [one for one in report.hypotheses if one.verdict is Verdict.CONFIRMED]
    innocent = any(one.name == INNOCENT for one in confirmed)
    state = "bad" if report.corrupt else "good" if innocent else "unknown"
    grids = sorted(grids_of(database), key=lambda grid: not grid.bad)  # what differs is seen first
    drawn = list(geometry(report.mirrors))
    return Page(
        answer=_ANSWERS["fault" if report.corrupt and not report.tiles.mismatched else state],
        headline=_headline(evidence, grids),
        verdict=report.verdict,
        state=state,
        advice=verdict_of(evidence, report.hypotheses)[1],
        caveat=next((one.evidence for one in confirmed if one.name == BLIND), ""),
        facts=_facts(database, evidence),
        back=_back(evidence),
        stored=_stored(evidence, grids),
        findings=_findings(evidence),
        unshown=_unshown(evidence, again),
        hypotheses=[
            _asked(one)
            for one in report.hypotheses
            if one.verdict is not Verdict.FALSIFIED and one.name != BLIND
        ],
        ruled_out=_ruled_out(report.hypotheses),
        grids=grids,
        story=story_of(database, evidence, again),
        geometry=drawn,
        same_size=same_size(report.mirrors, drawn),
        paths=_paths(evidence, report),
        unchecked=[*_unchecked(evidence, report, grids)],
        words=WORDS,
        source=source,
        version=__version__,
    )


def _headline(evidence: Evidence, grids: Sequence[Grid]) -> str:
    """Summarize what is wrong, where, and how often."""
    causes = evidence.causes()
    if not causes:
        return ""
    first = causes[0]
    times = sum(finding.count for finding in causes if finding.cls is first.cls)
    parts = [first.cls.value, first.pool]
    operations = dict.fromkeys(f.op for f in causes if f.cls is first.cls and f.op)
    if operations:
        parts.append(" and ".join(operations))
    bad = [grid.bad for grid in grids if grid.pool in first.pool.split("+") and grid.bad]
    if len(bad) == 1 and len(bad[0]) < 80:
        parts.append(bad[0].removesuffix(" came back different").lower())
    parts.append(counted(times, "finding", ","))
    return ", ".join(parts)


def _facts(database: Database, evidence: Evidence) -> list[str]:
    ((first, last),) = database.sql("SELECT min(time_ns), max(time_ns) FROM copies")
    facts = []
    if first is not None:
        began = datetime.fromtimestamp(first / 1e9, UTC)
        facts.append(f"{began:%Y-%m-%d %H:%M:%S} UTC, {(last - first) / 1e9:.1f} s of copies")
    for system, version, checksum in sorted(evidence.starts):
        facts.append(f"{system} {version}, HICACHE_DBG_CHECKSUM={checksum}")
    ranks = sorted(evidence.ranks)
    if ranks:
        facts.append(f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks")
    devices = sorted({mirror.device.device for mirror in evidence.mirrors})
    if devices:
        facts.append(f"device pools on {', '.join(devices)}")
    return facts


def _back(evidence: Evidence) -> list[Share]:
    back = evidence.of_op(*BACK)
    return [
        Share(back.verified, Cell.VERIFIED, "tiles came back equal"),
        Share(back.mismatched, Cell.MISMATCHED, "came back different"),
        Share(back.skipped + back.witnessed, Cell.SKIPPED, "came back and were not compared"),
    ]


def _stored(evidence: Evidence, grids: Sequence[Grid]) -> str:
    down = evidence.of_op(*DOWN)
    never = _never_back(grids)
    told = f"{counted(down.moved, 'tile', ',')} went down a tier, {down.witnessed:,} of them under a digest."
    return f"{told} {never:,} of the tiles on the map never came back." if never else told


def _never_back(grids: Sequence[Grid]) -> int:
    """Count the tiles on the maps that were backed up and never read back."""
    return sum(
        size * (last - first + 1)
        for grid in grids
        for (first, last), row in zip(grid.rows, grid.cells, strict=True)
        for size, cell in zip(grid.sizes, row, strict=True)
        if cell is Cell.WITNESSED
    )


def _findings(evidence: Evidence) -> list[Item]:
    """Return the causes, followed by what may follow from them."""
    causes = {finding.cls for finding in evidence.causes()}
    return [
        _found(finding, "" if finding.cls in causes else ": may follow from it")
        for finding in evidence.kinds_of_finding()[:MOST_FINDINGS]
    ]


def _unshown(evidence: Evidence, again: str) -> str:
    """Say how many findings are not shown, and which commands show them."""
    kinds = evidence.kinds_of_finding()
    shown, found = kinds[:MOST_FINDINGS], sum(kind.count for kind in kinds)
    if found == len(shown):
        return ""
    held = len(kinds) - len(shown)
    left = f" and {counted(held, 'more kind', ',')} of them" if held else ""
    return (
        f"Shown is the first finding of {'each kind' if not held else counted(len(shown), 'kind')}; left out: "
        f"{counted(found - len(shown), 'more finding', ',')}{left}. {again} --json counts every kind; "
        "--perfetto FILE shows when they were reported, equal ones as one; hicache-dbg logs --finding any "
        "lists those in the journal."
    )


def _found(finding: Finding, more: str = "") -> Item:
    times = (f", {finding.count:,} times" if finding.count > 1 else "") + more
    return Item(
        label=finding.cls.value,
        title=f"{finding.pool} at {finding.op or finding.check}{times}",
        means=MEANINGS[finding.cls],
        text=briefly(finding),
        advice=finding.advice,
        folded=[f"{step.when}: {step.what}" for step in accesses(finding)],
    )


def _asked(answer: Answer) -> Item:
    advice = answer.advice or (answer.decide_by and f"to decide it: {answer.decide_by}")
    tone = "unknown"
    if answer.verdict is Verdict.CONFIRMED and answer.rank == 0:
        tone = "good" if answer.name == INNOCENT else "bad"
    return Item(
        label=answer.verdict.value,
        title=answer.question,
        text=answer.evidence,
        advice=advice,
        tone=tone,
    )


def _ruled_out(answers: Sequence[Answer]) -> list[Item]:
    """Group falsified hypotheses by the evidence that falsifies them."""
    alike: dict[str, list[str]] = {}
    for answer in answers:
        if answer.verdict is Verdict.FALSIFIED:
            alike.setdefault(answer.evidence, []).append(answer.question)
    return [Item(label="", title=why, folded=questions) for why, questions in alike.items()]


def _paths(evidence: Evidence, report: Report) -> Table:
    """Return the paths taken, and a zero row for each pool left out of an operation."""
    rows = [(p.pool, p.op, str(p.token_granular), p.layout, f"{p.count:,}") for p in report.paths]
    operations = dict.fromkeys(path.op for path in report.paths)
    moved = {(path.pool, path.op) for path in report.paths}
    rows += [
        (pool, op, "", "", "0")
        for pool in evidence.pools
        for op in operations
        if (pool, op) not in moved
    ]
    headings = ("pool", "operation", "token_granular", "layout", "copies")
    return Table(headings, sorted(rows), numbers=("copies",))


def _unchecked(evidence: Evidence, report: Report, grids: Sequence[Grid]) -> Iterator[str]:
    """Yield everything that a reader must not assume to be checked."""
    for reason, count in sorted(report.skipped.items()):
        if count:
            yield f"{counted(count, 'tile', ',')} moved and not looked at: {reason}"
    never = _never_back(grids)
    if never:
        yield f"{counted(never, 'tile', ',')} backed up under a digest and never back, so nothing was compared with it"
    if evidence.unseen:
        yield f"{counted(evidence.unseen, 'operation', ',')} traced and not in these events"
    for name in sorted(evidence.unrecognised):
        yield f"not attached to: {name}"
    for answer in report.hypotheses:
        if answer.verdict is Verdict.UNDECIDED:
            yield f"undecided: {answer.question[0].lower()}{answer.question[1:]}"
    yield (
        "what runs on the device between copies: a kernel that writes a wrong value into a page "
        "is copied faithfully"
    )
