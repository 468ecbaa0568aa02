"""The gate: every ``HICACHE_DBG*`` variable, read once into one frozen object.

Code below this module never reads the environment. An invalid value raises :class:`SettingsError`,
which names the variable, the value and what is allowed.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Self

from hicache_dbg.tracer.parsing import Rejected, digits, globs, member, number, path, whole, words

__all__ = [
    "VARIABLES",
    "Action",
    "Checksum",
    "Gate",
    "Lines",
    "Listen",
    "Native",
    "Settings",
    "SettingsError",
]

SINK_NAMES = ("journald", "prometheus", "otel", "recording", "stderr")
#: Default bind address: scrapers usually run on other machines.
EVERYWHERE = "0.0.0.0"  # noqa: S104
JOURNALD_SOCKET = Path("/run/systemd/journal/socket")


class SettingsError(ValueError):
    """A variable holds a value that is not allowed."""

    def __init__(self, variable: str, value: str, allowed: str) -> None:
        super().__init__(f"{variable}={value!r} is not allowed: expected {allowed}")
        self.variable = variable
        self.value = value
        self.allowed = allowed


class Gate(StrEnum):
    """Whether the instrument is installed."""

    OFF = "off"
    ON = "on"
    ARMED = "armed"  #: installed, switched on later without a restart


class Checksum(StrEnum):
    """How much of what moves is digested.

    Each level includes the previous ones, except ``sample``.
    """

    OFF = "off"
    SAMPLE = "sample"  #: as ``loads``, for a share of the pages
    LOADS = "loads"  #: witness at backup, compare at load
    ENDS = "ends"  #: also the host end of each backup
    THREE = "three"  #: also the source a second time, after the copy


class Action(StrEnum):
    """What a finding does to the host: nothing, or raise an exception."""

    LOG = "log"
    RAISE = "raise"


class Lines(StrEnum):
    """Which operations get a line of text."""

    PATHS = "paths"  #: the first time a path is taken, every finding, one summary a minute
    ALL = "all"  #: one line per operation


class Native(StrEnum):
    """Where SGLang's usual operations run in compiled code of ours."""

    OFF = "off"  #: nowhere: nothing is compiled
    AUTO = "auto"  #: where there is a CUDA driver
    ON = "on"  #: everywhere


GATE_WORDS = {
    **dict.fromkeys(("1", "true", "on", "yes"), Gate.ON),
    **dict.fromkeys(("0", "false", "off", "no"), Gate.OFF),
    "armed": Gate.ARMED,
}


def _gate(text: str) -> Gate:
    try:
        return GATE_WORDS[text.lower()]
    except KeyError:
        raise Rejected("1/true/on/yes, 0/false/off/no or armed") from None


NATIVE_WORDS = {
    **dict.fromkeys(("1", "true", "on", "yes"), Native.ON),
    **dict.fromkeys(("0", "false", "off", "no"), Native.OFF),
    "auto": Native.AUTO,
}


def _native(text: str) -> Native:
    try:
        return NATIVE_WORDS[text.lower()]
    except KeyError:
        raise Rejected("auto, 1/true/on/yes or 0/false/off/no") from None


class Listen(int):
    """A TCP port together with the local address to bind; by default all addresses."""

    address: str

    def __new__(cls, port: int, address: str = EVERYWHERE) -> Self:
        """Create a port number that carries its address."""
        listen = super().__new__(cls, port)
        listen.address = address
        return listen


def _listen(text: str) -> Listen:
    from ipaddress import ip_address  # few name an address

    address, _, port = text.rpartition(":")
    what = "a port from 0 to 65535, or ADDRESS:PORT such as 127.0.0.1:9464"
    bound = whole(0, 65535, what)(port)
    if not address:
        return Listen(bound)
    try:
        return Listen(bound, str(ip_address(address.strip("[]"))))
    except ValueError:
        raise Rejected(what) from None


def _ops(text: str) -> tuple[str, ...]:
    from hicache_dbg.tracer.events import Op  # an armed process imports as little as possible

    found = globs(text)
    if not all(any(fnmatchcase(op, glob) for op in Op) for glob in found):
        raise Rejected("globs each of which names one of " + ", ".join(Op))
    return found


