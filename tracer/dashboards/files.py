"""Find the files that operators install, and copy them out of the package."""

import errno
import os
from importlib.resources import files
from pathlib import Path

__all__ = ["FOLDERS", "ChangedError", "export", "shipped"]

#: The folders that are exported.
FOLDERS = ("grafana", "prometheus", "provisioning", "compose", "systemd")


class ChangedError(Exception):
    """Files were changed since they were written; the message names them."""


def shipped() -> Path:
    """Return the folder that holds these files in this installation."""
    return Path(str(files("hicache_dbg.dashboards")))


def export(target: Path, *, replace: bool = False) -> list[Path]:
    """Copy every file below ``target`` and return the paths of the copies.

    Raises:
        ChangedError: a file exists with other contents and ``replace`` is not set; nothing was
            copied then.
        OSError: a file cannot be written.
    """
    source = shipped()
    wanted = {
        target / path.relative_to(source): path.read_bytes()
        for folder in FOLDERS
        for path in sorted((source / folder).rglob("*"))
        if path.is_file()
    }
    changed = [path for path, data in wanted.items() if path.exists() and path.read_bytes() != data]
    if changed and not replace:
        raise ChangedError(", ".join(map(str, changed)))
    for path, data in wanted.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:
            raise NotADirectoryError(
                errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path.parent)
            ) from error
        path.write_bytes(data)
    return list(wanted)
