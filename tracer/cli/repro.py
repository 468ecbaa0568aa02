"""``hicache-dbg repro``: sessions through the engine, and what was corrupted and why."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from hicache_dbg.repro.config import ConfigError
from hicache_dbg.tracer.cli.json_output import print_json
from hicache_dbg.tracer.cli.progress import progress
from hicache_dbg.tracer.cli.repro_options import WORKLOAD, Record, RunAsJson, RunOptions
from hicache_dbg.tracer.cli.verb import takes

__all__ = ["command"]


Schedules = Annotated[
    int | None,
    typer.Option(
        "--explore",
        help="Instead of sessions, run this many schedules of a small cache, each in another order, "
        "and shrink the first that breaks. --seed is the seed of the first.",
        rich_help_panel=WORKLOAD,
    ),
]


@takes(RunOptions)
def command(
    options: RunOptions,
    schedules: Schedules = None,
    record: Record = None,
    as_json: RunAsJson = False,
) -> None:
    """Run multi-turn agent sessions through a tiered cache and say what was corrupted, and why.

    Every copied page is digested and compared. The tokens are compared with
    those of the same model with its whole cache on the device.
    Exits 0 if all is clean, 1 if anything is corrupt, 2 if the run proves
    nothing: no page came back, or the fault never took effect.

    Examples:
      hicache-dbg repro
      hicache-dbg repro --fault host_sized_for_fp8
      hicache-dbg repro --pools deepseek_v4 --layout layer_first
      hicache-dbg repro --trace conversation_trace.jsonl --requests 300
      hicache-dbg repro --pd --kill
      hicache-dbg repro --model smollm2 --storage file
      hicache-dbg repro --explore 1000 --fault a_getter_without_a_wait
    """
    from hicache_dbg.tracer.cli import repro_output
    from hicache_dbg.tracer.cli.traced import option_errors, traced_run

    if schedules is not None:
        _explore(options, schedules, record, as_json=as_json)
    with option_errors(), progress() as advance:
        outcome = traced_run(options.job(record), advance)
    if as_json:
        print_json(repro_output.as_json(outcome))
    else:
        repro_output.show(outcome)
    raise typer.Exit(repro_output.exit_code(outcome))


def _explore(options: RunOptions, schedules: int, record: Path | None, *, as_json: bool) -> None:
    from hicache_dbg.tracer.cli import explore, explore_output
    from hicache_dbg.tracer.cli.traced import option_errors

    with option_errors():
        if record is not None or replace(options, seed=0, fault="") != RunOptions():
            raise ConfigError(
                "explore has a small cache and readers of its own: only --fault, --seed and --json go "
                "with it; leave the other options out"
            )
        explored = explore.explore(schedules, options.seed, options.injected(), progress())
    if as_json:
        print_json(explore_output.as_json(explored))
    else:
        explore_output.show(explored)
    raise typer.Exit(explored.exit_code)
