"""A progress bar on a terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

__all__ = ["UNKNOWN", "Advance", "progress"]

Advance = Callable[[int, int, str], None]
"""Called with what is done, all there is to do, and what is being done."""
UNKNOWN = 0
"""How much there is to do, where nobody knows."""


@contextmanager
def progress() -> Iterator[Advance]:
    """Show a progress bar on standard error if it is a terminal; else show nothing."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _done, _total, _text: None
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
    with bar:
        task = bar.add_task("starting", total=None)

        def advance(done: int, total: int, text: str) -> None:
            bar.update(task, completed=done, total=total or None, description=text)

        yield advance