def _sinks(text: str) -> tuple[str, ...]:
    names = words(text)
    if not names or any(name not in SINK_NAMES for name in names):
        raise Rejected("any of " + ",".join(SINK_NAMES))
    return tuple(dict.fromkeys(names))  # a sink named twice would count everything twice


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable of the gate: its name, the field it fills, its parser and its meaning."""

    name: str
    field: str
    parse: Callable[[str], Any]
    meaning: str


VARIABLES: tuple[Variable, ...] = (
    Variable("HICACHE_DBG", "gate", _gate, "the gate: on, off, or armed"),
    Variable("HICACHE_DBG_CHECKSUM", "checksum", member(Checksum), "what is digested"),
    Variable(
        "HICACHE_DBG_SAMPLE",
        "sample",
        number(0, 1, "a share from 0 to 1"),
        "the share of pages under checksum=sample",
    ),
    Variable("HICACHE_DBG_SINKS", "sinks", _sinks, "where events go"),
    Variable("HICACHE_DBG_POOLS", "pools", globs, "pools that are traced, as globs"),
    Variable("HICACHE_DBG_OPS", "ops", _ops, "operations that are traced, as globs"),
    Variable("HICACHE_DBG_ACTION", "action", member(Action), "what a finding does"),
    Variable("HICACHE_DBG_LINES", "lines", member(Lines), "which operations get a line"),
    Variable(
        "HICACHE_DBG_SCRUB",
        "scrub_mb_s",
        number(0, 1e6, "MB/s from 0 to 1000000"),
        "rate at which resting host pages are read again (MB/s)",
    ),
    Variable(
        "HICACHE_DBG_HOST_GB",
        "host_gb",
        number(0, 1e6, "GB from 0 to 1000000"),
        "what this process's host tier was given, in GB of 10^9 bytes; its pools should hold no more",
    ),
    Variable("HICACHE_DBG_DIR", "directory", path, "where recordings go"),
    Variable(
        "HICACHE_DBG_DIR_GB",
        "directory_gb",
        number(0, 1e6, "GB from 0 to 1000000"),
        "what the recordings there may take together, in GB of 10^9 bytes: ended runs without a finding "
        "go, oldest first; 0 = no bound",
    ),
    Variable(
        "HICACHE_DBG_QUEUE",
        "queue",
        whole(1, 1 << 24, "a whole number from 1 to 16777216"),
        "events held at most",
    ),
    Variable(
        "HICACHE_DBG_PROMETHEUS_PORT",
        "prometheus_port",
        _listen,
        "port of rank 0, one a rank from it up, at an address or at all; 0 = none",
    ),
    Variable("HICACHE_DBG_JOURNALD_SOCKET", "journald_socket", path, "journald's socket"),
    Variable(
        "HICACHE_DBG_NATIVE",
        "native",
        _native,
        "whether SGLang's usual operations run in code compiled here: auto = with a CUDA driver",
    ),
)


def default_directory(environ: Mapping[str, str]) -> Path:
    """Return where recordings go by default: a folder in the user's state directory."""
    if state := environ.get("XDG_STATE_HOME"):
        return Path(state) / "hicache-dbg"
    try:
        return Path.home() / ".local" / "state" / "hicache-dbg"
    except RuntimeError:  # a container's user may have no home
        import tempfile  # it imports a lot, and hardly anybody needs it

        return Path(tempfile.gettempdir()) / f"hicache-dbg-{os.getuid()}"


@dataclass(frozen=True, slots=True)
class Settings:
    """The values of the gate's variables; the defaults are those of an unset environment.

    ``sinks`` and ``lines`` are None if the variable is unset: their defaults depend on which sinks
    answer, so they are chosen when the sinks are built.
    """

    gate: Gate = Gate.OFF
    checksum: Checksum = Checksum.LOADS
    sample: float = 0.01
    sinks: tuple[str, ...] | None = None
    pools: tuple[str, ...] = ("*",)
    ops: tuple[str, ...] = ("*",)
    action: Action = Action.LOG
    lines: Lines | None = None
    scrub_mb_s: float = 0.0
    host_gb: float = 0.0
    directory: Path = Path("hicache-dbg")
    directory_gb: float = 64.0
    queue: int = 65536
    prometheus_port: Listen = Listen(0)  # noqa: RUF009 - as immutable as the number that it is
    journald_socket: Path = JOURNALD_SOCKET
    native: Native = Native.AUTO
    rank: int = 0
    ranks: int = 1

    def traces(self, pool: str) -> bool:
        """Return whether ``HICACHE_DBG_POOLS`` matches ``pool``."""
        return any(fnmatchcase(pool, glob) for glob in self.pools)

    def traces_op(self, op: str) -> bool:
        """Return whether ``HICACHE_DBG_OPS`` matches ``op``."""
        return any(fnmatchcase(op, glob) for glob in self.ops)

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> "Settings":
        """Read every variable of the gate.

        Raises:
            SettingsError: a variable holds a value that is not allowed, or an unknown
                ``HICACHE_DBG_`` variable is set (a typo would otherwise pass silently).
        """
        environ = os.environ if environ is None else environ
        known = {variable.name for variable in VARIABLES}
        for name, value in environ.items():
            if name.startswith("HICACHE_DBG_") and name not in known and name not in RESERVED:
                raise SettingsError(name, value, f"one of the variables {', '.join(sorted(known))}")
        values: dict[str, Any] = {
            "directory": default_directory(environ),
        }
        values |= {"rank": _count(environ, "RANK", 0), "ranks": _count(environ, "WORLD_SIZE", 1)}
        for variable in VARIABLES:
            text = environ.get(variable.name)
            if text is None or not text.strip():  # empty means unset, as for OTEL_*
                continue
            try:
                values[variable.field] = variable.parse(text.strip())
            except Rejected as rejected:
                raise SettingsError(variable.name, text, str(rejected)) from None
        return cls(**values)


#: Read by our own test suite, not by the gate.
RESERVED = frozenset({"HICACHE_DBG_TEST_REQUIRE_SERVICES"})


def _count(environ: Mapping[str, str], name: str, default: int) -> int:
    """Return a number set by torchrun or a similar launcher; ``default`` without one."""
    number = digits(environ.get(name, ""))
    return default if number is None else number
