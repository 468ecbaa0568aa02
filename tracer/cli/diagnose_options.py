"""The options of ``diagnose``: where the events are, what to judge, and what to write."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from hicache_dbg.exporters.recording_format import PACKED, SUFFIX
from hicache_dbg.tracer.cli.exits import CommandError
from hicache_dbg.tracer.cli.journal_query import ANY
from hicache_dbg.tracer.cli.json_output import AsJson
from hicache_dbg.tracer.events import FaultClass

__all__ = ["DiagnoseOptions", "Places"]

Places = Annotated[list[Path] | None, typer.Argument(help="Recordings, or folders of recordings.")]


def _option(text: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, **more)


@dataclass(frozen=True, slots=True)
class DiagnoseOptions:
    """What the places that are read do not say themselves."""

    journal: Annotated[bool, _option("Read the journal instead of recordings.", "--journal")] = (
        False
    )
    since: Annotated[str, _option("With --journal: from this time on, such as '1 hour ago'.")] = ""
    until: Annotated[str, _option("With --journal: up to this time.")] = ""
    namespace: Annotated[
        str, _option("With --journal: the journal namespace that the service logs to.")
    ] = ""
    together: Annotated[
        bool,
        _option("Treat all places as one run: its ranks, or prefill and decode.", "--together"),
    ] = False
    last: Annotated[bool, _option("Read only the newest run of each folder.", "--last")] = False
    request: Annotated[
        str, _option("Judge only what was copied for this request (in SGLang, its rid).")
    ] = ""
    hypothesis: Annotated[
        list[Path] | None,
        _option("A Python file with a HYPOTHESIS of your own; it is executed. May be repeated."),
    ] = None
    html: Annotated[
        Path | None, _option("Also write the report as one HTML page that needs no network.")
    ] = None
    perfetto: Annotated[
        Path | None, _option("Also write the run's timeline, to open in ui.perfetto.dev.")
    ] = None
    around: Annotated[
        str,
        _option(
            "With --perfetto: only 5 s before and after the first finding of this class, or 'any'.",
            metavar="CLASS",
            show_default=False,
        ),
    ] = ""
    as_json: AsJson = False

    def chosen(self) -> list[str]:
        """Return the options that choose what is read, as words of a command."""
        texts = {
            "since": self.since,
            "until": self.until,
            "namespace": self.namespace,
            "request": self.request,
        }
        flags = {"journal": self.journal, "together": self.together, "last": self.last}
        return [
            *(f"--{name}" for name, given in flags.items() if given),
            *(f"--{name}={text}" for name, text in texts.items() if text),
        ]

    def check(self, places: Sequence[Path]) -> None:
        """Refuse options that contradict each other, or the places.

        Raises:
            CommandError: they do; the message says which, and what to do.
        """
        if self.journal == bool(places):
            home = os.environ.get("HICACHE_DBG_DIR") or "~/.local/state/hicache-dbg"
            where = "" if places else f"; recordings are in HICACHE_DBG_DIR ({home})"
            raise CommandError(f"name recordings to read, or --journal, and not both{where}")
        if self.journal and (self.together or self.last):
            raise CommandError(
                "--together and --last choose among recordings: leave them out with --journal"
            )
        if not self.journal and (self.since or self.until or self.namespace):
            raise CommandError(
                "--since, --until and --namespace choose from the journal: add --journal"
            )
        if (self.html or self.perfetto) and len(places) > 1 and not self.together:
            raise CommandError(
                "--html and --perfetto are of one run: name one place, or --together"
            )
        self._check_around()
        self._check_written(places)

    def _check_around(self) -> None:
        classes = (ANY, *(fault.value for fault in FaultClass))
        if self.around and self.around not in classes:
            raise CommandError(
                f"--around {self.around!r} is no class: expected {', '.join(classes)}"
            )
        if self.around and self.perfetto is None:
            raise CommandError("--around cuts the timeline: add --perfetto FILE")

    def _check_written(self, places: Sequence[Path]) -> None:
        """Refuse to write over a recording, which cannot be made again, or one file over the other."""
        read = {place.resolve() for place in places}
        for option, path in (("--html", self.html), ("--perfetto", self.perfetto)):
            if path is None:
                continue
            if path.name.endswith((SUFFIX, SUFFIX + PACKED)) or path.resolve() in read:
                raise CommandError(
                    f"{option} {path} is a recording, or its name is that of one: name the file to write"
                )
        if self.html and self.perfetto and self.html.resolve() == self.perfetto.resolve():
            raise CommandError("--html and --perfetto are two files: give each a name of its own")
