"""``HICACHE_DBG=1 python script.py``: attach when an instrumented system is imported, not before.

Installing costs a dictionary entry: nothing of ours, of torch or of an exporter is imported until
the host itself imports a module that holds pools.
"""

import atexit
import sys
from collections.abc import Callable
from multiprocessing import util
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import wrapt

from hicache_dbg.tracer.saying import say

if TYPE_CHECKING:
    from hicache_dbg.tracer.runtime import Runtime
    from hicache_dbg.tracer.switch.messages import Ask, Reply

__all__ = ["current", "install", "suppress"]

#: The package that is attached to, and its module that says that this process moves pages.
POOLS = "hicache_dbg.pools"
TRIGGER = f"{POOLS}.transfer"

_state: dict[str, "Runtime | bool | None"] = {
    "runtime": None,
    "starting": False,
    "suppressed": False,
}


def install() -> None:
    """Register the post-import hooks, if the gate says so; a bad value is one line on stderr."""
    from hicache_dbg.tracer.settings import Gate, Settings, SettingsError

    try:
        settings = Settings.from_environ()
    except SettingsError as error:
        say(f"{error}; tracing stays off")
        return
    if settings.gate is Gate.OFF:
        return
    if settings.gate is Gate.ARMED:
        from hicache_dbg.tracer.switch.listener import listen

        listen(_answer)
        return
    for name in _pool_modules():
        wrapt.register_post_import_hook(_attach, name)


def _pool_modules() -> list[str]:
    """The name of every module of the pools; none is imported.

    Whichever of them the host imports first, attaching waits until the outermost is whole.
    """
    root = Path(__file__).parent.parent / "pools"
    found = (file.relative_to(root).with_suffix("").parts for file in root.rglob("*.py"))
    return [".".join((POOLS, *parts)).removesuffix(".__init__") for parts in found]


def suppress() -> None:
    """Leave attaching to the caller: the ``hicache-dbg`` verbs set the gate themselves."""
    _state["suppressed"] = True


def current() -> "Runtime | None":
    """The runtime that the gate started in this process, if any."""
    runtime = _state["runtime"]
    return None if isinstance(runtime, bool) else runtime


def _answer(ask: "Ask", reply: Callable[["Reply"], None]) -> None:
    """Do what the switch asks for; nothing of it is imported before somebody asks."""
    from hicache_dbg.tracer.switch.switchboard import BOARD

    BOARD.answer(ask, reply)


def _attach(module: ModuleType) -> None:
    if _state["suppressed"] or _state["starting"] or TRIGGER not in sys.modules:
        return  # while it starts, attaching imports more of them itself, and comes back here
    if any(map(_half_imported, _others(module))):
        return  # its own hook comes when it is whole
    runtime = current()
    if runtime is not None:
        with runtime.session.errors.at("attach"):
            runtime.attachment.attach()  # one more of the modules is there now
        return
    _state["starting"] = True
    try:
        from hicache_dbg.tracer.runtime import Runtime
        from hicache_dbg.tracer.settings import Settings

        runtime = Runtime.start(Settings.from_environ())
    except Exception as error:  # noqa: BLE001 - the host's import must not fail for our sake
        say(f"cannot start: {type(error).__name__}: {error}; tracing stays off")
        return
    finally:
        _state["starting"] = False
    _state["runtime"] = runtime
    atexit.register(runtime.stop)
    # A process that multiprocessing forks ends without atexit.
    util.register_after_fork(runtime, _stop_with_the_child)


def _others(module: ModuleType) -> list[ModuleType]:
    """The other modules of the pools that are imported, or being imported."""
    return [
        there
        for name, there in list(sys.modules.items())
        if name.startswith(POOLS) and there is not module
    ]


def _half_imported(module: ModuleType) -> bool:
    return bool(getattr(module.__spec__, "_initializing", False))


def _stop_with_the_child(runtime: "Runtime") -> None:
    util.Finalize(None, runtime.stop, exitpriority=0)
