"""The embedded store: one file a page, bounded, readable after a restart and beside other writers.

A file appears under its name by an atomic rename, so a reader meets a whole record or none. Nothing
is forced to the disk: after a power cut a file may be short or full of zeros, and is a miss then.
"""

import os
import secrets
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread

from hicache_dbg.pools.storage.results import PageResult, PageState
from hicache_dbg.pools.storage.store import Record

__all__ = ["FileStore"]

SUFFIX = ".page"
PARTIAL = ".partial"
#: Tells this process from one of the same number: in a container the next life has it again.
LIFE = secrets.token_hex(4)
_numbers = count()  # of all stores of this process: two may be over one folder
#: From how many bytes a page on two threads read faster than one: a disk wants more than one request.
TWO_AT_A_TIME_BYTES = 256 << 10
#: Pieces that one system call takes.
MOST_PIECES = os.sysconf("SC_IOV_MAX") if hasattr(os, "sysconf") else 1024


class FileStore:
    """Pages as files under ``folder``, at most ``max_bytes`` of them, the least recently used go first.

    The bound holds for what this process knows of: what was there at the start, and what it wrote
    or read. Safe from any thread.

    Raises:
        OSError: the folder cannot be made or read.
    """

    name = "file"
    fallback = ""

    def __init__(self, folder: str | os.PathLike[str], max_bytes: int = 1 << 40) -> None:
        if max_bytes < 1:
            raise ValueError(f"max_bytes is {max_bytes}, expected at least 1")
        self.folder = Path(folder)
        self._root = str(self.folder)
        self.max_bytes = max_bytes
        self.evicted = 0
        self._lock = Lock()
        self._sizes: OrderedDict[str, int] = OrderedDict()  # the least recently used first
        self._bytes = 0
        for digit in "0123456789abcdef":
            (self.folder / digit).mkdir(parents=True, exist_ok=True)
        self._survey()

    @property
    def nbytes(self) -> int:
        """Bytes of the files known of."""
        return self._bytes

    def put(self, records: Iterable[Record]) -> Iterator[PageResult]:
        """Write each record beside its place and move it there; one that is there is left alone."""
        for record in records:
            if self._is_there(record.name):
                yield PageResult(nbytes=record.nbytes)
            else:
                yield self._write(record)

    def get(self, records: Sequence[Record]) -> Iterator[PageResult]:
        """Read each file straight into the record's pieces; large ones two at a time."""
        if len(records) < 2 or records[0].nbytes < TWO_AT_A_TIME_BYTES:
            yield from map(self._read, records)
            return
        ends: SimpleQueue[PageResult] = SimpleQueue()
        other = Thread(target=self._read_beside, args=(records[1::2], ends), daemon=True)
        other.start()
        try:
            for number, record in enumerate(records):
                yield ends.get() if number % 2 else self._read(record)
        finally:
            other.join()  # nothing is written to the pieces once this has returned

    def exists(self, names: Sequence[str]) -> list[bool]:
        """Which pages are there now, whoever put them there or removed them; counts as a use."""
        return [self._is_there(name) for name in names]

    def discard(self, name: str) -> None:
        """Remove a page's file."""
        with self._lock:
            self._remove(name)

    def register(self, regions: Iterable[tuple[int, int]]) -> None:
        """Nothing: files are read into any memory."""

    def close(self) -> None:
        """Nothing: files stay."""

    def path(self, name: str) -> Path:
        """The file of the page called ``name``; folders of a 16th of the pages each."""
        return Path(self._place(name))

    def _place(self, name: str) -> str:
        return f"{self._root}/{name[0]}/{name}{SUFFIX}"

    # -- one page -----------------------------------------------------------------------------

    def _write(self, record: Record) -> PageResult:
        size = record.nbytes
        if size > self.max_bytes:
            return PageResult(
                PageState.FAILED,
                "larger than the store",
                got=f"{size} B",
                expected=f"at most {self.max_bytes} B",
            )
        self._make_room(size)
        place = self._place(record.name)
        partial = f"{place}.{LIFE}.{os.getpid()}.{next(_numbers)}{PARTIAL}"
        try:
            _write_all(partial, [memoryview(record.header), *record.pieces])
            with self._lock:
                os.rename(partial, place)  # noqa: PTH104 (paths as text: this runs once a page)
                self._note(record.name, size)
        except OSError as error:
            with suppress(OSError):
                Path(partial).unlink()
            return _failed("write", error)
        return PageResult(nbytes=size)

    def _read_beside(self, records: Sequence[Record], ends: "SimpleQueue[PageResult]") -> None:
        for record in records:
            try:
                ends.put(self._read(record))
            except Exception as error:  # noqa: BLE001 (whatever it is, the other thread waits for an end)
                ends.put(PageResult(PageState.FAILED, f"read: {error}"))

    def _read(self, record: Record) -> PageResult:
        try:
            descriptor = os.open(self._place(record.name), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self._is_there(record.name)  # no longer known of, unless it was put again
            return PageResult(PageState.MISSING, "no such file")
        except OSError as error:
            return _failed("open", error)
        try:
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
            held = os.fstat(descriptor).st_size
            got = _read_all(descriptor, [memoryview(record.header), *record.pieces])
        except OSError as error:
            return _failed("read", error)
        finally:
            os.close(descriptor)
        self._is_there(record.name)  # it may have been evicted while it was read
        return PageResult(nbytes=min(held, got) if held < record.nbytes else held)

    # -- what is there ------------------------------------------------------------------------

    def _survey(self) -> None:
        """Take over what an earlier process left, the oldest first, and remove what it left half done."""
        found = []
        for place in self.folder.glob(f"?/*{SUFFIX}"):
            with suppress(OSError):  # another process may evict at the same time
                facts = place.stat()
                found.append((facts.st_mtime_ns, place.name.removesuffix(SUFFIX), facts.st_size))
        for _, name, size in sorted(found):
            self._note(name, size)
        for place in self.folder.glob(f"?/*{PARTIAL}"):
            if not _alive(place):
                with suppress(OSError):
                    place.unlink()
        self._make_room(0)

    def _is_there(self, name: str) -> bool:
        """Look, for other processes put and remove files too, and note what was found."""
        with self._lock:
            try:
                self._note(name, os.stat(self._place(name)).st_size)  # noqa: PTH116 (as above)
            except OSError:
                self._bytes -= self._sizes.pop(name, 0)
                return False
        return True

    # Book and folder change together, under the lock: what is known of is there.

    def _note(self, name: str, size: int) -> None:
        self._bytes += size - self._sizes.pop(name, 0)
        self._sizes[name] = size

    def _remove(self, name: str) -> None:
        self._bytes -= self._sizes.pop(name, 0)
        with suppress(OSError):
            self.path(name).unlink()

    def _make_room(self, wanted: int) -> None:
        while self._bytes + wanted > self.max_bytes:
            with self._lock:
                if not self._sizes:
                    return
                self._remove(next(iter(self._sizes)))
                self.evicted += 1


def _write_all(place: str, pieces: list[memoryview]) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = os.open(place, flags, 0o644)
    try:
        while pieces:
            pieces = _after(pieces, os.writev(descriptor, pieces[:MOST_PIECES]))
    finally:
        os.close(descriptor)


def _read_all(descriptor: int, pieces: list[memoryview]) -> int:
    """Bytes read: all the pieces hold, or less where the file ends before."""
    total = 0
    while pieces and (got := os.readv(descriptor, pieces[:MOST_PIECES])):
        total += got
        pieces = _after(pieces, got)
    return total


def _after(pieces: list[memoryview], done: int) -> list[memoryview]:
    """What is left of ``pieces`` after ``done`` bytes."""
    for number, piece in enumerate(pieces):
        if done < len(piece):
            return [piece[done:], *pieces[number + 1 :]]
        done -= len(piece)
    return []


def _failed(verb: str, error: OSError) -> PageResult:
    return PageResult(PageState.FAILED, f"{verb}: {error.strerror}", errno=error.errno or 0)


def _alive(partial: Path) -> bool:
    """Whether the process that writes this file is still there; its number is in the name."""
    *_, life, process, _number, _suffix = partial.name.split(".")
    if not process.isdecimal() or (int(process) == os.getpid() and life != LIFE):
        return False
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
