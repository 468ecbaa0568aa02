"""Lines that no reader takes: found without reading a file, and left out of a copy of it."""

import mmap
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from hicache_dbg.exporters.encoding import LONGEST_LINE

__all__ = ["long_lines", "without"]


def long_lines(file: Path) -> list[tuple[int, int]]:
    """Return where the lines of ``file`` longer than ``LONGEST_LINE`` begin and end, in bytes.

    Looks at the last line break of every stretch of that length, so most of the file is not read.
    """
    size, found, start = file.stat().st_size, list[tuple[int, int]](), 0
    if size <= LONGEST_LINE:
        return found
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as data:
        while size - start > LONGEST_LINE:
            last = data.rfind(b"\n", start, start + LONGEST_LINE + 1)
            if last < 0:
                last = data.find(b"\n", start + LONGEST_LINE)
                last = size - 1 if last < 0 else last
                found.append((start, last + 1))
            start = last + 1
    return found


def without(lines: Sequence[tuple[int, int]], file: Path, folder: Path) -> Path:
    """Return a copy of ``file`` in ``folder`` that lacks ``lines``, which are in ascending order."""
    number = sum(1 for _ in folder.iterdir())
    copy, start = folder / f"{number}-{file.name}", 0
    with file.open("rb") as source, copy.open("wb") as target:
        for begin, end in lines:
            _copy(source, target, begin - start)
            start = source.seek(end)
        shutil.copyfileobj(source, target)
    return copy


def _copy(source: BinaryIO, target: BinaryIO, size: int) -> None:
    while size and (some := source.read(min(size, 1 << 20))):
        target.write(some)
        size -= len(some)
