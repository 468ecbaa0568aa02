"""Track which requests SGLang copies pages for.

A method of the tree runs for one request. A node that is queued meanwhile belongs to that request, and an
operation that processes the queue belongs to the requests of its nodes. Only the name and the span of a
request are kept, for the latest nodes.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

from hicache_dbg.tracer.attach.sglang.arguments import argument
from hicache_dbg.tracer.attach.sglang.around import around
from hicache_dbg.tracer.attach.sglang.classes import ours
from hicache_dbg.tracer.attach.sglang.say import Say
from hicache_dbg.tracer.attach.sglang.whose import HERE, Request, request_of

__all__ = ["MOST_NODES", "QUEUES", "TREE_METHODS", "RequestTracker"]

Function = Callable[..., Any]

#: Methods of SGLang's trees that are called for one request. Their first argument is the request, its
#: name, or parameters that hold it.
TREE_METHODS = frozenset(
    {
        *("match_prefix", "init_load_back", "prefetch_from_storage"),
        *("cache_finished_req", "cache_unfinished_req", "checkpoint", "checkpoint_into_tree"),
        *("on_release", "backup_kv_cache", "restore_kv_cache"),
        *("retraction_backup", "retraction_restore"),
    }
)
#: Methods of a controller that process a queue, and the queue.
QUEUES = {"start_writing": "write_queue", "start_loading": "load_queue"}

#: The most nodes, and storage operations, whose requests are remembered.
MOST_NODES = 4096


class _Latest(OrderedDict[Any, tuple[Request, ...]]):
    """The requests of the latest nodes, or of the latest storage operations."""

    def keep(self, key: Any, requests: tuple[Request, ...]) -> None:
        """Remember the requests of ``key``, and forget the oldest ones beyond the limit."""
        self[key] = requests
        self.move_to_end(key)
        while len(self) > MOST_NODES:
            self.popitem(last=False)


class RequestTracker:
    """Follows SGLang's requests through its tree and its controllers' queues."""

    def __init__(self, say: Say) -> None:
        self._say = say
        #: Requests by node, which the compiled helper reads.
        self.nodes = _Latest()
        self._stores = _Latest()

    # -- wrappers -------------------------------------------------------------------------------

    def asking(self, original: Function) -> Function:
        """Wrap a method of the tree that is called for one request."""
        request_argument = argument(original, "", at=1)

        @wraps(original)
        def for_request(*args: Any, **kwargs: Any) -> Any:
            request: Request | None = None
            if self._say.on():
                with self._say.errors("attach/request"):
                    request = request_of(request_argument(args, kwargs))
            if request is None:
                return original(*args, **kwargs)
            with HERE.asking((request,)):
                return original(*args, **kwargs)

        return ours(for_request)

    def queueing(self, original: Function) -> Function:
        """Wrap ``write`` or ``load`` of a controller: the node belongs to the current request.

        It is noted before the call, because some controllers process the queue at once.
        """
        node_of = argument(original, "node_id")

        def before(*call: Any) -> None:
            node = node_of(*call) if HERE.asked else None
            if node is not None:
                self.nodes.keep(node, HERE.asked)

        return around(self._say, "attach/queue", original, before, lambda *_: None)

    def carrying(self, original: Function, queue: str) -> Function:
        """Wrap a method that processes a controller's queue: it serves the requests that queued."""

        @wraps(original)
        def carry(*args: Any, **kwargs: Any) -> Any:
            requests: tuple[Request, ...] = ()
            if self.nodes and self._say.on():
                with self._say.errors("attach/queue"):
                    queued = getattr(args[0], queue, ())
                    requests = self._requests_of(
                        node for operation in queued for node in operation.node_ids
                    )
            if not requests:
                return original(*args, **kwargs)
            with HERE.carrying(requests):
                return original(*args, **kwargs)

        return ours(carry)

    def storing(self, original: Function) -> Function:
        """Wrap ``write_backup_storage`` of the tree: a node's pages go on to storage."""
        node_of = argument(original, "", at=1)

        @wraps(original)
        def write_backup_storage(*args: Any, **kwargs: Any) -> Any:
            requests: tuple[Request, ...] = ()
            if self.nodes:
                with self._say.errors("attach/queue"):
                    node = node_of(args, kwargs)
                    requests = self._requests_of([getattr(node, "id", node)])
            if not requests:
                return original(*args, **kwargs)
            with HERE.asking(requests):
                return original(*args, **kwargs)

        return ours(write_backup_storage)

    def sending(self, original: Function) -> Function:
        """Wrap ``write_storage`` of a controller, which names the operation that a thread will run."""

        def after(requests: Any, operation: Any, _: BaseException | None) -> None:
            if operation is not None:
                self._stores.keep(operation, requests)

        def before(*_: Any) -> Any:
            return HERE.asked or None

        return around(self._say, "attach/queue", original, before, after)

    # -- lookups --------------------------------------------------------------------------------

    def of_storage(self, operation: Any) -> tuple[Request, ...]:
        """Return the requests of an operation of the controller's storage threads."""
        name = getattr(operation, "request_id", None)
        if name is not None:
            return (Request(str(name)),)
        return self._stores.get(getattr(operation, "id", None), ())

    def _requests_of(self, nodes: Iterable[Any]) -> tuple[Request, ...]:
        """Return the requests that ``nodes`` belong to, each once."""
        requests = (request for node in nodes for request in self.nodes.get(node, ()))
        return tuple(dict.fromkeys(requests))
