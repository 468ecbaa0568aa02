"""A session that announces what a system of other people's classes is made of."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hicache_dbg.tracer.attach.sglang.one_item import item_finding
from hicache_dbg.tracer.attach.sglang.probe import LayerProbe
from hicache_dbg.tracer.checks.registration import check_mirror
from hicache_dbg.tracer.events import Event, Finding, MirrorInfo, Started
from hicache_dbg.tracer.mirror import MirrorViews
from hicache_dbg.tracer.probe import CopyRecord, Digester
from hicache_dbg.tracer.selfcheck import InternalErrors
from hicache_dbg.tracer.session import Session
from hicache_dbg.tracer.settings import Settings
from hicache_dbg.tracer.sink import Sink

__all__ = ["Inventory", "SglangSession"]


@dataclass(slots=True)
class Inventory:
    """What was found so far: mirrors, classes built and existing, and what is not recognised."""

    mirrors: list[MirrorInfo] = field(default_factory=list)
    built: set[str] = field(default_factory=set)
    unrecognised: list[str] = field(default_factory=list)

    def not_recognised(self, what: str) -> None:
        """Remember ``what`` once."""
        if what not in self.unrecognised:
            self.unrecognised.append(what)


class SglangSession(Session):
    """As the base, with loads by layer and an announcement of its own.

    Only facts about mirrors are kept, never their views: a pool's pinned memory goes when SGLang
    lets it go.
    """

    probe: LayerProbe

    def __init__(
        self,
        settings: Settings,
        sinks: Sequence[Sink],
        digester: Digester,
        *,
        version: str,
        errors: InternalErrors | None = None,
    ) -> None:
        super().__init__(settings, sinks, digester, system="sglang", version=version, errors=errors)
        self.probe = LayerProbe(
            bus=self.bus,
            digester=digester,
            settings=settings,
            errors=self.errors,
            judge=self._judged,
            enforce=self.enforce,
        )

    def _judged(self, record: CopyRecord) -> list[Event]:
        """The judge's events, with what SGLang's kernels really move where two widths disagree."""
        mirror = record.copy.mirror
        return [
            item_finding(mirror, event) if isinstance(event, Finding) else event
            for event in self.judge(record)
        ]

    def findings_of(self, mirror: MirrorViews) -> list[Finding]:
        """What both ends' geometry says, and which device bytes SGLang's kernels move if they differ."""
        if not self.settings.traces(mirror.pool):
            return []
        now = time.time_ns()
        findings = check_mirror(mirror, time_ns=now, rank=self.settings.rank)
        return [item_finding(mirror, finding) for finding in findings]

    def announce(self, inventory: Inventory, host_classes: Iterable[str]) -> None:
        """Say what is attached to what."""
        self.bus.publish(
            Started(
                time_ns=time.time_ns(),
                rank=self.settings.rank,
                system=self._system,
                version=self._version,
                checksum=self.settings.checksum.value,
                mirrors=tuple(m for m in inventory.mirrors if self.settings.traces(m.pool)),
                classes_built=tuple(sorted(inventory.built)),
                classes_unbuilt=tuple(sorted(set(host_classes) - inventory.built)),
                unrecognised=tuple(inventory.unrecognised),
            )
        )

    def found(self, findings: Sequence[Finding]) -> None:
        """Publish what was found at registration."""
        for finding in findings:
            self._found(finding)
            self.bus.publish(finding)
