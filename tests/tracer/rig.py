"""Two tiers in real memory under probe and judge, with engines' copies by hand."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from hicache_dbg.tracer.digest.tiles import TileDigester
from hicache_dbg.tracer.events import Copied, Finding, Op
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.mirror import Copy, MirrorViews
from hicache_dbg.tracer.probe import Digester
from hicache_dbg.tracer.session import Session
from hicache_dbg.tracer.settings import Checksum, Settings
from hicache_dbg.tracer.view import Run, View

__all__ = ["LAYERS", "PAGE", "PAGES", "SLOTS", "WIDTH", "Rig", "outcomes", "view"]

LAYERS, PAGES, SLOTS, WIDTH = 3, 8, 4, 16
PAGE = SLOTS * WIDTH


def view(memory: np.ndarray, tier: str, width: int = WIDTH) -> View:
    """A view of uint8 [layers, pages, slots * width]."""
    return View(
        pool="pool",
        component="part",
        tier=tier,
        layout="layer_first",
        dtype="uint8",
        itemsize=1,
        bases=tuple(memory[layer].ctypes.data for layer in range(LAYERS)),
        page_stride=memory.strides[1],
        page_span=SLOTS * width,
        pages=PAGES,
        slots_per_page=SLOTS,
        runs=(Run(0, width, width),),
        owner=memory,
    )


@dataclass
class Rig:
    """Two tiers in real memory under a tracer at some checksum level."""

    checksum: Checksum
    host_width: int = WIDTH
    digester: Digester = field(default_factory=TileDigester)
    sample: float = 1.0
    sink: MemorySink = field(default_factory=MemorySink)

    def __post_init__(self) -> None:
        generator = np.random.default_rng(7)
        self.device = generator.integers(0, 256, (LAYERS, PAGES, PAGE), np.uint8)
        self.host = np.full((LAYERS, PAGES, SLOTS * self.host_width), 0xA5, np.uint8)
        self.generations = np.ones(PAGES, np.int64)
        self.session = Session(
            Settings(checksum=self.checksum, sample=self.sample),
            [self.sink],
            self.digester,
            system="test",
            version="0",
        )
        #: Whether the device is said to follow copies by itself.
        self.on_device = False
        self.mirror = MirrorViews(
            pool="pool",
            device={"part": view(self.device, "device")},
            host={"part": view(self.host, "host", self.host_width)},
            device_cls="D",
            host_cls="H",
            index_unit="token",
            slot_page=SLOTS,
            tokens_per_page=SLOTS,
            page_indexed=True,
            pinned=None,
            generation=lambda pages: self.generations[pages],
        )

    def copy(self, op: Op, host: list[int], device: list[int], **more: object) -> Copy:
        """The description of a copy of whole pages."""
        pages = np.array(host, np.int64)
        return Copy(
            **{  # type: ignore[arg-type]
                "mirror": self.mirror,
                "op": op,
                "host_pages": pages,
                "device_pages": np.array(device, np.int64),
                "generations": self.generations[pages].copy(),
                "h": len(host) * SLOTS,
                "d": len(device) * SLOTS,
                "token_granular": False,
                "io_backend": "kernel",
                "layers": tuple(range(LAYERS)),
                "model_layers": tuple(range(10, 10 + LAYERS)),
                **more,
            }
        )

    def backup(
        self, host: list[int], device: list[int], during: Callable[[], None] | None = None
    ) -> None:
        """A backup as engines do it: the host's page bytes from the start of each page."""

        def call() -> None:
            if during:
                during()
            width = min(PAGE, self.host.shape[2])
            self.host[:, host, :width] = self.device[:, device, :width]

        self.session.probe.observe(
            lambda: [self.copy(Op.BACKUP, host, device)], call, on_device=self.on_device
        )

    def load(self, host: list[int], device: list[int], *, deliver: bool = True) -> None:
        """A load, or one that says it was done and was not."""

        def call() -> None:
            width = min(PAGE, self.host.shape[2])
            if deliver:
                self.device[:, device, :width] = self.host[:, host, :width]

        self.session.probe.observe(
            lambda: [self.copy(Op.LOAD, host, device)], call, on_device=self.on_device
        )

    def finish(self) -> tuple[list[Copied], list[Finding]]:
        """Close and give the copies' and the findings' events."""
        self.session.close()
        return self.sink.of(Copied), self.sink.of(Finding)


def outcomes(event: Copied) -> tuple[int, int, int, dict[str, int]]:
    """Tiles by outcome."""
    return event.verified, event.witnessed, event.mismatched, event.skipped
