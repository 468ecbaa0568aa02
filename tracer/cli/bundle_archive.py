"""Write a bundle, with everything removed that could identify a request, a user or a machine."""

import io
import os
import re
import secrets
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache
from hashlib import blake2s
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import msgspec

from hicache_dbg.exporters.parts import PartMissingError
from hicache_dbg.exporters.recording_format import (
    PACKED,
    Header,
    RecordingError,
    read,
    read_header,
)
from hicache_dbg.tracer.cli.doctor_checks import SYSTEMS, examine
from hicache_dbg.tracer.events import Copied, Event, Finding, Stated
from hicache_dbg.tracer.settings import Settings, SettingsError
from hicache_dbg.tracer.words import counted

__all__ = ["Contents", "fill", "opened"]

FOLDER = "hicache-dbg-bundle"
HOME = "~"
GZIP, ZSTD = (".tar.gz", ".tgz"), (".tar.zst",)

_README = """What a colleague needs to look at a run of hicache-dbg.

recordings/     the events; read them with: hicache-dbg diagnose recordings
doctor.json     what works on the machine where this was packed
settings.json   the HICACHE_DBG settings there; each run's own checksum mode is in its first record
versions.json   versions of what is installed there

Left out:
{left_out}

There are page numbers, sizes and digests here, and no contents of any page.
"""


@dataclass(slots=True)
class Contents:
    """What was written to a bundle, and what was left out."""

    files: list[str] = field(default_factory=list)
    events: int = 0
    left_out: list[str] = field(default_factory=list)


def fill(archive: tarfile.TarFile, recordings: Sequence[Path], others: int) -> Contents:
    """Write the scrubbed recordings and the description of the machine to ``archive``.

    Args:
        archive: open for writing.
        recordings: paths of the recordings; none may follow a newer schema.
        others: number of files beside them that are not recordings and are left out.

    Raises:
        RecordingError: a file is not a recording, or follows a newer schema.
    """
    done, alias = Contents(), _aliases()
    ids = gone = 0
    for path in recordings:
        with TemporaryFile() as file:
            try:
                ids += _scrub(path, file, done, alias)
            except (FileNotFoundError, RecordingError):
                if path.exists() or len(recordings) == 1:
                    raise
                gone += 1
                continue
            name = f"recordings/{path.name.removesuffix(PACKED)}"
            _add(archive, name, file, done)
    if ids:
        done.left_out.append(
            f"trace and span ids, and the names of requests, of {counted(ids, 'event')}"
        )
    if gone:
        done.left_out.append(f"{counted(gone, 'file')}: removed by its writer meanwhile")
    if others:
        done.left_out.append(f"{counted(others, 'file')}: not a recording")
    done.left_out.append("environment variables other than the settings, and their secrets")
    done.left_out.append(f"host name and user name; the home folder is written as {HOME}")
    for name, value in _machine().items():
        _add(archive, name, io.BytesIO(_json(value)), done)
    readme = _README.format(left_out="\n".join(f"- {line}" for line in done.left_out))
    _add(archive, "README.txt", io.BytesIO(readme.encode()), done)
    return done


@contextmanager
def opened(path: Path) -> Iterator[tarfile.TarFile]:
    """Open a new archive at ``path``, compressed as its suffix says; remove it on failure.

    Raises:
        FileExistsError: something exists at ``path``.
        PartMissingError: the suffix is ``.tar.zst`` and zstandard is not installed.
    """
    if path.name.endswith(ZSTD):
        try:
            import zstandard
        except ImportError as error:
            needs = f"{path.name} (.tar.gz does not) needs"
            raise PartMissingError(needs, "zstandard", "zstd") from error
        compress: Any = zstandard.ZstdCompressor().stream_writer
    else:
        compress = None
    with path.open("xb") as file:
        try:
            if compress is None:
                with tarfile.open(fileobj=file, mode="w:gz") as archive:
                    yield archive
            else:
                with (
                    compress(file, closefd=False) as stream,
                    tarfile.open(fileobj=stream, mode="w|") as archive,
                ):
                    yield archive
        except BaseException:
            path.unlink()
            raise


