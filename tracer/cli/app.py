"""The command itself; its verbs are in :mod:`hicache_dbg.tracer.cli.verbs`."""

from typing import Annotated

import typer

from hicache_dbg import __version__
from hicache_dbg.tracer.cli.verbs import HELP, VerbGroup

__all__ = ["app"]

app = typer.Typer(
    name="hicache-dbg",
    cls=VerbGroup,
    help="Tells whether a tiered KV cache keeps every byte, and names the culprit when it does not.",
    epilog="With a server: set HICACHE_DBG=1, then run hicache-dbg diagnose --journal."
    "\n\nWithout one: hicache-dbg repro. Every COMMAND has --help with examples.",
    add_completion=False,
    rich_markup_mode="rich",
    context_settings=HELP,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hicache-dbg {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Tells whether a tiered KV cache keeps every byte, and names the culprit when it does not."""
