"""A run's events in DuckDB: any number of files, more than memory holds, on the cores there are.

Every source offers the same table ``copies``, one row an operation, with the field names of
:class:`~hicache_dbg.tracer.events.Copied`. The rare events stay whole and are read one by one.
"""

import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import msgspec

from hicache_dbg.exporters.encoding import whole
from hicache_dbg.exporters.parts import PartMissingError
from hicache_dbg.exporters.recording_format import Header, RecordingError, read_header
from hicache_dbg.tracer.events import Copied, Event, Finding

__all__ = ["Database", "RecordingSource", "Source", "listed"]

#: DuckDB's own cap; what does not fit goes to the spill folder.
MEMORY = "1GB"

#: The columns of ``copies`` and their types.
COLUMNS = {
    "time_ns": "BIGINT",
    "rank": "INTEGER",
    "pool": "VARCHAR",
    "op": "VARCHAR",
    "token_granular": "BOOLEAN",
    "layout": "VARCHAR",
    "h": "BIGINT",
    "d": "BIGINT",
    "slot_page": "BIGINT",
    "unit": "VARCHAR",
    "pages": "BIGINT",
    "item_bytes": "BIGINT",
    "dtype": "VARCHAR",
    "layers": "BIGINT",
    "cls": "VARCHAR",
    "io_backend": "VARCHAR",
    "src": "VARCHAR",
    "dst": "VARCHAR",
    "bytes": "BIGINT",
    "duration_us": "DOUBLE",
    "verified": "BIGINT",
    "witnessed": "BIGINT",
    "mismatched": "BIGINT",
    "skipped": "MAP(VARCHAR, BIGINT)",
    "op_id": "BIGINT",
    "host_pages": "BIGINT[]",
    "device_pages": "BIGINT[]",
    "generations": "BIGINT[]",
    "requests": "VARCHAR[]",
    "status": "VARCHAR",
    "bad_tiles": "BIGINT[][]",
    "trace_id": "VARCHAR",
}
#: Without these a row is no copy, whatever it says it is.
WHOLE = " AND ".join(
    f"{name} IS NOT NULL"
    for name in (
        "time_ns",
        "rank",
        "pool",
        "op",
        "token_granular",
        "layout",
        "layers",
        "duration_us",
        "verified",
        "witnessed",
        "mismatched",
    )
)


#: What DuckDB takes for a pattern.
_PATTERN = re.compile(r"[*?[]")


class Source(Protocol):
    """Where events come from."""

    @property
    def name(self) -> str:
        """What a report calls it."""
        ...

    def attach(self, database: "Database") -> None:
        """Make the table ``copies`` in ``database``."""
        ...

    def rare(self, database: "Database") -> Iterator[Event | Header]:
        """Every event that is no copy, in the order in which it was written, and where files begin."""
        ...


