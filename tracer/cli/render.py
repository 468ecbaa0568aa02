"""Print a report on a terminal: verdict and advice first, then findings, hypotheses, geometry, paths."""

import re
from collections import Counter
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hicache_dbg.exporters.line import printable
from hicache_dbg.tracer.cli.visible import visible
from hicache_dbg.tracer.diagnose.hypothesis import Answer, Verdict
from hicache_dbg.tracer.diagnose.report import PathRow, Report
from hicache_dbg.tracer.events import MirrorInfo
from hicache_dbg.tracer.words import counted

__all__ = ["render_advice", "render_report", "render_verdict", "show_report", "table"]

#: Most kinds of findings that are printed, the causes first.
MOST_FINDINGS = 20
#: Where a message goes on to the accesses that conflict; each is printed on a line of its own.
_ACCESS = re.compile(r"; (?=(?:this access|previous access|allocated): )")
_STYLE = {Verdict.CONFIRMED: "bold red", Verdict.FALSIFIED: "green", Verdict.UNDECIDED: "yellow"}


def show_report(report: Report, look: str = "") -> None:
    """Print the whole report. It begins with the verdict, and ends with it, which a terminal shows.

    ``look`` is a command that shows more of what is wrong; it is printed if something is.
    """
    console = Console(markup=False)
    render_verdict(console, report)
    render_advice(console, report)
    render_report(console, report)
    render_verdict(console, report)
    render_advice(console, report)
    if look and report.corrupt:
        console.print(f"look: {printable(look)}", highlight=False, soft_wrap=True, style="cyan")


def render_verdict(console: Console, report: Report) -> None:
    """Print the verdict. Never wrapped, so that it can be searched for."""
    style = "bold red" if report.corrupt else ""
    line = f"verdict: {printable(report.verdict)}"
    console.print(line, highlight=False, soft_wrap=True, style=style)


def render_advice(console: Console, report: Report) -> None:
    """Print what to do, if there is anything to do."""
    if report.advice:
        line = f"do: {printable(report.advice)}"
        console.print(line, highlight=False, soft_wrap=True, style="cyan")


def render_report(console: Console, told: Report) -> None:
    """Print what is wrong, how much was checked, what else was asked, and the geometry and paths."""
    report = visible(told)
    _findings(console, report)
    _tiles(console, report)
    if report.hypotheses:
        console.print(_hypotheses(report))
    if report.mirrors:
        console.print(_geometry(report.mirrors))
    _classes(console, report)
    if report.paths:
        console.print(_paths(report.paths))
    if report.dropped or report.internal_errors:
        console.print(
            f"tracer: dropped {report.dropped or 'none'}, own failures {report.internal_errors or 'none'}",
            style="yellow",
        )


