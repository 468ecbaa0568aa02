"""``hicache-dbg ab``: the same run under two or more settings, side by side."""

from typing import Annotated

import typer

from hicache_dbg.tracer.cli.json_output import print_json
from hicache_dbg.tracer.cli.progress import progress
from hicache_dbg.tracer.cli.repro_options import RunAsJson, RunOptions
from hicache_dbg.tracer.cli.verb import takes

__all__ = ["command"]


@takes(RunOptions)
def command(
    options: RunOptions,
    vary: Annotated[
        list[str],
        typer.Option(
            help="An option of repro and its values: name=value,value. Given more than once, every "
            "combination is run.",
            show_default=False,
            rich_help_panel="Comparison",
        ),
    ],
    as_json: RunAsJson = False,
) -> None:
    """Repeat one seed under two or more settings, and say which of them change the corruption.

    --vary gate=off,loads tells whether tracing itself changes the outcome.
    Exits 1 if any of the runs is corrupt, 2 if one of them proves nothing:
    no page came back, or its fault never took effect.

    Examples:
      hicache-dbg ab --fault host_sized_for_fp8 --vary gate=off,events,loads,three
      hicache-dbg ab --fault host_sized_for_fp8 --vary index_dtype=bf16,fp8
      hicache-dbg ab --vary layout=layer_first,page_first --vary sessions=15,30
    """
    from hicache_dbg.tracer.cli import ab_output
    from hicache_dbg.tracer.cli.ab_plan import plan, variables
    from hicache_dbg.tracer.cli.ab_runs import Compared
    from hicache_dbg.tracer.cli.traced import option_errors

    with option_errors(), progress() as advance:
        compared = Compared.of(plan(options, variables(vary)), advance)
    if as_json:
        print_json(ab_output.as_json(compared))
    else:
        ab_output.show(compared)
    raise typer.Exit(compared.exit_code)
