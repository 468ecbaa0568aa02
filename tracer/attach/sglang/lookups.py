"""What became of the prefix that a request asked SGLang's tree for, in pages, by the tier that had it.

A request that waits is looked up again and again; the look-up that counts is the last one before it is
taken into a batch. What it found on the host is then there, had no room, or was not asked for.
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

#: As our own engine counts them: a page of the prefix was on the device, on the host, or nowhere.
ENDS: dict[str, tuple[str, ...]] = {
    "device": ("hit",),
    "host": ("hit", "no_room", "unused"),
    "none": ("not_cached",),
}
#: Requests that wait, of which the last look-up is remembered.
MOST_REQUESTS = 4096


@dataclass(slots=True)
class _Lookup:
    """Tokens: asked for, found on each tier, and brought from the host (-1: nobody asked for that)."""

    page: int
    asked: int
    device: int
    host: int
    loaded: int = -1


class Lookups:
    """Counts look-ups, each request's last one once."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._waiting: OrderedDict[str, _Lookup] = OrderedDict()
        self._counts: Counter[tuple[str, str]] = Counter()

    def matching(self, original: Function) -> Function:
        """Around ``match_prefix`` of a tree."""
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
        """Around ``init_load_back`` of a tree: what is on the host is asked for."""
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
        """Around what takes requests into a batch: their last look-ups were the ones that count."""

        def before(args: tuple[Any, ...], _: dict[str, Any]) -> None:
            if not self._waiting:
                return
            for request in args[0].reqs:
                found = self._waiting.pop(str(request.rid), None)
                if found is not None:
                    self._count(found)

        return around(self._say, "attach/lookup", original, before, lambda *_: None)

    def read(self) -> Iterator[LookedUp]:
        """Pages by tier and end, each from 0 on once one was counted."""
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
            self._waiting.popitem(last=False)  # it never came to a batch

    def _count(self, found: _Lookup) -> None:
        asked, device, host = (
            part // found.page for part in (found.asked, found.device, found.host)
        )
        loaded = min(host, max(0, found.loaded) // found.page)
        self._counts["device", "hit"] += device
        self._counts["none", "not_cached"] += max(0, asked - device - host)
        self._counts["host", "hit"] += loaded
        self._counts["host", "unused" if found.loaded < 0 else "no_room"] += host - loaded
