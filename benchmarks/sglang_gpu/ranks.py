# mypy: disable-error-code="import-not-found,attr-defined"
# pyright: reportMissingImports=false
"""Layers that a rank receives by broadcast, digested on the GPU: two ranks on one GPU, over gloo.

``python ranks.py RANK STORE FOLDER`` is one rank; :func:`ranks` starts both and joins their statements.
The scenes are those of the tests (tests/sglang/rank_scenes.py).
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[2] / "tests" / "sglang"))

import driving
import msgspec
import prelude  # noqa: F401 - before anything of SGLang
import setups
from rank_scenes import LAYERS, PAGE, SCENES, Stage, has, meet
from tracing import Row, Traced

from hicache_dbg.tracer.checks.join import join
from hicache_dbg.tracer.events import Copied, Event, Finding, Stated, Topic

__all__ = ["ranks"]

LIMIT_S = 60


def ranks(only: str = "") -> Iterator[Row]:
    """Yield one row for each scene."""
    names = [
        name
        for name in SCENES
        if has(name, setups.NUMBER) and any(part in name for part in only.split(","))
    ]
    if not names:
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        last_lines = _play(folder, names)
        for name in names:
            files = [folder / f"{name}.{rank}" for rank in range(2)]
            if all(file.is_file() for file in files):
                yield _row(
                    name, [msgspec.json.decode(f.read_bytes(), type=list[Event]) for f in files]
                )
            else:
                yield Row("ranks", name, f"not run: {last_lines}"[:300], "stated alike", kept=False)


def _play(folder: Path, names: list[str]) -> list[str]:
    """Run the scenes on two ranks, which leave their events in ``folder``; return their last lines."""
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, f"{rank}", f"{folder / 'store'}", f"{folder}", *names],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=LIMIT_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [line for output in outputs for line in output.strip().splitlines()[-1:]]


def _row(name: str, events: list[list[Event]]) -> Row:
    """Return the row of a scene from the events of each rank."""
    first, second = (_stated(rank) for rank in events)
    alone = [event for rank in events for event in rank if isinstance(event, Finding)]
    joined, stated = join(events), sum(map(len, second.values()))
    verified = sum(event.verified for rank in events for event in rank if isinstance(event, Copied))
    found = [(f.cls.value, f.component, f.layer, f.pages) for f in joined]
    clean = bool(stated) and first.keys() == second.keys() and not alone
    if name.endswith("damaged"):
        kept = clean and found == [("rank_divergence", "latent", 1, (0,))]
        goal = "layer 1 of page 0 found"
    else:
        kept, goal = clean and first == second and not found and verified > 0, "stated alike"
    result = f"{stated} tiles stated by each rank, {verified} verified, {len(alone)} findings alone, joined {found}"
    return Row("ranks", name, result, goal, kept)


def _stated(events: list[Event]) -> dict[tuple[object, ...], Sequence[str]]:
    """Return the digests that a rank stated, by load, component and page."""
    return {
        (event.request, event.component, event.page): event.values
        for event in events
        if isinstance(event, Stated) and event.topic is Topic.TILES
    }


# -- one rank -------------------------------------------------------------------------------------


def _controller(pool: Any, device: Any) -> Any:
    setup = setups.Setup(pool, PAGE, device.kv_buffer, PAGE, device, LAYERS)
    return driving.controller(setup, "kernel")


def _leave(pool: Any, device: Any) -> None:
    setups.Setup(pool, PAGE, device.kv_buffer, PAGE, device, LAYERS).destroy()


STAGE = Stage(
    home=setups,
    device="cuda",
    pages=12,
    widths=(512, 64),
    controller=_controller,
    operation=driving.operation,
    leave=_leave,
)


def main(rank: int, store: str, folder: Path, names: list[str]) -> None:
    """Play the scenes with the other rank."""
    meet(rank, store, timedelta(seconds=LIMIT_S))
    for name in names:
        traced = Traced(rank=rank, ranks=2)
        SCENES[name](STAGE, rank)
        (folder / f"{name}.{rank}").write_bytes(msgspec.json.encode(traced.close()))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4:])
