"""Find the files that operators install, and copy them out of the package."""

from importlib.resources import files
from pathlib import Path

__all__ = ["FOLDERS", "export", "shipped"]

#: The folders that are exported.
FOLDERS = ("grafana", "prometheus", "provisioning", "compose", "systemd")


def shipped() -> Path:
    """Return the folder that holds these files in this installation."""
    return Path(str(files("hicache_dbg.dashboards")))


def export(target: Path, *, replace: bool = False) -> list[Path]:
    """Copy every file below ``target`` and return the paths of the copies.

    Raises:
        FileExistsError: a file exists with other contents and ``replace`` is not set; nothing was
            copied then.
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
        raise FileExistsError(", ".join(map(str, changed)))
    for path, data in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return list(wanted)
