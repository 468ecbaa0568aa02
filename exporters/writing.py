"""Why a file cannot be written and what to do about it, in the same words everywhere."""

import errno
from pathlib import Path

__all__ = ["why_not"]


def why_not(path: Path, error: OSError) -> str:
    """Return why ``path`` cannot be written, with advice, for the end of a sentence."""
    folder = path.parent
    there = folder.is_dir()
    advice = {
        errno.ENOENT: f"nothing can be made in {folder}: name another folder"
        if there
        else f"the folder {folder} does not exist: create it, or name another one",
        errno.ENOTDIR: f"{path if there else folder} is not a folder: name one",
        errno.EISDIR: f"{path} is a folder: name a file in it",
        errno.EACCES: f"the folder {folder} is not writable: change its mode, or name another one",
        errno.EROFS: f"the folder {folder} is on a read-only file system: name another one",
        errno.EEXIST: "it exists: name another one",
        errno.ENOSPC: f"no space is left in {folder}: make room, or name another one",
    }
    return advice.get(error.errno or 0, error.strerror or str(error))
