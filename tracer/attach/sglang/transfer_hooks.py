"""Which wrapper goes around which method that hands pages from prefill to decode."""

import sys
from functools import partial
from types import ModuleType

from hicache_dbg.tracer.attach.sglang.classes import subclasses
from hicache_dbg.tracer.attach.sglang.method_patches import MethodPatches
from hicache_dbg.tracer.attach.sglang.transfers import BASES, MODULES, Transfers, manager_classes

__all__ = ["wrap_transfers"]


def wrap_transfers(module: ModuleType, methods: MethodPatches, transfers: Transfers) -> None:
    """Wrap the managers of ``module``; senders and receivers when the first one is created."""
    if module.__name__ not in MODULES:
        return
    bases = vars(sys.modules[MODULES[0]])
    _, *ends = (bases[name] for name in BASES if name in bases)
    for cls in manager_classes():
        methods.own(cls, "__init__", transfers.managing)
    follow = partial(_wrap_end, methods, transfers)
    for cls in subclasses(ends):
        if cls not in ends:
            methods.own(cls, "__init__", partial(transfers.beginning, follow=follow))
    info = vars(module).get("KVArgsRegisterInfo")
    if isinstance(info, type):
        methods.own(info, "from_zmq", transfers.registering)


def _wrap_end(methods: MethodPatches, transfers: Transfers, cls: type) -> None:
    """Wrap what a sender or receiver class and its bases define themselves."""
    for base in cls.__mro__:
        methods.own(base, "send", transfers.sending)
        methods.own(base, "send_metadata", transfers.asking)
        methods.own(base, "poll", transfers.polling)
