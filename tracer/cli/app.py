"""The verbs, put together."""

from typing import Annotated

import typer

from hicache_dbg import __version__
from hicache_dbg.tracer.cli import (
    bench,
    bundle,
    dashboards,
    diagnose,
    doctor,
    faults,
    logs,
    repro,
    run,
    schema,
    selftest,
)

__all__ = ["app"]

app = typer.Typer(
    name="hicache-dbg",
    help="Tells whether a tiered KV cache keeps every byte, and names the culprit when it does not.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("repro")(repro.command)
app.command("diagnose")(diagnose.command)
app.command("logs")(logs.command)
app.command("doctor")(doctor.command)
app.add_typer(dashboards.app, name="dashboards")
app.command("bundle")(bundle.command)
app.command("bench")(bench.command)
app.command("selftest")(selftest.command)
app.command("faults")(faults.command)
app.command("schema")(schema.command)
app.command("run", context_settings={"ignore_unknown_options": True, "allow_extra_args": True})(
    run.command
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
