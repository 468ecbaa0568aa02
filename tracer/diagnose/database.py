"""A run's events in DuckDB: any number of files, larger than memory, on all cores.

Every source provides the same table ``copies``, one row per operation, with the field names of
:class:`~hicache_dbg.tracer.events.Copied`. The rare events stay complete and are read one by one.
"""

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from hicache_dbg.exporters.parts import PartMissingError
from hicache_dbg.exporters.recording_format import Header, RecordingError
from hicache_dbg.tracer.events import Event, Finding

__all__ = ["COLUMNS", "WHOLE", "Database", "Source", "listed"]

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

    @property
    def unread(self) -> int:
        """Number of lines or entries that could not be read; known once :meth:`rare` has ended."""
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
        given = list(parameters)
        with _told(self._source):
            rows: list[tuple[Any, ...]] = _interruptible(
                self._connection, lambda: self._connection.execute(query, given).fetchall()
            )
        return rows

    def batches(
        self, query: str, parameters: Sequence[Any] = (), size: int = 10_000
    ) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the rows of ``query``, ``size`` at a time, however many there are."""
        cursor, given = self._connection.cursor(), list(parameters)
        with _told(self._source):
            _interruptible(cursor, lambda: cursor.execute(query, given))
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

    @property
    def unread(self) -> int:
        """Number of lines or entries that could not be read; known once :meth:`rare` has ended."""
        return self._source.unread

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


@contextmanager
def _told(source: Source) -> Iterator[None]:
    """Turn DuckDB's multi-line errors into one line, and its interrupt into Ctrl-C's."""
    import duckdb

    try:
        yield
    except duckdb.InterruptException as error:
        raise KeyboardInterrupt from error
    except (
        duckdb.DataError,  # a number out of range
        duckdb.IOException,
        duckdb.InvalidInputException,
        duckdb.OutOfMemoryException,
    ) as error:
        first = str(error).strip().splitlines()[0]
        raise RecordingError(f"cannot read {source.name}: {first}") from error


def _fetched(cursor: Any, size: int, source: Source) -> list[tuple[Any, ...]]:
    with _told(source):
        rows: list[tuple[Any, ...]] = _interruptible(cursor, lambda: cursor.fetchmany(size))
    return rows


def _interruptible(connection: Any, call: Callable[[], Any]) -> Any:
    """Run a call of DuckDB's on another thread, so that Ctrl-C reaches this one and ends it.

    On the main thread DuckDB looks for a Ctrl-C between pieces of its work, or never.
    """
    with ThreadPoolExecutor(1, "hicache-dbg-query") as thread:
        asked = thread.submit(call)
        try:
            return asked.result()
        except KeyboardInterrupt:
            while not asked.done():  # the first may come before DuckDB has begun
                connection.interrupt()
                wait([asked], 0.1)
            raise


def listed(files: Sequence[str]) -> str:
    """Return file names as a DuckDB list of strings, with glob characters escaped."""
    return (
        "["
        + ", ".join("'" + _PATTERN.sub(r"[\g<0>]", f).replace("'", "''") + "'" for f in files)
        + "]"
    )
