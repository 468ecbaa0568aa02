"""Merge files of values into one, such that a kill at any moment counts nothing twice.

The sum appears by one rename, and the merged files are removed after that. Before the rename, a
note lists these files and the inode the sum will have. From the note, the next process can tell
whether the sum already contains them.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from prometheus_client.mmap_dict import MmapedDict

from hicache_dbg.exporters.prometheus_room import FIRST_SIZE, fill

__all__ = ["contained", "finish", "merge"]

# The library gives them no types.
_read: Callable[[str], Iterable[tuple[str, float, float, int]]] = (
    MmapedDict.read_all_values_from_file
)
_open: Callable[[str], Any] = MmapedDict


def merge(paths: list[Path], into: Path) -> None:
    """Add the values of ``paths`` to the sum merged so far, then remove ``paths``.

    A damaged file is left as it is.
    """
    sums: defaultdict[str, float] = defaultdict(float)
    taken = []
    for path in paths:
        try:
            values = list(_read(str(path)))
        except Exception:  # noqa: BLE001, S112 - a damaged file raises whatever its bytes lead to
            continue
        taken.append(path)
        for key, value, _, _ in values:
            sums[key] += value
    if not taken:
        return
    if into.exists():
        for key, value, _, _ in _read(str(into)):
            sums[key] += value
    unfinished = into.with_suffix(".part")
    unfinished.unlink(missing_ok=True)
    fill(
        unfinished, max(FIRST_SIZE, 8 + sum(map(_size, sums)))
    )  # a full disk is an error, not a kill
    file = _open(str(unfinished))
    for key, value in sums.items():
        file.write_value(key, value, 0.0)
    file.close()
    names = [path.name for path in taken]
    said = {"into": into.name, "inode": unfinished.stat().st_ino, "files": names}
    _note(into.parent).write_text(json.dumps(said))
    unfinished.replace(into)
    finish(into.parent)


def contained(folder: Path) -> set[Path]:
    """Return files whose values the sum already contains, left by a merge that was killed."""
    try:
        said = json.loads(_note(folder).read_text())
        inode = (folder / said["into"]).stat().st_ino
    except (OSError, ValueError):  # no note, no sum, or half a note: the rename did not happen
        return set()
    return {folder / name for name in said["files"]} if inode == said["inode"] else set()


def finish(folder: Path) -> None:
    """Remove the files that the sum already contains."""
    for path in contained(folder):
        path.unlink(missing_ok=True)
    _note(folder).unlink(missing_ok=True)


def _size(key: str) -> int:
    """Return the bytes that a value takes in a file: its length, its padded key, two numbers."""
    return 4 + len(key.encode()) + 8 + 16


def _note(folder: Path) -> Path:
    return folder / "hicache_dbg.merging"
