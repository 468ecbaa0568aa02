"""Recordings as a source of events: any number of files, and what cannot be read of them."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from hicache_dbg.exporters.encoding import LONGEST_LINE, whole
from hicache_dbg.exporters.recording_format import PACKED, Header, RecordingError, read_header
from hicache_dbg.tracer.diagnose.database import COLUMNS, WHOLE, Database, listed
from hicache_dbg.tracer.diagnose.held import HeldFiles
from hicache_dbg.tracer.diagnose.long_lines import long_lines, without
from hicache_dbg.tracer.events import Copied, Event
from hicache_dbg.tracer.words import counted

__all__ = ["RecordingSource"]


class RecordingSource:
    """Recordings, plain or compressed; ``say`` gets one sentence per file with damaged lines.

    What is removed from now on can still be read. Of several files, those that their writer has
    removed already, to make room, are left out.

    Raises:
        RecordingError: a file cannot be read, is not a recording, or has a newer schema.
    """

    def __init__(self, files: Sequence[Path], say: Callable[[str], None]) -> None:
        self.unread = 0
        #: Numbers of the parts of a recording that were there.
        self.parts: set[int] = set()
        self._held = HeldFiles()
        self._files: list[str] = []
        for file in files:
            try:
                self._open(file)
            except RecordingError:
                if file.exists() or (file is files[-1] and not self._files):
                    raise
        #: What is read in the place of each file.
        self._readable = {file: file for file in self._files}
        self._say = say

    def _open(self, file: Path) -> None:
        header = read_header(file)
        try:
            self._held.hold(str(file))
        except FileNotFoundError as error:
            raise RecordingError(f"cannot read {file}: {error.strerror}") from error
        if whole(str(file)) != str(file):
            raise RecordingError(
                f"cannot read {str(file)!r}: its name is no UTF-8; link to it by another name"
            )
        self.parts.add(header.part)
        self._files.append(str(file))

    @property
    def name(self) -> str:
        """The file's name, or the first one and how many more there are."""
        first = Path(self._files[0]).name
        return (
            first
            if len(self._files) == 1
            else f"{first} and {counted(len(self._files) - 1, 'more file')}"
        )

    def attach(self, database: Database) -> None:
        """Create one view over all files.

        An incomplete line becomes an all-null row and is filtered out.
        """
        columns = {"event": "VARCHAR", **COLUMNS}
        typed = ", ".join(f"{name}: '{kind}'" for name, kind in columns.items())
        self._readable = {file: self._short(file, database) for file in self._files}
        files = list(self._readable.values())
        database.sql(
            f"CREATE VIEW copies AS SELECT * FROM read_json({listed(files)}, "  # noqa: S608 - quoted
            f"format='newline_delimited', columns={{{typed}}}, ignore_errors=true) "
            f"WHERE event = 'copied' AND {WHOLE}"
        )

    def rare(self, database: Database) -> Iterator[Event | Header]:
        """Yield the decoded lines that are not copies; report incomplete ones."""
        decoder = msgspec.json.Decoder(Event)
        damaged = Counter[str]()
        # One by one: DuckDB may interleave the lines of several files.
        for file, readable in self._readable.items():
            query = (
                "SELECT json::VARCHAR FROM read_ndjson_objects("  # noqa: S608 - quoted
                f"{listed([readable])}, ignore_errors=true) "
                """WHERE json IS NULL OR NOT starts_with(json::VARCHAR, '{"event":"copied"')"""
            )
            for rows in database.batches(query):
                for (text,) in rows:
                    event = self._event(decoder, text)
                    if event is None:
                        damaged[file] += 1
                    elif not isinstance(event, Copied):
                        yield event
        self.unread += damaged.total()
        for file, count in damaged.items():
            self._say(
                f"{file}: {counted(count, 'line')} skipped, no whole events: "
                "the writer was stopped there, or the file is damaged"
            )

    def _short(self, file: str, database: Database) -> str:
        """Return what to read for ``file``: a copy if some of its lines are too long."""
        held = self._held.readable(file, database.folder)
        skipped = [] if file.endswith(PACKED) else long_lines(held)
        if not skipped:
            return str(held)
        self.unread += len(skipped)
        self._say(
            f"{file}: {counted(len(skipped), 'line')} skipped, longer than {LONGEST_LINE >> 20} MiB: "
            "the file is damaged"
        )
        return str(without(skipped, held, database.folder))

    @staticmethod
    def _event(decoder: msgspec.json.Decoder[Event], text: str | None) -> Event | Header | None:
        """Decode a line; return None if it is incomplete."""
        if text is None:
            return None
        try:
            return decoder.decode(text)
        except msgspec.MsgspecError:
            return _header(text)


def _header(text: str) -> Header | None:
    try:
        return msgspec.json.decode(text, type=Header)
    except msgspec.MsgspecError:
        return None
