"""The embedded store: one file per page, bounded, shared with restarts and other processes.

A file appears under its name by an atomic rename, so a reader sees a whole record or none. Nothing
is synced: after a power cut a file may be short or full of zeros, which is a miss.
"""

import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from errno import EDQUOT, ENOSPC
from pathlib import Path
from threading import Lock

from hicache_dbg.pools.forks import left_to_parent
from hicache_dbg.pools.storage.file_io import (
    begins_in_memory,
    read_at_once,
    read_cached,
    read_from_disk,
    write_all,
)
from hicache_dbg.pools.storage.idle import idle_cores
from hicache_dbg.pools.storage.partials import PARTIAL, Partial, remove_abandoned
from hicache_dbg.pools.storage.reserve import reserve
from hicache_dbg.pools.storage.results import PageResult, PageState
from hicache_dbg.pools.storage.side_by_side import side_by_side
from hicache_dbg.pools.storage.store import Record
from hicache_dbg.pools.storage.write_back import WriteBack

__all__ = ["FileStore"]

SUFFIX = ".page"
#: From this size on (bytes), records are read differently from the page cache and from the disk.
LARGE_BYTES = 1 << 20
#: Most large files that one thread has open for reading.
OPEN_AT_ONCE = 16
#: Most threads that read large files. From the page cache one more if they also hash, which takes a
#: fifth longer.
READERS = 4
_FULL = frozenset({ENOSPC, EDQUOT})
#: Non-blocking: opening something that is not a file, such as a pipe, must not wait.
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


