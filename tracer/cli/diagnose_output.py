"""Print runs side by side: only what differs, and how much is equal."""

from rich.console import Console
from rich.text import Text

from hicache_dbg.tracer.cli.render import table
from hicache_dbg.tracer.cli.visible import visible
from hicache_dbg.tracer.diagnose.compare import Comparison

__all__ = ["show_comparison"]

_STYLE = {"new": "bold red", "gone": "green", "changed": "yellow"}


def show_comparison(console: Console, told: Comparison) -> None:
    """Print the rows that differ, grouped by kind."""
    comparison = visible(told)
    differing = comparison.differing
    if differing:
        shown = table("", "what", *comparison.runs, title="What differs")
        kind = ""
        for row in differing:
            if row.kind != kind:
                kind = row.kind
                shown.add_section()
            shown.add_row(
                Text(row.change, style=_STYLE[row.change]), f"{row.kind}: {row.what}", *row.values
            )
        console.print(shown)
    same = len(comparison.rows) - len(differing)
    console.print(f"{len(differing)} different, {same} the same", highlight=False)
