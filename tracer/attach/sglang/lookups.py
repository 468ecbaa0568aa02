"""Outcomes of requests' prefix lookups in SGLang's tree, in pages, by the tier that had them.

A waiting request is looked up repeatedly; the lookup that counts is the last one before it enters a
batch. The pages found on the host were then loaded, had no room, or were never requested.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from hicache_dbg.tracer.attach.sglang.arguments import argument
from hicache_dbg.tracer.attach.sglang.around import around
from hicache_dbg.tracer.attach.sglang.say import Say
from hicache_dbg.tracer.sink import LookedUp

__all__ = ["BATCH", "ENDS", "MOST_REQUESTS", "Lookups"]

Function = Callable[..., Any]

#: Module, class and method that take requests into a batch.
BATCH = ("sglang.srt.managers.schedule_batch", "ScheduleBatch", "prepare_for_extend")

#: Outcomes as in our own engine: a page of the prefix was on the device, on the host, or nowhere.
ENDS: dict[str, tuple[str, ...]] = {
    "device": ("hit",),
    "host": ("hit", "no_room", "unused"),
    "none": ("not_cached",),
}
#: Most waiting requests whose last lookup is remembered.
MOST_REQUESTS = 4096


@dataclass(slots=True)
class _Lookup:
    """Tokens looked up, found on each tier, and loaded from the host (-1: never requested)."""

    page: int
    asked: int
    device: int
    host: int
    loaded: int = -1


class Lookups:
    """Counts lookups, only the last one of each request."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._waiting: OrderedDict[str, _Lookup] = OrderedDict()
        self._counts: Counter[tuple[str, str]] = Counter()

    def matching(self, original: Function) -> Function:
        """Wrap a tree's ``match_prefix``."""
        params_of = argument(original, "params", at=1)

        def before(*given: Any) -> Any:
            params = params_of(*given) if self._say.on() else None
            return (given[0][0], params) if getattr(params, "req", None) is not None else None

        def after(about: Any, result: Any, error: BaseException | None) -> None:
            if error is None:
                tree, params = about
                self._found(tree, params, result)

        return around(self._say, "attach/lookup", original, before, after)

    def loading(self, original: Function) -> Function:
        """Wrap a tree's ``init_load_back``: the host's part is requested."""
        params_of = argument(original, "params", at=1)

        def before(*given: Any) -> Any:
            if not self._waiting:
                return None
            return self._waiting.get(str(getattr(params_of(*given).req, "rid", "")))

        def after(found: Any, result: Any, error: BaseException | None) -> None:
            if error is None and result is not None:
                loaded, _ = result
                found.loaded = loaded if isinstance(loaded, int) else len(loaded)

        return around(self._say, "attach/lookup", original, before, after)

    def batching(self, original: Function) -> Function:
        """Wrap the method that takes requests into a batch, and count their last lookups."""

        def before(args: tuple[Any, ...], _: dict[str, Any]) -> None:
            if not self._waiting:
                return
            for request in args[0].reqs:
                found = self._waiting.pop(str(request.rid), None)
                if found is not None:
                    self._count(found)

        return around(self._say, "attach/lookup", original, before, lambda *_: None)

    def read(self) -> Iterator[LookedUp]:
        """Yield pages by tier and outcome, zeros included, once anything was counted."""
        for tier, ends in ENDS.items() if self._counts else ():
            for end in ends:
                yield LookedUp(tier, end, self._counts[tier, end])

    def _found(self, tree: Any, params: Any, result: Any) -> None:
        name = getattr(params.req, "rid", None)
        if name is None:
            return
        device = getattr(result, "device_prefix_len", None)
        if device is None:
            device = len(result.device_indices)
        page = max(1, int(getattr(tree, "page_size", 1)))
        asked = len(params.key)
        self._waiting[str(name)] = _Lookup(page, asked, int(device), int(result.host_hit_length))
        self._waiting.move_to_end(str(name))
        if len(self._waiting) > MOST_REQUESTS:
            self._waiting.popitem(last=False)  # it never entered a batch

    def _count(self, found: _Lookup) -> None:
        asked, device, host = (
            part // found.page for part in (found.asked, found.device, found.host)
        )
        loaded = min(host, max(0, found.loaded) // found.page)
        self._counts["device", "hit"] += device
        self._counts["none", "not_cached"] += max(0, asked - device - host)
        self._counts["host", "hit"] += loaded
        self._counts["host", "unused" if found.loaded < 0 else "no_room"] += host - loaded