class Database:
    """One DuckDB in memory, with a folder to spill to that goes with it.

    Args:
        source: where the events come from.
        request: keep to the operations for this request, as the host calls it; of the findings to
            those about it, and about no request in particular.

    Raises:
        PartMissingError: DuckDB is not installed.
        RecordingError: no operation is for ``request``.
    """

    def __init__(self, source: Source, request: str = "") -> None:
        try:
            import duckdb
        except ImportError as error:
            raise PartMissingError("reading recordings needs", "duckdb", "cli") from error
        self._folder = Path(tempfile.mkdtemp(prefix="hicache-dbg-"))
        self._connection = duckdb.connect(
            config={
                "memory_limit": MEMORY,
                "temp_directory": str(self._folder / "spill"),
                # Nothing may be fetched: what is needed came with the package.
                "autoinstall_known_extensions": "false",
                "preserve_insertion_order": "true",
            }
        )
        self._source, self._request = source, request
        #: Operations that are for other requests, or for none, where one was asked for.
        self.elsewhere = 0
        try:
            source.attach(self)
            if request:
                self._narrow(request)
        except BaseException:
            self.close()
            raise

    @property
    def folder(self) -> Path:
        """A folder that lives as long as the database."""
        return self._folder

    def sql(self, query: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of ``query``."""
        with _told(self._source):
            return self._connection.execute(query, list(parameters)).fetchall()

    def batches(
        self, query: str, parameters: Sequence[Any] = (), size: int = 10_000
    ) -> Iterator[list[tuple[Any, ...]]]:
        """The rows of ``query``, ``size`` at a time, however many there are."""
        with _told(self._source):
            cursor = self._connection.cursor().execute(query, list(parameters))
        while rows := _fetched(cursor, size, self._source):
            yield rows

    def keep(self) -> None:
        """Read every copy once, for whoever asks much of them; what memory lacks is spilled."""
        self.sql("CREATE TABLE kept AS SELECT * FROM copies")
        self.sql("DROP VIEW copies")
        self.sql("ALTER TABLE kept RENAME TO copies")

    def rare(self) -> Iterator[Event | Header]:
        """Every event that is no copy, and where files begin."""
        for event in self._source.rare(self):
            named = event.requests if isinstance(event, Finding) and self._request else ()
            if not named or self._request in named:
                yield event

    def _narrow(self, request: str) -> None:
        self.sql("ALTER VIEW copies RENAME TO every_copy")
        quoted = request.replace("'", "''")
        self.sql(
            f"CREATE VIEW copies AS SELECT * FROM every_copy WHERE list_contains(requests, '{quoted}')"  # noqa: S608 - quoted
        )
        ((every, mine),) = self.sql(
            "SELECT (SELECT count(*) FROM every_copy), (SELECT count(*) FROM copies)"
        )
        if not mine:
            raise RecordingError(
                f"no operation in {self._source.name} is for request {request!r}: it copied nothing, "
                "its host names no requests, or its name is another"
            )
        self.elsewhere = every - mine

    def close(self) -> None:
        """Let go of memory and of the spill folder."""
        self._connection.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        """Use the database until the block ends."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()


class RecordingSource:
    """Recordings, plain or packed; ``say`` gets a sentence for each with lines that are not whole.

    Raises:
        RecordingError: a file can't be read, is no recording, or follows a newer schema.
    """

    def __init__(self, files: Sequence[Path], say: Callable[[str], None]) -> None:
        for file in files:
            read_header(file)
            if whole(str(file)) != str(file):
                raise RecordingError(
                    f"cannot read {str(file)!r}: its name is no UTF-8; link to it by another name"
                )
        self._files = [str(file) for file in files]
        self._say = say

    @property
    def name(self) -> str:
        """The files, or how many there are."""
        first = Path(self._files[0]).name
        return first if len(self._files) == 1 else f"{first} and {len(self._files) - 1} more files"

    def attach(self, database: Database) -> None:
        """One view over all files; a line that is not whole becomes a row of nothing."""
        columns = {"event": "VARCHAR", **COLUMNS}
        typed = ", ".join(f"{name}: '{kind}'" for name, kind in columns.items())
        database.sql(
            f"CREATE VIEW copies AS SELECT * FROM read_json({listed(self._files)}, "  # noqa: S608 - quoted
            f"format='newline_delimited', columns={{{typed}}}, ignore_errors=true) "
            f"WHERE event = 'copied' AND {WHOLE}"
        )

    def rare(self, database: Database) -> Iterator[Event | Header]:
        """Lines that do not begin as a copy does, decoded; those that are not whole are told."""
        decoder = msgspec.json.Decoder(Event)
        damaged = Counter[str]()
        for file in self._files:  # one by one: of several at once DuckDB may mix the lines
            query = (
                "SELECT json::VARCHAR FROM read_ndjson_objects("  # noqa: S608 - quoted
                f"{listed([file])}, ignore_errors=true) "
                """WHERE json IS NULL OR NOT starts_with(json::VARCHAR, '{"event":"copied"')"""
            )
            for rows in database.batches(query):
                for (text,) in rows:
                    event = self._event(decoder, text)
                    if event is None:
                        damaged[file] += 1
                    elif not isinstance(event, Copied):
                        yield event
        for file, count in damaged.items():
            self._say(
                f"{file}: {count} {'line' if count == 1 else 'lines'} skipped, no whole events: "
                "the writer was stopped there, or the file is damaged"
            )

    @staticmethod
    def _event(decoder: msgspec.json.Decoder[Event], text: str | None) -> Event | Header | None:
        """What a line holds; None where it is not whole."""
        if text is None:
            return None
        try:
            return decoder.decode(text)
        except msgspec.MsgspecError:
            return _header(text)


@contextmanager
def _told(source: Source) -> Iterator[None]:
    """What DuckDB says in many lines, in one; Ctrl-C as Ctrl-C."""
    import duckdb

    try:
        yield
    except duckdb.InterruptException as error:
        raise KeyboardInterrupt from error
    except (duckdb.IOException, duckdb.InvalidInputException, duckdb.OutOfMemoryException) as error:
        first = str(error).strip().splitlines()[0]
        raise RecordingError(f"cannot read {source.name}: {first}") from error


def _fetched(cursor: Any, size: int, source: Source) -> list[tuple[Any, ...]]:
    with _told(source):
        rows: list[tuple[Any, ...]] = cursor.fetchmany(size)
    return rows


def _header(text: str) -> Header | None:
    try:
        return msgspec.json.decode(text, type=Header)
    except msgspec.MsgspecError:
        return None


def listed(files: Sequence[str]) -> str:
    """File names as a DuckDB list of strings, each of which means itself and no pattern."""
    return (
        "["
        + ", ".join("'" + _PATTERN.sub(r"[\g<0>]", f).replace("'", "''") + "'" for f in files)
        + "]"
    )
