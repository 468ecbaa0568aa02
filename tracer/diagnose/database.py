"""A run's events in DuckDB: any number of files, larger than memory, on all cores.

Every source provides the same table ``copies``, one row per operation, with the field names of
:class:`~hicache_dbg.tracer.events.Copied`. The rare events stay complete and are read one by one.
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
from hicache_dbg.tracer.words import counted

__all__ = ["Database", "RecordingSource", "Source", "listed"]

#: DuckDB's memory limit; the rest is spilled to disk.
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
#: A row counts as a copy only if all of these are present.
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


#: Characters that DuckDB would interpret as a glob.
_PATTERN = re.compile(r"[*?[]")


class Source(Protocol):
    """Where events come from."""

    @property
    def name(self) -> str:
        """The source's name in reports."""
        ...

    def attach(self, database: "Database") -> None:
        """Create the table ``copies`` in ``database``."""
        ...

    def rare(self, database: "Database") -> Iterator[Event | Header]:
        """Yield every event except copies, in the order written, and headers where files begin."""
        ...


class Database:
    """An in-memory DuckDB with a spill folder that is removed with it.

    Args:
        source: where the events come from.
        request: restrict the operations to those of this request, by the host's id; of the
            findings, keep those about it or about no particular request.

    Raises:
        PartMissingError: DuckDB is not installed.
        RecordingError: no operation belongs to ``request``.
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
                # Never download anything: what is needed ships with the package.
                "autoinstall_known_extensions": "false",
                "preserve_insertion_order": "true",
            }
        )
        self._source, self._request = source, request
        #: Number of operations excluded because they do not belong to the selected request.
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
        """Return the rows of ``query``."""
        with _told(self._source):
            return self._connection.execute(query, list(parameters)).fetchall()

    def batches(
        self, query: str, parameters: Sequence[Any] = (), size: int = 10_000
    ) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the rows of ``query``, ``size`` at a time, however many there are."""
        with _told(self._source):
            cursor = self._connection.cursor().execute(query, list(parameters))
        while rows := _fetched(cursor, size, self._source):
            yield rows

    def keep(self) -> None:
        """Materialize the copies for callers with many queries.

        DuckDB spills what exceeds memory.
        """
        self.sql("CREATE TABLE kept AS SELECT * FROM copies")
        self.sql("DROP VIEW copies")
        self.sql("ALTER TABLE kept RENAME TO copies")

    def rare(self) -> Iterator[Event | Header]:
        """Yield every event except copies, and headers where files begin."""
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
        """Release memory and the spill folder."""
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
        """Close the database."""
        self.close()


class RecordingSource:
    """Recordings, plain or compressed; ``say`` gets one sentence per file with damaged lines.

    Raises:
        RecordingError: a file cannot be read, is not a recording, or has a newer schema.
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
        database.sql(
            f"CREATE VIEW copies AS SELECT * FROM read_json({listed(self._files)}, "  # noqa: S608 - quoted
            f"format='newline_delimited', columns={{{typed}}}, ignore_errors=true) "
            f"WHERE event = 'copied' AND {WHOLE}"
        )

    def rare(self, database: Database) -> Iterator[Event | Header]:
        """Yield the decoded lines that are not copies; report incomplete ones."""
        decoder = msgspec.json.Decoder(Event)
        damaged = Counter[str]()
        for file in self._files:  # one by one: DuckDB may interleave the lines of several files
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
        """Decode a line; return None if it is incomplete."""
        if text is None:
            return None
        try:
            return decoder.decode(text)
        except msgspec.MsgspecError:
            return _header(text)


@contextmanager
def _told(source: Source) -> Iterator[None]:
    """Turn DuckDB's multi-line errors into one line, and its interrupt into Ctrl-C."""
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
    """Return file names as a DuckDB list of strings, with glob characters escaped."""
    return (
        "["
        + ", ".join("'" + _PATTERN.sub(r"[\g<0>]", f).replace("'", "''") + "'" for f in files)
        + "]"
    )
