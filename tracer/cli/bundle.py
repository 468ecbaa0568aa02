"""``hicache-dbg bundle``: pack what a colleague needs for a diagnosis into one archive."""

from pathlib import Path
from typing import Annotated

import typer

from hicache_dbg.exporters.parts import PartMissingError
from hicache_dbg.exporters.recording_folder import LOCK
from hicache_dbg.exporters.recording_format import RecordingError, begun, recordings_in
from hicache_dbg.exporters.writing import why_not
from hicache_dbg.tracer.cli.bundle_archive import GZIP, ZSTD, Contents, fill, opened
from hicache_dbg.tracer.cli.exits import MISSING, CommandError
from hicache_dbg.tracer.cli.json_output import AsJson, print_json
from hicache_dbg.tracer.words import counted

__all__ = ["command"]


def command(
    place: Annotated[Path, typer.Argument(help="A recording, or a folder of recordings.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The archive: NAME.tar.zst or NAME.tar.gz.")
    ],
    as_json: AsJson = False,
) -> None:
    """Pack recordings, doctor's findings, settings and versions for a colleague.

    No cache contents and no request ids go in. Prints what was packed and what
    was left out.

    Example: hicache-dbg bundle ~/.local/state/hicache-dbg -o run.tar.zst
    """
    if not output.name.endswith(GZIP + ZSTD):
        raise CommandError(f"{output} is no archive's name: expected NAME.tar.zst or NAME.tar.gz")
    recordings, others = _recordings(place)
    try:
        with opened(output) as archive:
            done = fill(archive, recordings, others)
    except RecordingError as error:
        raise CommandError(str(error)) from error
    except PartMissingError as error:
        raise CommandError(str(error), MISSING) from error
    except OSError as error:
        raise CommandError(f"cannot write {output}: {why_not(output, error)}") from error
    _say(output, done, as_json=as_json)


def _recordings(place: Path) -> tuple[list[Path], int]:
    """Return the recordings, and the number of other files beside them; the runs' locks aside."""
    if not place.is_dir():
        return [place], 0
    found = recordings_in(place)
    if not found:
        raise CommandError(f"{place} holds no recording (*.jsonl or *.jsonl.zst)")
    packed = [path for path in found if begun(path)] or found
    others = (path for path in place.iterdir() if path not in packed)
    return packed, sum(not path.name.endswith(LOCK) for path in others)


def _say(output: Path, done: Contents, *, as_json: bool) -> None:
    if as_json:
        told = {
            "archive": str(output),
            "files": done.files,
            "events": done.events,
            "left_out": done.left_out,
        }
        print_json(told)
        return
    typer.echo(
        f"{output}: {output.stat().st_size} B, {counted(done.events, 'event')} in {counted(len(done.files), 'file')}"
    )
    for line in done.left_out:
        typer.echo(f"left out: {line}")
