"""Format numbers as a panel shows them: with a unit, a word in place of a value, and a colour."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Style", "style_of"]

#: Grafana's named colours, as they appear on a dark page.
COLORS = {
    "green": "#56a64b",
    "red": "#e02f44",
    "yellow": "#e0b400",
    "orange": "#ff780a",
    "blue": "#3274d9",
}
_SUFFIX = {"ops": "/s", "binBps": "B/s", "bytes": "B", "s": "s", "short": ""}
_BINARY = (("Ti", 2**40), ("Gi", 2**30), ("Mi", 2**20), ("ki", 2**10))
_LARGE = (("G", 1e9), ("M", 1e6), ("k", 1e3))
_SMALL = (("", 1.0), ("m", 1e-3), ("µ", 1e-6), ("n", 1e-9))


@dataclass(frozen=True, slots=True)
class Style:
    """How a panel, or one query of it, shows numbers."""

    unit: str = "short"
    decimals: int | None = None
    words: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Text and colour shown in place of a number."""
    steps: tuple[tuple[float, str], ...] = ()

    def text(self, value: float) -> str:
        """Return the number as text."""
        word = self.words.get(f"{value:g}")
        if word is not None:
            return word[0]
        if math.isnan(value):
            return "NaN"
        if self.unit == "percentunit":
            return f"{value * 100:.{self.decimals or 1}f} %"
        scale = (
            _BINARY if self.unit in {"bytes", "binBps"} else _SMALL if self.unit == "s" else _LARGE
        )
        for prefix, size in scale:
            if abs(value) >= size:
                return f"{value / size:.3g} {prefix}{_SUFFIX.get(self.unit, '')}".rstrip()
        return f"{value:.{self._decimals(value)}f} {_SUFFIX.get(self.unit, '')}".rstrip()

    def color(self, value: float, otherwise: str = "#34363c") -> str:
        """Return the background colour of the number."""
        word = self.words.get(f"{value:g}")
        if word is not None and word[1]:
            return COLORS.get(word[1], word[1])
        reached = [color for least, color in self.steps if value >= least]
        return COLORS.get(reached[-1], reached[-1]) if reached else otherwise

    def _decimals(self, value: float) -> int:
        return self.decimals if self.decimals is not None else 0 if value == int(value) else 2


def style_of(settings: Mapping[str, Any]) -> Style:
    """Return the style that a panel's field settings describe."""
    words = {
        value: (str(result.get("text", "")), str(result.get("color") or ""))
        for mapping in settings.get("mappings") or []
        if mapping.get("type") == "value"
        for value, result in mapping["options"].items()
    }
    steps = (settings.get("thresholds") or {}).get("steps") or []
    return Style(
        unit=settings.get("unit", "short"),
        decimals=settings.get("decimals"),
        words=words,
        steps=tuple(
            (-math.inf if step.get("value") is None else float(step["value"]), step["color"])
            for step in steps
        ),
    )
