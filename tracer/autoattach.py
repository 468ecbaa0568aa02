"""``HICACHE_DBG=1 python script.py``: attach once an instrumented system is imported, not before.

Installing costs a dictionary entry: nothing of ours, of torch or of an exporter is imported until
the host itself imports a module that defines pools.
"""

import atexit
import contextlib
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from hicache_dbg.tracer.saying import say
from hicache_dbg.tracer.words import failure

if TYPE_CHECKING:
    from hicache_dbg.tracer.runtime import Runtime
    from hicache_dbg.tracer.switch.messages import Ask, Reply

__all__ = ["current", "install", "suppress"]

#: The package to attach to, and the module whose import means that this process moves pages.
POOLS = "hicache_dbg.pools"
TRIGGER = f"{POOLS}.transfer"

_state: dict[str, "Runtime | bool | None"] = {
    "runtime": None,
    "starting": False,
    "suppressed": False,
}


def install() -> None:
    """Register the post-import hooks, or start the listener, as the gate says.

    Report in one line on stderr what is wrong with the gate, or why it cannot be followed.
    """
    from hicache_dbg.tracer.settings import SettingsError

    try:
        _follow_the_gate()
    except SettingsError as error:
        say(f"{error}; tracing stays off")
    except Exception as error:  # noqa: BLE001 - the host's import must not fail for our sake
        say(f"cannot start: {failure(error)}; tracing stays off")


def _follow_the_gate() -> None:
    from hicache_dbg.tracer.settings import Gate, Settings

    gate = Settings.from_environ().gate
    if gate is not Gate.OFF and not _in_main_interpreter():
        raise RuntimeError("this is a subinterpreter, which may have no threads of ours")
    if gate is Gate.ARMED:
        from hicache_dbg.tracer.switch.listener import listen

        listen(_answer)
    if gate is Gate.ON:
        import wrapt  # no process needs it whose gate is off or armed

        for name in _pool_modules():
            wrapt.register_post_import_hook(_attach, name)


def _in_main_interpreter() -> bool:
    """Return whether threads may outlive their work here: ending a subinterpreter with one is fatal."""
    for name in ("_interpreters", "_xxsubinterpreters"):  # of Python 3.13, and before
        with contextlib.suppress(ImportError):
            interpreters = import_module(name)
            return bool(interpreters.get_current() == interpreters.get_main())
    return True


def _pool_modules() -> list[str]:
    """Return the names of all modules of the pools, without importing any.

    Whichever of them the host imports first, attaching waits until the outermost one is complete.
    """
    root = Path(__file__).parent.parent / "pools"
    found = (file.relative_to(root).with_suffix("").parts for file in root.rglob("*.py"))
    return [".".join((POOLS, *parts)).removesuffix(".__init__") for parts in found]


def suppress() -> None:
    """Leave attaching to the caller; the ``hicache-dbg`` verbs attach by themselves."""
    _state["suppressed"] = True


def current() -> "Runtime | None":
    """Return the runtime that the gate started in this process, or None."""
    runtime = _state["runtime"]
    return None if isinstance(runtime, bool) else runtime


def _answer(ask: "Ask", reply: Callable[["Reply"], None]) -> None:
    """Answer a request of the switch.

    Its module is imported only when the first request arrives.
    """
    from hicache_dbg.tracer.switch.switchboard import BOARD

    BOARD.answer(ask, reply)


def _attach(module: ModuleType) -> None:
    if _state["suppressed"] or _state["starting"] or TRIGGER not in sys.modules:
        return  # starting imports further modules of the pools, which re-enters this hook
    if any(map(_half_imported, _others(module))):
        return  # that module's own hook runs when its import is complete
    runtime = current()
    if runtime is not None:
        with runtime.session.errors.at("attach"):
            runtime.attachment.attach()  # there is one more module to wrap
        return
    _state["starting"] = True
    try:
        from hicache_dbg.tracer.runtime import Runtime
        from hicache_dbg.tracer.settings import Settings

        runtime = Runtime.start(Settings.from_environ())
    except Exception as error:  # noqa: BLE001 - the host's import must not fail for our sake
        say(f"cannot start: {failure(error)}; tracing stays off")
        return
    finally:
        _state["starting"] = False
    from multiprocessing import util

    _state["runtime"] = runtime
    atexit.register(runtime.stop)
    # A process forked by multiprocessing exits without running atexit handlers.
    util.register_after_fork(runtime, _stop_with_the_child)


def _others(module: ModuleType) -> list[ModuleType]:
    """Return the other modules of the pools that are imported or being imported."""
    return [
        there
        for name, there in list(sys.modules.items())
        if name.startswith(POOLS) and there is not module
    ]


def _half_imported(module: ModuleType) -> bool:
    return bool(getattr(module.__spec__, "_initializing", False))


def _stop_with_the_child(runtime: "Runtime") -> None:
    from multiprocessing import util

    util.Finalize(None, runtime.stop, exitpriority=0)
