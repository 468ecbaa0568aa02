"""The host mirror was sized by the formula for another dtype."""

from collections.abc import Callable

from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.diagnose.hypothesis import Hypothesis, Verdict
from hicache_dbg.tracer.events import ComponentInfo, FaultClass, MirrorInfo
from hicache_dbg.tracer.words import counted, every

#: Bytes of a slot with ``n`` elements, for each storage format of index and latent caches.
FORMULAS: dict[str, Callable[[int], int]] = {
    "fp8 with one fp32 scale per 128": lambda n: n + n // 128 * 4,
    "fp8": lambda n: n,
    "fp4 with one fp32 scale per 128": lambda n: n // 2 + n // 128 * 4,
    "bf16": lambda n: 2 * n,
    "fp32": lambda n: 4 * n,
}


def _formula(device: ComponentInfo, host: ComponentInfo) -> str | None:
    """Return the formula that yields the host's bytes from the device's element count, or None."""
    for itemsize in (1, 2, 4):
        if device.slot_bytes % itemsize:
            continue
        for name, formula in FORMULAS.items():
            if formula(device.slot_bytes // itemsize) == host.slot_bytes:
                return name
    return None


def disagreeing(mirror: MirrorInfo) -> list[tuple[ComponentInfo, ComponentInfo]]:
    """Return components (device, host) that differ in slot bytes, or whose host page is longer."""
    host = {component.name: component for component in mirror.host.components}
    return [
        (component, host[component.name])
        for component in mirror.device.components
        if component.name in host
        and (
            component.slot_bytes != host[component.name].slot_bytes
            or component.page_bytes < host[component.name].page_bytes
        )
    ]


def _judge(evidence: Evidence) -> tuple[Verdict, str]:
    if not evidence.mirrors:
        found = evidence.of_class(FaultClass.ROW_WIDTH)
        if found:
            return Verdict.CONFIRMED, found[0].message
        return Verdict.UNDECIDED, "no mirror's geometry was recorded"
    for mirror in evidence.mirrors:
        for device, host in disagreeing(mirror):
            if device.slot_bytes == host.slot_bytes:  # differs only in padding: no dtype does that
                continue
            formula = _formula(device, host)
            mismatched = sum(
                tiles.mismatched
                for (pool, _), tiles in evidence.by_pool.items()
                if pool == mirror.pool
            )
            harm = f"; {counted(mismatched, 'tile')} of this pool mismatched" if mismatched else ""
            return Verdict.CONFIRMED, (
                f"{mirror.pool}: the device stores {device.slot_bytes} B a slot ({device.dtype}), "
                f"{mirror.host.cls} was sized for {host.slot_bytes} B"
                + (f", the formula of {formula}" if formula else "")
                + harm
            )
    return Verdict.FALSIFIED, (
        f"both ends of {every(len(evidence.mirrors), 'mirror')} agree in bytes a slot, read off the tensors"
    )


HYPOTHESIS = Hypothesis(
    name="host_sized_for_another_dtype",
    question="Is the host mirror sized for another dtype than the device stores?",
    falsified_by="both ends of every mirror agree in bytes a slot",
    confirmed_by="a mirror whose ends differ",
    words="the host mirror is sized for another dtype than the device stores",
    judge=_judge,
    rank=0,
    cause=FaultClass.ROW_WIDTH,
    advice="size the host pool from the device tensor's dtype and shape, in the class that is in use",
    decide_by="HICACHE_DBG=1 from the start of the process, so that registration is seen",
)