class FileStore:
    """Pages as files under ``folder``, bounded by ``max_bytes`` with LRU eviction. Thread-safe.

    A forked child may go on with its copy, as any other process with a store of its own.

    A full disk evicts too. The bound covers the files that this process knows: those it found at
    the start, wrote or read.

    Raises:
        OSError: the folder cannot be created or read.
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
        self._write_back = WriteBack()
        self._sizes: OrderedDict[str, int] = OrderedDict()  # the least recently used first
        self._bytes = 0
        for digit in "0123456789abcdef":
            (self.folder / digit).mkdir(parents=True, exist_ok=True)
        self._survey()
        left_to_parent(self)

    def leave_to_parent(self) -> None:
        """Begin with a lock and a write-back thread of the forked child's own."""
        self._lock = Lock()
        self._write_back = WriteBack()

    @property
    def nbytes(self) -> int:
        """Total bytes of the known files."""
        return self._bytes

    def put(self, records: Iterable[Record]) -> Iterator[PageResult]:
        """Write each record to a temporary file and rename it; an existing record is left alone."""
        for record in records:
            if self._is_there(record.name):
                yield PageResult(nbytes=record.nbytes)
            else:
                yield self._write(record)

    def get(self, records: Sequence[Record]) -> Iterator[PageResult]:
        """Read each file straight into the pieces of its record, large files in parallel.

        A disk needs several requests in flight, so a few threads read from it. The page cache is
        read by the caller plus one thread per idle core: without idle cores, threads only compete.
        """
        if not records or records[0].nbytes < LARGE_BYTES:
            yield from (self._read(record, read_at_once) for record in records)
            return
        readers = min(READERS + records[0].digests, 1 + idle_cores())
        if not self._begins_in_memory(records[0]):
            yield from side_by_side(self._read_from_disk, records, READERS)
        elif readers > 1:
            yield from side_by_side(self._read_large, records, readers)
        else:
            yield from self._read_alone(records)

    def exists(self, names: Sequence[str]) -> list[bool]:
        """Return which pages exist on disk now, whoever wrote or removed them; counts as a use."""
        return [self._is_there(name) for name in names]

    def discard(self, name: str) -> None:
        """Delete the file of a page."""
        with self._lock:
            self._remove(name)

    def register(self, regions: Iterable[tuple[int, int]]) -> None:
        """Do nothing: files are read into any memory."""

    def close(self) -> None:
        """Do nothing: files stay."""

    def path(self, name: str) -> Path:
        """Return the path of a page's file; the pages are spread over sixteen folders."""
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
        end = self._written(record, size)
        if end.errno in _FULL and self._let_go(size):
            end = self._written(record, size)
        return end

    def _written(self, record: Record, size: int) -> PageResult:
        try:
            with Partial(self._place(record.name)) as unfinished:
                if size >= LARGE_BYTES:
                    reserve(unfinished.descriptor, size)
                write_all(unfinished.descriptor, record.pieces, len(record.header))
                record.seal()
                write_all(unfinished.descriptor, [memoryview(record.header)], 0)
                if size >= LARGE_BYTES:
                    self._write_back.begin(unfinished.descriptor)
                with self._lock:
                    unfinished.move()
                    self._note(record.name, size)
        except OSError as error:
            return _failed("write", error)
        return PageResult(nbytes=size)

    def _begins_in_memory(self, record: Record) -> bool:
        """Return whether a page's header is in the page cache; True if there is no file."""
        file = self._open(record)
        if isinstance(file, PageResult):
            return True
        try:
            return begins_in_memory(file, record)
        finally:
            os.close(file)

    def _read_alone(self, records: Sequence[Record]) -> Iterator[PageResult]:
        """Read on this thread while files are in memory; from the first that is not, use several threads."""
        left = records
        while left:
            ends = self._read_cached(left[:OPEN_AT_ONCE])
            yield from ends
            if len(ends) < len(left[:OPEN_AT_ONCE]):
                yield from side_by_side(self._read_from_disk, left[len(ends) :], READERS)
                return
            left = left[len(ends) :]

    def _read_cached(self, records: Sequence[Record]) -> list[PageResult]:
        """Read leading ``records`` from memory; stop at the first that is not there.

        Opens all files, reads all, then closes all: reading a page evicts the program from the
        core's cache, so anything done between two pages runs slowly.
        """
        opened = [self._open(record) for record in records]
        ends = list[PageResult]()
        try:
            for record, file in zip(records, opened, strict=True):
                end = file if isinstance(file, PageResult) else self._end(file, record, read_cached)
                if end is None:
                    break
                ends.append(end)
        finally:
            for file in opened:
                if isinstance(file, int):
                    os.close(file)
        return ends

    def _read_large(self, record: Record) -> PageResult:
        ends = self._read_cached([record])
        return ends[0] if ends else self._read_from_disk(record)

    def _read_from_disk(self, record: Record) -> PageResult:
        return self._read(record, read_from_disk)

    def _read(self, record: Record, read: Callable[[int, Record], int]) -> PageResult:
        file = self._open(record)
        if isinstance(file, PageResult):
            return file
        try:
            end = self._end(file, record, read)
        finally:
            os.close(file)
        assert end is not None  # noqa: S101 - only `read_cached` gives up
        return end

    def _end(
        self, descriptor: int, record: Record, read: Callable[[int, Record], int | None]
    ) -> PageResult | None:
        """Read one open file; return its outcome, or None if ``read`` gave up."""
        try:
            got = read(descriptor, record)
            if got is None:
                return None
            with self._lock:
                facts = os.fstat(descriptor)
                if facts.st_nlink:
                    self._note(record.name, facts.st_size)
        except OSError as error:
            return _failed("read", error)
        if not facts.st_nlink:  # evicted or replaced while it was read
            self._is_there(record.name)
        return PageResult(nbytes=facts.st_size if got == record.nbytes else got)

    def _open(self, record: Record) -> int | PageResult:
        """Open a page's file; return its descriptor, or the reason why there is none."""
        try:
            return os.open(self._place(record.name), _READ)
        except FileNotFoundError:
            self._is_there(record.name)  # forget it, unless it was stored again
            return PageResult(PageState.MISSING, "no such file")
        except OSError as error:
            return _failed("open", error)

    # -- what is there ------------------------------------------------------------------------

    def _survey(self) -> None:
        """Adopt the files of earlier processes, oldest first, and remove their unfinished ones."""
        found = []
        for place in self.folder.glob(f"?/*{SUFFIX}"):
            with suppress(OSError):  # another process may evict concurrently
                facts = place.stat()
                found.append((facts.st_mtime_ns, place.name.removesuffix(SUFFIX), facts.st_size))
        for _, name, size in sorted(found):
            self._note(name, size)
        for place in self.folder.glob(f"?/*{PARTIAL}"):
            remove_abandoned(place)
        self._make_room(0)

    def _is_there(self, name: str) -> bool:
        """Look for a file on disk, since other processes write and remove files too, and note it."""
        with self._lock:
            try:
                self._note(name, os.stat(self._place(name)).st_size)  # noqa: PTH116 (as above)
            except OSError:
                self._bytes -= self._sizes.pop(name, 0)
                return False
        return True

    # Book and folder change together, under the lock: every known file exists.

    def _note(self, name: str, size: int) -> None:
        self._bytes += size - self._sizes.pop(name, 0)
        self._sizes[name] = size

    def _remove(self, name: str) -> None:
        self._bytes -= self._sizes.pop(name, 0)
        with suppress(OSError):
            self.path(name).unlink()

    def _make_room(self, wanted: int) -> None:
        while self._bytes + wanted > self.max_bytes and self._evict() is not None:
            pass

    def _let_go(self, wanted: int) -> bool:
        """Evict ``wanted`` bytes regardless of the bound; return False if there is nothing to evict."""
        left = wanted
        while left > 0 and (size := self._evict()) is not None:
            left -= size
        return left < wanted

    def _evict(self) -> int | None:
        """Delete the least recently used page; return its bytes, or None if there is no page."""
        with self._lock:
            if not self._sizes:
                return None
            name, size = next(iter(self._sizes.items()))
            self._remove(name)
            self.evicted += 1
            return size


def _failed(verb: str, error: OSError) -> PageResult:
    return PageResult(PageState.FAILED, f"{verb}: {error.strerror}", errno=error.errno or 0)
