"""The journal as a source of events: the output of ``journalctl -o json``, read by DuckDB.

A copy's entry holds its fields as text, so the table ``copies`` consists of casts. Several skip
reasons of one copy are kept as one combined reason with their total. The rare events carry a
complete record.
"""

import shlex
import subprocess
from collections.abc import Callable, Iterator, Sequence

import msgspec

from hicache_dbg.exporters.recording_format import FORMAT, Header
from hicache_dbg.tracer.diagnose.database import COLUMNS, WHOLE, Database, listed
from hicache_dbg.tracer.events import SCHEMA_VERSION, Copied, Event
from hicache_dbg.tracer.words import counted

__all__ = ["JournalError", "JournalMissingError", "JournalSource"]

_RECORD = "HICACHE_RECORD"
#: Columns of ``copies`` whose journal field has another name.
_NAMED = {"cls": "HICACHE_CLASS", "trace_id": "TRACE_ID"}
#: Columns that entries lack, with the value that means "unknown".
_ABSENT = {
    "op_id": "0",
    "host_pages": "[]::BIGINT[]",
    "device_pages": "[]::BIGINT[]",
    "generations": "[]::BIGINT[]",
    "bad_tiles": "[]::BIGINT[][]",
}
#: Fields that an entry may have several times: then ``journalctl`` prints a list.
_REPEATED = frozenset({"HICACHE_REQUEST", "HICACHE_SKIP_REASON"})


def _values(field: str) -> str:
    """Return the expression of the values of a field in ``_REPEATED``."""
    return (
        f"CASE json_type({field}) WHEN 'ARRAY' THEN from_json({field}, '[\"VARCHAR\"]') "
        f"ELSE [{field} ->> '$'] END"
    )


_DERIVED = {
    "time_ns": "TRY_CAST(__REALTIME_TIMESTAMP AS BIGINT) * 1000",
    "skipped": "CASE WHEN HICACHE_SKIP_REASON IS NULL THEN MAP([]::VARCHAR[], []::BIGINT[]) "
    f"ELSE MAP([array_to_string({_values('HICACHE_SKIP_REASON')}, ',')], "
    "[TRY_CAST(HICACHE_SKIPPED AS BIGINT)]) END",
    "requests": _values("HICACHE_REQUEST"),
    **_ABSENT,
}
#: What the journal itself says of an entry's writer: a process id is used again after a restart.
_WRITER = ("_BOOT_ID", "_SYSTEMD_INVOCATION_ID", "_PID")
#: A clock that nobody sets, in microseconds since the boot.
_SINCE_BOOT = "__MONOTONIC_TIMESTAMP"
#: Holds the number that journald gave an entry when it wrote it, as ``;i=1f;`` in hexadecimal.
_CURSOR = "__CURSOR"
#: Rare events, one process after the other, each in the order in which it wrote. Entries of one
#: microsecond have only their numbers to tell their order.
_BY_PROCESS = f"""
    SELECT {_RECORD}, process FROM (
        SELECT {_RECORD}, concat_ws('/', {", ".join(_WRITER)}) AS process,
               TRY_CAST({_SINCE_BOOT} AS BIGINT) AS since_boot,
               lpad(regexp_extract({_CURSOR}, ';i=([0-9a-f]+)', 1), 16, '0') AS number,
               TRY_CAST(__REALTIME_TIMESTAMP AS BIGINT) AS time
        FROM entries WHERE {_RECORD} IS NOT NULL)
    ORDER BY min(time) OVER (PARTITION BY process), process, since_boot, number
"""  # noqa: S608 - nothing of it comes from outside
_FIELDS = sorted(
    {
        "HICACHE_EVENT",
        "HICACHE_REQUEST",
        "HICACHE_SKIP_REASON",
        "HICACHE_SKIPPED",
        _RECORD,
        *_WRITER,
    }
    | {_NAMED.get(name, f"HICACHE_{name.upper()}") for name in COLUMNS if name not in _DERIVED}
)


class JournalError(Exception):
    """The journal cannot be read as requested; the message says why and what to do."""


class JournalMissingError(JournalError):
    """There is no journal on this machine."""


class JournalSource:
    """Entries selected by a journalctl call.

    Args:
        arguments: the command line, including ``-o json --all``.
        say: gets one sentence if entries could not be read.
    """

    def __init__(self, arguments: Sequence[str], say: Callable[[str], None]) -> None:
        self._arguments = [*arguments, f"--output-fields={','.join(_FIELDS)}"]
        self._say = say
        self.unread = 0

    @property
    def name(self) -> str:
        """The command line that queried the journal."""
        return shlex.join(self._arguments[:-1])

    def attach(self, database: Database) -> None:
        """Run journalctl once, into the database's folder.

        Raises:
            JournalMissingError: journalctl is not installed.
            JournalError: it failed, or selected no entry.
        """
        entries = database.folder / "entries.jsonl"
        with entries.open("wb") as file:
            try:
                done = subprocess.run(  # noqa: S603 - the query is the purpose
                    self._arguments, stdout=file, stderr=subprocess.PIPE, text=True, check=False
                )
            except FileNotFoundError as error:
                raise JournalMissingError(
                    "journalctl is not installed, so there is no journal to read; "
                    "set HICACHE_DBG_SINKS=recording and name the recordings instead"
                ) from error
        if done.returncode:
            raise JournalError(
                f"journalctl ended with status {done.returncode}: {done.stderr.strip() or 'no word'}"
            )
        if not entries.stat().st_size:
            raise JournalError(
                "the journal holds no entry of hicache-dbg for this query; hicache-dbg doctor says "
                "whether lines reach it"
            )
        fields = ", ".join(
            f"{name}: '{'JSON' if name in _REPEATED else 'VARCHAR'}'"
            for name in ("__REALTIME_TIMESTAMP", _SINCE_BOOT, _CURSOR, *_FIELDS)
        )
        database.sql(
            f"CREATE VIEW entries AS SELECT * FROM read_json({listed([str(entries)])}, "  # noqa: S608 - a path of ours
            f"format='newline_delimited', columns={{{fields}}}, ignore_errors=true)"
        )
        chosen = ", ".join(f"{_cast(name, kind)} AS {name}" for name, kind in COLUMNS.items())
        database.sql(
            f"CREATE VIEW copies AS SELECT {chosen} FROM entries "  # noqa: S608
            f"WHERE HICACHE_EVENT = 'copied' AND {WHOLE}"
        )

    def rare(self, database: Database) -> Iterator[Event | Header]:
        """Yield the records of entries that are not copies, process by process, each behind a header."""
        decoder = msgspec.json.Decoder(Event)
        last: str | None = None
        for rows in database.batches(_BY_PROCESS):
            for record, process in rows:
                if process != last:
                    last = process
                    yield Header(format=FORMAT, schema=SCHEMA_VERSION, run_id=process, time_ns=0)
                try:
                    event = decoder.decode(record)
                except msgspec.MsgspecError:
                    self.unread += 1
                    continue
                if not isinstance(event, Copied):
                    yield event
        if self.unread:
            self._say(
                f"the journal: {counted(self.unread, 'entry')} skipped, whose record this version cannot read"
            )


def _cast(name: str, kind: str) -> str:
    derived = _DERIVED.get(name)
    if derived is not None:
        return derived
    field = _NAMED.get(name, f"HICACHE_{name.upper()}")
    return field if kind == "VARCHAR" else f"TRY_CAST({field} AS {kind})"
