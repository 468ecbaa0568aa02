"""The requests that pages are copied for, and the lookup results of their prefixes."""

# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false

from typing import Any

import pytest
import torch
from released_base import ENGINE
from released_driving import controller, indices
from released_lane import beside
from released_rows import mha_of_sglang
from released_traced import Start, Traced
from released_trees import SmallTree, batch, lookup, request

from hicache_dbg.tracer.attach.sglang import lookups, request_tracking
from hicache_dbg.tracer.events import Copied, Finding, Op
from hicache_dbg.tracer.settings import Checksum
from hicache_dbg.tracer.sink import LookedUp


def queued(setup: Any) -> tuple[Any, SmallTree]:
    """Return SGLang's controller over a pool whose loads get device pages 4, 5, ..., and a tree."""
    owner = controller(setup, "kernel")
    pages = iter(range(4, 7))
    owner.mem_pool_device_allocator.alloc = lambda count: indices([next(pages)], count)
    return owner, SmallTree(owner, setup.page)


@pytest.mark.parametrize("on_device", [False, True])
def test_an_operation_names_the_requests_that_queued_it(traced: Start, *, on_device: bool) -> None:
    """A backup is for the requests whose pages it stores, a load of two nodes for the two that wait."""
    run = traced(checksum=Checksum.LOADS)
    setup = mha_of_sglang("layer_first")
    if on_device:
        beside(run, setup)
    owner, tree = queued(setup)
    hosts = [
        tree.cache_unfinished_req(request(name), indices([page], setup.page), page)
        for name, page in (("a", 1), ("b", 2))
    ]
    for name, page, host in (("c", 1, hosts[0]), ("d", 2, hosts[1])):
        tree.init_load_back(tree.load_back_of(name, 4), host, page)
    owner.start_loading()
    assert [(event.op, event.requests) for event in run.sink.of(Copied)] == [
        (Op.BACKUP, ("a",)),
        (Op.BACKUP, ("b",)),
        (Op.LOAD, ("c", "d")),
    ]


def test_a_finding_names_the_request(traced: Start) -> None:
    """Whose answer is wrong is the first question about a finding."""
    run = traced()
    setup = mha_of_sglang("layer_first")
    owner, tree = queued(setup)
    host = tree.cache_unfinished_req(request("a"), indices([1], setup.page), 1)
    setup.pool.kv_buffer[0, 1].view(torch.uint8)[int(host[0])] ^= 0xFF
    tree.init_load_back(tree.load_back_of("b", 4), host, 1)
    owner.start_loading()
    (finding,) = run.sink.of(Finding)
    assert finding.requests == ("b",)


def test_what_nobody_asked_for_is_nobodys(traced: Start) -> None:
    """A copy outside any queue, and a node without a request, have no request."""
    run = traced()
    setup = mha_of_sglang("layer_first")
    owner, tree = queued(setup)
    tree.cache_unfinished_req(request("a"), indices([1], setup.page), 1)
    owner.write(indices([2], setup.page), node_id=2)
    setup.pool.backup_from_device_all_layer(
        setup.pool_device, indices([3], setup.page), indices([3], setup.page), "kernel"
    )
    assert [event.requests for event in run.sink.of(Copied)] == [("a",), (), ()]


def test_spans_of_requests_are_those_that_sglang_gave_them(traced: Start) -> None:
    """SGLang's own root span, carried on the request, is the one that the copy's event names."""
    trace = pytest.importorskip("opentelemetry.trace")
    from types import SimpleNamespace

    run = traced()
    setup = mha_of_sglang("layer_first")
    _, tree = queued(setup)
    own = trace.SpanContext(7, 9, is_remote=True, trace_flags=trace.TraceFlags(1))
    context = trace.set_span_in_context(trace.NonRecordingSpan(own))
    stats = SimpleNamespace(trace_ctx=SimpleNamespace(root_span_context=context))
    tree.cache_unfinished_req(request("a", time_stats=stats), indices([1], setup.page), 1)
    tree.cache_unfinished_req(request("b"), indices([2], setup.page), 2)
    assert [(event.trace_id, event.span_id) for event in run.sink.of(Copied)] == [
        (f"{7:032x}", f"{9:016x}"),
        ("", ""),
    ]


