"""The rows of ``hicache-dbg doctor``: a part of the environment, and what needs it."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from hicache_dbg.tracer.settings import Settings

__all__ = ["Needs", "Part", "State"]


class State(StrEnum):
    """The state of a part of the environment."""

    OK = "ok"
    ABSENT = "absent"  #: not there, but not required either
    MISSING = "missing"  #: required, and does not work


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the environment: its state, what was found, and what to do."""

    name: str
    state: State
    detail: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Needs:
    """What the environment asks for; default settings if its own cannot be parsed."""

    settings: Settings
    environ: Mapping[str, str]

    def state_without(self, sink: str) -> State:
        """Return the state of a broken part that only ``sink`` needs."""
        return State.MISSING if sink in (self.settings.sinks or ()) else State.ABSENT
