"""``hicache-dbg bench``: what the instrument costs on this machine, as ratios."""

from collections.abc import Iterator
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from hicache_dbg.tracer.cli.exits import MISSING, CommandError
from hicache_dbg.tracer.cli.json_output import AsJson, print_json
from hicache_dbg.tracer.cli.progress import UNKNOWN, progress

if TYPE_CHECKING:
    from hicache_dbg.tracer.bench.table import Row

__all__ = ["command"]


_LEGEND = (
    "hicache-dbg: 'A over B' is the ratio of A to B. 'cpu' and 'device' rows compare speeds, more is better; "
    "all other rows compare times, less is better. 1 means no difference; goals are the project's own"
)


class Device(StrEnum):
    """Where digests are measured."""

    CPU = "cpu"
    CUDA = "cuda"


def command(
    device: Annotated[Device, typer.Option(help="Where to measure digests.")] = Device.CPU,
    pairs: Annotated[
        int,
        typer.Option(min=1, help="Number of runs, with and without tracing, behind each ratio."),
    ] = 7,
    digests_only: Annotated[
        bool, typer.Option("--digests-only", help="Measure digests only, without the engine.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Measure what tracing costs on this machine, as ratios of with and without.

    Example: hicache-dbg bench --device cuda
    """
    from hicache_dbg.tracer.bench.digests import NoDeviceError
    from hicache_dbg.tracer.bench.table import markdown

    rows: list[Row] = []
    try:
        with progress() as advance:
            for row in _rows(device, pairs, digests_only=digests_only):
                rows.append(row)
                advance(len(rows), UNKNOWN, row.case)
    except NoDeviceError as error:
        raise CommandError(
            f"{error}; use --device cpu, or a machine with a GPU and a CUDA build of torch", MISSING
        ) from error
    if as_json:
        print_json([{**asdict(row), "kept": row.kept} for row in rows])
    else:
        typer.echo(markdown(rows))
        typer.echo(_LEGEND, err=True)


def _rows(device: Device, pairs: int, *, digests_only: bool) -> Iterator["Row"]:
    from hicache_dbg.tracer.bench.digests import digest_rows
    from hicache_dbg.tracer.bench.overhead import overhead_rows

    yield from digest_rows(device.value)
    if not digests_only:
        yield from overhead_rows(pairs)