def _scrub(path: Path, file: IO[bytes], done: Contents, alias: Callable[[str], str]) -> int:
    """Write the recording without ids; return the number of events that had one."""
    header: Header = read_header(path)
    if header.boot_id:
        header = msgspec.structs.replace(header, boot_id=alias(header.boot_id))
    encode = msgspec.json.Encoder().encode
    file.write(_without_home(encode(header)) + b"\n")
    ids = 0
    try:
        for event in read(path, say=lambda said: done.left_out.append(_named(said, path))):
            clean = _without_ids(event, alias)
            ids += clean is not event
            done.events += 1
            file.write(_without_home(encode(clean)) + b"\n")
    except RecordingError as error:  # a truncated compressed file
        done.left_out.append(_named(str(error), path))
    return ids


def _aliases() -> Callable[[str], str]:
    """Return a function that maps ids of requests and boots to irreversible aliases of this bundle."""
    salt = secrets.token_bytes(16)

    @cache
    def alias(name: str) -> str:
        return blake2s(name.encode(), key=salt, digest_size=8).hexdigest()

    return alias


def _named(said: str, path: Path) -> str:
    """Return the reader's message with the file's name in place of its path."""
    return said.replace(str(path), path.name)


def _without_ids(event: Event, alias: Callable[[str], str]) -> Event:
    """Return ``event`` without trace ids, and with an alias in place of a request id.

    The alias is the same in all recordings of the bundle, so that requests can still be matched.
    """
    if isinstance(event, Stated) and event.request:
        return msgspec.structs.replace(event, request=alias(event.request))
    if not isinstance(event, Copied | Finding):
        return event
    if not (event.trace_id or event.span_id or event.requests):
        return event

    # The longest first: one id may begin as another one does.
    names = "|".join(map(re.escape, sorted(event.requests, key=len, reverse=True)))
    named = re.compile(rf"(?<=\brequest )(?:{names})")

    def unnamed(text: str) -> str:
        return named.sub(lambda found: alias(found[0]), text) if names else text

    if isinstance(event, Copied):
        return msgspec.structs.replace(
            event,
            trace_id="",
            span_id="",
            requests=(),
            shared_with=(),
            status=unnamed(event.status),
        )
    return msgspec.structs.replace(
        event,
        trace_id="",
        span_id="",
        requests=(),
        message=unnamed(event.message),
        expected=unnamed(event.expected),
        got=unnamed(event.got),
    )


def _without_home(data: bytes) -> bytes:
    try:
        home = os.fsencode(Path.home())
    except RuntimeError:  # a user without an account entry has no home
        return data
    # Match whole path components: /srv/a is not a parent of /srv/ab.
    return re.sub(re.escape(home) + rb"(?![\w.-])", HOME.encode(), data) if len(home) > 1 else data


def _machine() -> Mapping[str, object]:
    try:
        settings: object = asdict(Settings.from_environ())
    except SettingsError as error:
        settings = {"error": str(error)}
    return {"doctor.json": examine(), "settings.json": settings, "versions.json": _versions()}


def _versions() -> dict[str, str]:
    """Return the versions of our dependencies and of the systems that we attach to."""
    names = {re.split(r"[^\w.-]", need)[0] for need in requires("hicache-dbg") or []}
    found = {}
    for name in sorted({"hicache-dbg", "triton", *names, *SYSTEMS}):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _json(value: object) -> bytes:
    return msgspec.json.format(_without_home(msgspec.json.encode(value, enc_hook=str)), indent=2)


def _add(archive: tarfile.TarFile, name: str, file: IO[bytes], done: Contents) -> None:
    """Add a file that has no owner."""
    entry = tarfile.TarInfo(f"{FOLDER}/{name}")
    entry.size = file.seek(0, os.SEEK_END)
    entry.mtime = int(time.time())
    file.seek(0)
    archive.addfile(entry, file)
    done.files.append(name)