def test_only_the_latest_nodes_are_remembered(
    traced: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many nodes a tree has, the map stays bounded."""
    monkeypatch.setattr(request_tracking, "MOST_NODES", 2)
    run = traced()
    setup = mha_of_sglang("layer_first")
    owner, tree = queued(setup)
    for node in range(5):
        tree.init_load_back(tree.load_back_of(f"r{node}", 4), setup.pool.alloc(4), node)
        owner.load_queue[1:] = []
        owner.mem_pool_device_allocator.alloc = lambda count: indices([4], count)
    assert len(run.attachment.hooks.requests.nodes) == 2
    owner.start_loading()
    assert run.sink.of(Copied)[-1].requests == ()  # node 0 is forgotten


def counted(run: Traced) -> dict[tuple[str, str], int]:
    """Return pages by tier and outcome, as a scrape reads them."""
    states = [state for state in run.attachment.pool_state() if isinstance(state, LookedUp)]
    return {(state.tier, state.end): state.pages for state in states}


def taken(run: Traced, *names: str) -> None:
    """Take these requests into a batch, through the wrapper of SGLang's method."""

    def prepare_for_extend(_: Any) -> None:
        """Do nothing: SGLang's own needs a model."""

    run.attachment.hooks.lookups.batching(prepare_for_extend)(batch(*names))


def test_the_last_lookup_before_a_batch_counts_once(traced: Start) -> None:
    """A waiting request is looked up repeatedly; only its last result counts."""
    run = traced()
    setup = mha_of_sglang("layer_first")
    _, tree = queued(setup)
    for found in ((0, 0), (4, 0), (8, 8)):
        tree.found = found
        tree.match_prefix(lookup("a", 24))
    assert counted(run) == {}
    tree.init_load_back(tree.load_back_of("a", 8))
    taken(run, "a")
    taken(run, "a")  # its next chunk
    assert counted(run) == {
        ("device", "hit"): 2,
        ("host", "hit"): 2,
        ("host", "no_room"): 0,
        ("host", "unused"): 0,
        ("none", "not_cached"): 2,
    }


@pytest.mark.parametrize(("asks", "end"), [(True, "no_room"), (False, "unused")])
def test_what_stays_on_the_host_says_why(traced: Start, *, asks: bool, end: str) -> None:
    """Pages found there and not loaded: there was no room for them, or nobody asked."""
    run = traced()
    setup = mha_of_sglang("layer_first")
    _, tree = queued(setup)
    tree.found, tree.room = (4, 8), False
    tree.match_prefix(lookup("a", 16))
    if asks:
        tree.init_load_back(tree.load_back_of("a", 8))
    taken(run, "a")
    assert counted(run)["host", end] == 2
    assert counted(run)["none", "not_cached"] == 1


def test_requests_that_never_come_to_a_batch_are_forgotten(
    traced: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Aborted requests do not accumulate."""
    monkeypatch.setattr(lookups, "MOST_REQUESTS", 2)
    run = traced()
    setup = mha_of_sglang("layer_first")
    _, tree = queued(setup)
    for number in range(5):
        tree.match_prefix(lookup(f"r{number}", 8))
    assert len(run.attachment.hooks.lookups._waiting) == 2


def test_sglangs_own_batches_are_followed(traced: Start) -> None:
    """SGLang's trees, controllers and batches have the methods that are wrapped."""
    traced()
    from sglang.srt.managers.cache_controller import HiCacheController
    from sglang.srt.mem_cache.radix_cache import RadixCache

    from hicache_dbg.tracer.attach.sglang.classes import is_ours

    for cls, name in (
        (RadixCache, "match_prefix"),
        (HiCacheController, "write"),
        (HiCacheController, "load"),
        (HiCacheController, "start_writing"),
        (HiCacheController, "start_loading"),
        (HiCacheController, "write_storage"),
    ):
        assert is_ours(getattr(cls, name)), name
    assert ENGINE or is_ours(HiCacheController.start_loading)
