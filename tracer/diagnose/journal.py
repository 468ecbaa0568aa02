"""The journal as a source of events: the output of ``journalctl -o json``, read by DuckDB.

A copy's entry holds its fields as text, so the table ``copies`` consists of casts. Several skip
reasons of one copy are kept as one combined reason with their total. The rare events carry a
complete record.
"""

import shlex
import subprocess
from collections.abc import Callable, Iterator, Sequence

import msgspec

from hicache_dbg.tracer.diagnose.database import COLUMNS, WHOLE, Database, listed
from hicache_dbg.tracer.events import Copied, Event
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
_DERIVED = {
    "time_ns": "TRY_CAST(__REALTIME_TIMESTAMP AS BIGINT) * 1000",
    "skipped": "CASE WHEN HICACHE_SKIP_REASON IS NULL THEN MAP([]::VARCHAR[], []::BIGINT[]) "
    "ELSE MAP([HICACHE_SKIP_REASON], [TRY_CAST(HICACHE_SKIPPED AS BIGINT)]) END",
    "requests": "string_split(HICACHE_REQUEST, ',')",
    **_ABSENT,
}
_FIELDS = sorted(
    {"HICACHE_EVENT", "HICACHE_REQUEST", "HICACHE_SKIP_REASON", "HICACHE_SKIPPED", _RECORD}
    | {_NAMED.get(name, f"HICACHE_{name.upper()}") for name in COLUMNS if name not in _DERIVED}
)


class JournalError(Exception):
    """The journal cannot be read as requested; the message says why and what to do."""


class JournalMissingError(JournalError):
    """There is no journal on this machine."""


class JournalSource:
    """Entries selected by a journalctl call.

    Args:
        arguments: the command line, including ``-o json``.
        say: gets one sentence if entries could not be read.
    """

    def __init__(self, arguments: Sequence[str], say: Callable[[str], None]) -> None:
        self._arguments = [*arguments, f"--output-fields={','.join(_FIELDS)}"]
        self._say = say

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
        fields = ", ".join(f"{name}: 'VARCHAR'" for name in ("__REALTIME_TIMESTAMP", *_FIELDS))
        database.sql(
            f"CREATE VIEW entries AS SELECT * FROM read_json({listed([str(entries)])}, "  # noqa: S608 - a path of ours
            f"format='newline_delimited', columns={{{fields}}}, ignore_errors=true)"
        )
        chosen = ", ".join(f"{_cast(name, kind)} AS {name}" for name, kind in COLUMNS.items())
        database.sql(
            f"CREATE VIEW copies AS SELECT {chosen} FROM entries "  # noqa: S608
            f"WHERE HICACHE_EVENT = 'copied' AND {WHOLE}"
        )

    def rare(self, database: Database) -> Iterator[Event]:
        """Yield the records of entries that are not copies."""
        decoder = msgspec.json.Decoder(Event)
        unread = 0
        for rows in database.batches(f"SELECT {_RECORD} FROM entries WHERE {_RECORD} IS NOT NULL"):  # noqa: S608
            for (record,) in rows:
                try:
                    event = decoder.decode(record)
                except msgspec.MsgspecError:
                    unread += 1
                    continue
                if not isinstance(event, Copied):
                    yield event
        if unread:
            self._say(
                f"the journal: {counted(unread, 'entry')} skipped, whose record this version cannot read"
            )


def _cast(name: str, kind: str) -> str:
    derived = _DERIVED.get(name)
    if derived is not None:
        return derived
    field = _NAMED.get(name, f"HICACHE_{name.upper()}")
    return field if kind == "VARCHAR" else f"TRY_CAST({field} AS {kind})"
