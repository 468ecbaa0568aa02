"""What would be attached to the SGLang of this environment: for ``hicache-dbg doctor --sglang``."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module, metadata
from importlib.util import find_spec

from hicache_dbg.tracer.attach.sglang import versions
from hicache_dbg.tracer.attach.sglang.classes import ANCHOR, BASE, host_pool_classes
from hicache_dbg.tracer.attach.sglang.followed import FOLLOWED
from hicache_dbg.tracer.attach.sglang.kinds import KINDS, known_classes, methods_of

__all__ = ["Row", "Survey", "survey"]

#: Prefix of nearly every module, omitted from the output.
_PREFIX = "sglang.srt."
_NOT_HERE = "its module cannot be imported here"


@dataclass(frozen=True, slots=True)
class Row:
    """One class or operation: ``state`` is ``attached``, ``events only`` (no view) or ``missing``."""

    name: str
    state: str
    detail: str


@dataclass(frozen=True, slots=True)
class Survey:
    """The installed version, whether the tables were written for it, and what was found.

    ``unimportable`` gives the reason for each of SGLang's pool modules that cannot be imported
    here, or for ``sglang`` itself.
    """

    version: str
    supported: bool
    rows: tuple[Row, ...]
    unimportable: Mapping[str, str]

    @property
    def has_pools(self) -> bool:
        """Whether there is a host pool class to attach to: without one nothing is traced."""
        return any(
            row.state == "events only" or (row.state == "attached" and row.name in KINDS)
            for row in self.rows
        )


def survey() -> Survey:
    """Import SGLang's pool modules and inspect them, without wrapping anything.

    Raises:
        ModuleNotFoundError: SGLang is not installed here.
    """
    version, why = _version()
    if why:
        names = [
            *sorted(known_classes(version)),
            *_operations(version),
            *(one for _, one, _ in FOLLOWED),
        ]
        rows = [Row(str(name), "missing", _NOT_HERE) for name in names]
        return Survey(version, versions.supported(version), tuple(rows), {"sglang": why})
    failed = dict(_import_all())
    classes = {cls.__name__: cls for cls in host_pool_classes()}
    rows = [_class_row(name, classes, failed) for name in sorted(known_classes(version))]
    unknown = sorted(set(classes) - set(KINDS) - {BASE, ANCHOR})
    rows += [
        Row(name, "events only", "no view of this class: no tile is compared") for name in unknown
    ]
    rows += [_operation_row(op, failed) for op in _operations(version)]
    rows += [_followed_row(*methods, failed) for methods in FOLLOWED]
    return Survey(version, versions.supported(version), tuple(rows), failed)


def _version() -> tuple[str, str]:
    """Return the installed version, and why ``sglang`` itself cannot be imported, if so.

    It is tried once: a second attempt fails for the half that the first one left behind.
    """
    if find_spec("sglang") is None:
        raise ModuleNotFoundError("No module named 'sglang'", name="sglang")
    try:
        return str(import_module("sglang.version").__version__), ""
    except Exception as error:  # noqa: BLE001 - SGLang imports what its platform has
        try:
            return metadata.version("sglang"), _reason(error)
        except metadata.PackageNotFoundError:
            return "unknown", _reason(error)


def _operations(version: str) -> list[versions.Operation]:
    return [one for one in versions.OPERATIONS if version in one.versions]


def _followed_row(
    module: str, name: str, methods: tuple[str, ...], failed: Mapping[str, str]
) -> Row:
    try:
        owner = getattr(import_module(module), name)
    except Exception as error:  # noqa: BLE001 - SGLang imports what its platform has
        return Row(name, "missing", _once(_reason(error), failed))
    missing = [method for method in methods if not hasattr(owner, method)]
    if missing:
        return Row(name, "missing", f"without {', '.join(missing)}")
    return Row(name, "attached", f"{_short(module)}: {', '.join(methods)}")


def _import_all() -> Iterator[tuple[str, str]]:
    """Import every module that may define pools; yield those that exist but fail, and why."""
    for name in versions.POOL_MODULES:
        try:
            import_module(name)
        except Exception as error:  # noqa: BLE001 - SGLang imports what its platform has
            absent = isinstance(error, ModuleNotFoundError) and name.startswith(error.name or name)
            if not absent:
                yield _short(name), _reason(error)


def _class_row(name: str, classes: dict[str, type], failed: dict[str, str]) -> Row:
    cls = classes.get(name)
    if cls is None:
        why = _NOT_HERE if failed else "not defined by this version"
        return Row(name, "missing", why)
    missing = [method for method in methods_of(name) if not hasattr(cls, method)]
    if missing:
        return Row(name, "attached", f"without {', '.join(missing)}, which this version lacks")
    return Row(name, "attached", f"{_short(cls.__module__)}, both ends")


def _operation_row(operation: versions.Operation, failed: Mapping[str, str]) -> Row:
    try:
        owner = getattr(import_module(operation.module), operation.cls)
    except Exception as error:  # noqa: BLE001 - as above
        return Row(str(operation), "missing", _once(_reason(error), failed))
    found = hasattr(owner, operation.method)
    return Row(str(operation), "attached" if found else "missing", _short(operation.module))


def _reason(error: Exception) -> str:
    """Return the error's type and the first line of its text, marked if it is not all."""
    first, *more = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {first}{' ...' if more else ''}"


def _once(reason: str, failed: Mapping[str, str]) -> str:
    """Return ``reason`` unless it is told with the pool modules already."""
    return _NOT_HERE if reason in failed.values() else reason


def _short(module: str) -> str:
    return module.removeprefix(_PREFIX)