def table(*columns: str, title: str) -> Table:
    """Return an empty table with these columns, in the common style."""
    made = Table(box=SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    made.title_style = "bold"
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def _geometry(mirrors: list[MirrorInfo]) -> Table:
    made = table(
        "pool", "class and layout", "dtype", title="Geometry, read off the tensors (pages x layers)"
    )
    for heading in ("B/slot", "B/page", "pages"):
        made.add_column(heading, justify="right", overflow="fold")
    for mirror in mirrors:
        for end, other in ((mirror.device, mirror.host), (mirror.host, mirror.device)):
            sizes = {part.name: (part.slot_bytes, part.page_bytes) for part in other.components}
            for part in end.components:
                fits = sizes.get(part.name) == (part.slot_bytes, part.page_bytes)
                made.add_row(
                    _named(mirror, part.name),
                    end.cls if end is mirror.device else f"{end.cls} {end.layout}",
                    part.dtype,
                    str(part.slot_bytes),
                    str(part.page_bytes),
                    f"{part.pages}x{part.layers}",
                    style="" if fits else "bold red",
                )
    return made


def _named(mirror: MirrorInfo, component: str) -> str:
    """Return the pool's name, with the component's if there is more than one."""
    return mirror.pool if len(mirror.device.components) == 1 else f"{mirror.pool}.{component}"


def _classes(console: Console, report: Report) -> None:
    if report.classes_built:
        unbuilt = ", ".join(report.classes_unbuilt) or "none"
        console.print(
            f"host pool classes in use: {', '.join(report.classes_built)}; never built: {unbuilt}\n",
            soft_wrap=True,
        )


def _paths(paths: list[PathRow]) -> Table:
    made = table("pool", "op", "token_granular", "layout", title="Paths taken")
    made.add_column("copies", justify="right")
    for path in paths:
        made.add_row(path.pool, path.op, str(path.token_granular), path.layout, str(path.count))
    return made


def _tiles(console: Console, report: Report) -> None:
    if not report.paths:
        return
    tiles = report.tiles
    style = "bold red" if tiles.mismatched else "green" if tiles.verified else "yellow"
    console.print(
        f"\ntiles: moved {tiles.moved} = verified {tiles.verified} + witnessed {tiles.witnessed} "
        f"+ mismatched {tiles.mismatched} + skipped {tiles.skipped}; "
        f"{report.checked_share:.1%} of the loaded tiles were compared",
        style=style,
        soft_wrap=True,
    )
    for reason, count in sorted(report.skipped.items()):
        console.print(f"  skipped, {reason}: {count}", style="yellow")


def _findings(console: Console, report: Report) -> None:
    """Print every kind of finding; advice that was given above is not repeated."""
    given = report.advice
    for finding in report.findings[:MOST_FINDINGS]:
        times = f" x{finding.count}" if finding.count > 1 else ""
        where = f" at {finding.op or finding.check}"
        console.print()
        console.print(Text(f"{finding.cls}{times}: {finding.pool}{where}", style="bold red"))
        console.print(Padding(Text(_ACCESS.sub("\n", finding.message)), (0, 0, 0, 2)))
        if finding.advice not in given:
            console.print(Padding(Text(f"do: {finding.advice}", style="cyan"), (0, 0, 0, 2)))
            given += f"\n{finding.advice}"
    more = report.findings[MOST_FINDINGS:]
    if more:
        classes = Counter(finding.cls for finding in more)
        told = ", ".join(f"{count} {cls}" for cls, count in classes.items())
        console.print(
            f"\nand {counted(len(more), 'more kind')} of finding ({told}): --json has them all"
        )


def _hypotheses(report: Report) -> Table:
    """List confirmed hypotheses one by one; group the others by verdict and reason."""
    made = table("verdict", "hypothesis and evidence", title="\nHypotheses")
    alike: dict[tuple[Verdict, str], list[Answer]] = {}
    for answer in report.hypotheses:
        # A confirmed cause gets its own row; others with the same reason share one.
        alone = answer.name if answer.verdict is Verdict.CONFIRMED else answer.evidence
        alike.setdefault((answer.verdict, alone), []).append(answer)
    for (verdict, _), group in alike.items():
        argued = _confirmed(group[0], report) if verdict is Verdict.CONFIRMED else _argued(group)
        made.add_row(_verdict(verdict), argued)
    return made


def _verdict(verdict: Verdict) -> Text:
    return Text(verdict.value, style=_STYLE[verdict])


def _confirmed(answer: Answer, report: Report) -> Text:
    """Return the question, with evidence and advice unless they stand in the verdict above."""
    text = Text(f"{answer.name}: {answer.question}", style="bold")
    if answer.evidence not in report.verdict:
        text.append(f"\n{answer.evidence}", style="not bold")
    else:
        text.append(" See the verdict.", style="not bold")
    if answer.advice and answer.advice != report.advice:
        text.append(f"\ndo: {answer.advice}", style="not bold cyan")
    return text


def _argued(group: Sequence[Answer]) -> Text:
    """Return names and their common evidence, and how to decide each that is undecided."""
    text = Text(", ".join(answer.name for answer in group))
    text.append(f": {group[0].evidence}", style="dim")
    alike: dict[str, list[str]] = {}
    for answer in group:
        if answer.decide_by:
            alike.setdefault(answer.decide_by, []).append(answer.name)
    for decide_by, names in alike.items():
        which = "" if len(names) == len(group) else f" {', '.join(names)}"
        text.append(f"\ndecide{which} by: {decide_by}", style="cyan")
    return text
