"""Check that host memory is page-locked as requested, completely, and of the configured size.

A copy from unpinned memory goes through a staging buffer of the driver, or faults. If the engine
believes it to be asynchronous, it may deliver what the memory held earlier. The check reads the
results of ``cudaHostRegister`` and, with CUDA, what the driver says of each chunk.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hicache_dbg.tracer.events import FaultClass, Finding
from hicache_dbg.tracer.words import counted

__all__ = [
    "Pinning",
    "PoolBudget",
    "check_budget",
    "check_pinning",
    "metadata_bytes",
]

CHECK = "pinning"
#: The driver keeps 16 B per registered 4 KiB, in one allocation of less than 2 GiB per call.
DRIVER_BYTES, DRIVER_PAGE, DRIVER_MOST = 16, 4096, (1 << 31) - 1
#: Share of a budget that may be left over or missing because of rounding.
SLACK = 0.01


@dataclass(frozen=True, slots=True)
class Pinning:
    """The outcome of page-locking a host pool.

    Attributes:
        requested: whether it was requested.
        pinned: what the pool says of itself.
        return_code: the last result of ``cudaHostRegister``; 0 is success, negative means no CUDA.
        bytes: bytes of the pool's tensors.
        pinned_bytes: bytes that were registered.
        declared: bytes its pages should take by its own formula; 0 if unknown.
        largest_chunk: bytes of the largest single registration; 0 if unknown.
        open: (offset, bytes) of chunks that the driver does not know as pinned.
    """

    requested: bool
    pinned: bool
    return_code: int
    bytes: int
    pinned_bytes: int
    declared: int = 0
    largest_chunk: int = 0
    open: tuple[tuple[int, int], ...] = ()


Fault = tuple[str, str, str, str]  # words, expected, got, advice

REGISTER = "look at every return code, free what was registered, and fall back in the open"


def metadata_bytes(size: int) -> int:
    """Return the driver's own memory for one registration of ``size`` bytes, in bytes."""
    return DRIVER_BYTES * -(-size // DRIVER_PAGE)


def _ignored(pin: Pinning) -> Fault | None:
    if not pin.pinned or pin.return_code <= 0:
        return None
    return (
        (
            f"cudaHostRegister answered {pin.return_code} for {pin.bytes} B, and the pool calls itself "
            "pinned: copies from it may return stale data"
        ),
        "return code 0",
        f"{pin.return_code}",
        REGISTER,
    )


def _refused(pin: Pinning) -> Fault | None:
    if not pin.requested or pin.pinned or pin.return_code <= 0:
        return None
    return (
        (
            f"cudaHostRegister refused {pin.bytes} B with {pin.return_code}, and the pool is used "
            "unpinned: asynchronous copies on it may return stale data"
        ),
        f"{pin.bytes} B pinned",
        f"return code {pin.return_code}",
        "raise the limit of locked memory (ulimit -l), ask for less, or register in smaller chunks",
    )


def _too_large(pin: Pinning) -> Fault | None:
    need = metadata_bytes(pin.largest_chunk)
    if not pin.requested or need <= DRIVER_MOST:
        return None
    return (
        f"one registration of {pin.largest_chunk} B needs {need} B of the driver's own, of {DRIVER_MOST}",
        f"chunks of less than {DRIVER_MOST // DRIVER_BYTES * DRIVER_PAGE} B",
        f"{pin.largest_chunk} B",
        "register in chunks of some GiB",
    )


def _short(pin: Pinning) -> Fault | None:
    if not pin.pinned or pin.pinned_bytes >= pin.bytes:
        return None
    return (
        f"{pin.pinned_bytes} of {pin.bytes} B are pinned: the last {pin.bytes - pin.pinned_bytes} are not",
        f"{pin.bytes} B pinned",
        f"{pin.pinned_bytes} B",
        "register the memory of every tensor to its last byte",
    )


def _open(pin: Pinning) -> Fault | None:
    if not pin.pinned or not pin.open:
        return None
    offset, size = pin.open[0]
    return (
        f"{counted(len(pin.open), 'chunk')} not known to the driver as pinned; the first: {size} B from byte {offset}",
        "every chunk pinned",
        f"{counted(len(pin.open), 'chunk')} not pinned",
        REGISTER,
    )


def _mis_sized(pin: Pinning) -> Fault | None:
    if not pin.declared or abs(pin.bytes - pin.declared) <= SLACK * pin.declared:
        return None
    longer = pin.bytes > pin.declared
    return (
        (
            f"its tensors hold {pin.bytes} B, and its pages are declared to take {pin.declared}: "
            f"{abs(pin.bytes - pin.declared)} B {'cannot be reached' if longer else 'are not there'}"
        ),
        f"{pin.declared} B",
        f"{pin.bytes} B",
        "size a pool and its index range by one number, read off the device's tensors",
    )


#: In order: the first that applies is reported.
_CHECKS: tuple[Callable[[Pinning], Fault | None], ...] = (
    _ignored,
    _refused,
    _too_large,
    _short,
    _open,
    _mis_sized,
)


def check_pinning(
    pool: str, pin: Pinning | None, *, time_ns: int, rank: int = 0, was: Pinning | None = None
) -> list[Finding]:
    """Return what is wrong with a host pool's memory; ``was`` is its earlier state."""
    if pin is None:
        return []
    fault = next((fault for check in _CHECKS if (fault := check(pin)) is not None), None)
    if fault is None and was is not None and was.pinned and not pin.pinned:
        fault = (
            "its memory was pinned when the pool was registered, and is not any more while copies use it",
            f"{was.pinned_bytes} B pinned",
            f"{pin.pinned_bytes} B",
            "unregister memory only after the last copy on it has been acknowledged",
        )
    return [] if fault is None else [_finding(pool, fault, time_ns=time_ns, rank=rank)]


@dataclass(frozen=True, slots=True)
class PoolBudget:
    """The configured bytes of a host tier, and the terms they were computed from."""

    given: int
    terms: Mapping[str, float]


def check_budget(
    budget: PoolBudget, real: Mapping[str, int], *, time_ns: int, rank: int = 0
) -> list[Finding]:
    """Check that the pools' tensors hold as many bytes as were configured."""
    total = sum(real.values())
    if abs(total - budget.given) <= SLACK * budget.given:
        return []
    terms = ", ".join(f"{name}={value:g}" for name, value in budget.terms.items())
    parts = ", ".join(f"{name} {size} B" for name, size in real.items())
    return [
        _finding(
            "+".join(real),
            (
                f"the pools hold {total} B ({parts}), and {budget.given} B were set aside"
                + (f" ({terms})" if terms else ""),
                f"{budget.given} B",
                f"{total} B",
                "take bytes a page off the tensors of all pools, scales and sidecars included",
            ),
            time_ns=time_ns,
            rank=rank,
        )
    ]


def _finding(pool: str, fault: Fault, *, time_ns: int, rank: int) -> Finding:
    words, expected, got, advice = fault
    return Finding(
        time_ns=time_ns,
        rank=rank,
        cls=FaultClass.PINNING,
        pool=pool,
        message=f"{pool}: {words}",
        expected=expected,
        got=got,
        advice=advice,
        check=CHECK,
    )
