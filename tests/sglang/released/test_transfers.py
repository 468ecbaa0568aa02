"""Prefill to decode with SGLang's own contract: what both ends state, send and receive."""

# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false

import ctypes
import inspect
import struct
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from released_base import LAYERS, random_bytes
from released_rows import mla
from released_traced import Start, Traced
from sglang.srt.disaggregation.base.conn import KVArgs
from sglang.srt.disaggregation.fake.conn import FakeKVManager, FakeKVReceiver, FakeKVSender
from sglang.srt.disaggregation.mooncake.conn import KVArgsRegisterInfo
from sglang.srt.disaggregation.utils import DisaggregationMode

from hicache_dbg.tracer.checks.contract import check_contract
from hicache_dbg.tracer.checks.processes import processes
from hicache_dbg.tracer.events import Copied, Event, FaultClass, Finding, Health, Op, Stated, Tier

PAGES, ITEM = 6, 4 * 24 * 2
FROM, TO = [1, 3, 5], [0, 4, 2]


def kv_args(buffers: list[torch.Tensor], **other: Any) -> Any:
    """Return what a scheduler registers: a buffer per layer, pages of ``ITEM`` bytes."""
    args = KVArgs()
    given = {
        "engine_rank": 0,
        "kv_data_ptrs": [one.data_ptr() for one in buffers],
        "kv_data_lens": [one.nbytes for one in buffers],
        "kv_item_lens": [ITEM for _ in buffers],
        "kv_cache_dtype_str": "bfloat16",
        "state_types": [],
        "state_data_ptrs": [],
        "state_data_lens": [],
        "state_item_lens": [],
        "kv_head_num": 2,
        "total_kv_head_num": 2,
        "page_size": 4,
    }
    for name, value in (given | other).items():
        setattr(args, name, value)
    return args


class End:
    """One service: its memory, its manager, and its requests."""

    def __init__(self, mode: DisaggregationMode, *, mla_pool: bool = True, **other: Any) -> None:
        self.buffers = [random_bytes(PAGES, 4 * 24) for _ in range(LAYERS)]
        if mode is DisaggregationMode.DECODE:
            for one in self.buffers:
                one.zero_()
        tp = other.pop("tp", 1)
        self.args = kv_args(self.buffers, **other)

        class Manager(FakeKVManager):  # type: ignore[misc]
            attn_tp_size = tp

        server = SimpleNamespace()
        self.manager = Manager(self.args, mode, server, mla_pool)


class Sender(FakeKVSender):  # type: ignore[misc]
    """Copies pages by address and item length, as a transfer engine does."""

    to: tuple[Any, list[int]] | None = None

    def send(self, kv_indices: Any, *args: Any, **kwargs: Any) -> None:
        """Hand the pages over."""
        super().send(kv_indices, *args, **kwargs)
        if self.to is None:
            return
        there, pages = self.to
        here = self.kv_mgr.kv_args
        for source, target in zip(here.kv_data_ptrs, there.kv_data_ptrs, strict=True):
            for at, to in zip(kv_indices.tolist(), pages, strict=True):
                ctypes.memmove(target + to * ITEM, source + at * ITEM, ITEM)


class Receiver(FakeKVReceiver):  # type: ignore[misc]
    """Receives what the sender wrote."""


def sender(end: End, room: int, cls: Any = Sender) -> Any:
    """Return a request at the prefill service."""
    early = "dest_tp_ranks" in inspect.signature(FakeKVSender.__init__).parameters
    return cls(end.manager, "here:1", room, *(([0], 0) if early else ()))


def hand_over(prefill: End, decode: End, room: int = 7) -> None:
    """Hand one request over in one chunk."""
    receiver = Receiver(decode.manager, "here:1", room)
    receiver.init(0)
    receiver.send_metadata(np.array(TO, np.int32), 0)
    one = sender(prefill, room)
    one.to = decode.args, TO
    one.send(np.array(FROM, np.int32))
    receiver.poll()
    receiver.poll()


@pytest.fixture
def run(traced: Start) -> Traced:
    """Started tracing."""
    begun = traced()
    mla("layer_first")
    return begun


def test_managers_that_were_there_before_are_followed(
    traced: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An existing manager and its registrations are adopted: a disagreement is found, requests are traced."""
    prefill, decode = End(DisaggregationMode.PREFILL), End(DisaggregationMode.DECODE)
    begun = traced()
    mla("layer_first")
    for end, mode in ((prefill, "PREFILL"), (decode, "DECODE")):
        given = {"kv_args": end.args, "disaggregation_mode": DisaggregationMode[mode]}
        for name, value in (given | {"is_mla_backend": True}).items():
            monkeypatch.setattr(end.manager, name, value, raising=False)
    other = kv_args(prefill.buffers, kv_item_lens=[ITEM // 2] * LAYERS)
    told = {"there": KVArgsRegisterInfo.from_zmq(registration(other))}  # nobody listens yet
    monkeypatch.setattr(prefill.manager, "decode_kv_args_table", told, raising=False)
    bare = SimpleNamespace()
    unknown = begun.attachment.observer.transfers.adopt([prefill.manager, bare, decode.manager])
    assert unknown == ["SimpleNamespace: made before we came, its memory is not kept"]
    (finding,) = begun.sink.of(Finding)
    assert finding.cls is FaultClass.PD_CONTRACT
    hand_over(prefill, decode)
    assert [event.op for event in begun.sink.of(Copied)] == [Op.SEND, Op.RECV]


def joined(run: Traced) -> list[Finding]:
    """Return the findings of a join of both services' recordings, which have come to their end."""
    events = run.sink.of(Stated)
    parts: list[list[Event]] = [[e for e in events if e.role == r] for r in ("prefill", "decode")]
    last = Health(time_ns=time.time_ns(), closing=True)
    return check_contract(*processes([[*part, last] for part in parts]))


def test_a_clean_transfer_is_stated_alike_at_both_ends(run: Traced) -> None:
    """Contract, count and every tile agree; each end has a line for its side."""
    prefill, decode = End(DisaggregationMode.PREFILL), End(DisaggregationMode.DECODE)
    hand_over(prefill, decode)
    assert decode.buffers[1][TO].equal(prefill.buffers[1][FROM])
    assert [(e.op, e.src, e.dst, e.pages, e.witnessed) for e in run.sink.of(Copied)] == [
        (Op.SEND, Tier.DEVICE, Tier.REMOTE, 3, 3 * LAYERS),
        (Op.RECV, Tier.REMOTE, Tier.DEVICE, 3, 3 * LAYERS),
    ]
    assert [e.bytes for e in run.sink.of(Copied)] == [3 * LAYERS * ITEM] * 2
    assert joined(run) == []
    assert run.sink.of(Finding) == []


def test_a_page_that_arrives_otherwise_is_named(run: Traced) -> None:
    """One page's bytes change on the way: page 1 of request 7 is named, with its layer."""
    prefill, decode = End(DisaggregationMode.PREFILL), End(DisaggregationMode.DECODE)
    receiver = Receiver(decode.manager, "here:1", 7)
    receiver.init(0)
    receiver.send_metadata(np.array(TO, np.int32), 0)
    one = sender(prefill, 7)
    one.to = decode.args, TO
    one.send(np.array(FROM, np.int32))
    decode.buffers[1].view(torch.uint8)[TO[1], 3] ^= 0xFF
    receiver.poll()
    (finding,) = joined(run)
    assert finding.cls is FaultClass.PD_CONTRACT
    assert (finding.layer, finding.pages) == (1, (1,))
    assert "request 7" in finding.message


def test_a_request_that_is_committed_short_is_named(run: Traced) -> None:
    """Prefill handed over fewer pages than decode counts."""
    prefill, decode = End(DisaggregationMode.PREFILL), End(DisaggregationMode.DECODE)
    receiver = Receiver(decode.manager, "here:1", 7)
    receiver.init(0)
    receiver.send_metadata(np.array(TO, np.int32), 0)
    sender(prefill, 7).send(np.array(FROM[:1], np.int32))
    receiver.poll()
    (counted,) = [f for f in joined(run) if "taken over" in f.message]
    assert (counted.expected, counted.got) == ("1 page", "3 pages")


class Waiting(FakeKVSender):  # type: ignore[misc]
    """Is given page numbers that a device is still writing, as mooncake's sender is from 0.5.23 on."""

    def send(self, kv_indices: Any, *, indices_event: Any = None) -> None:
        """Leave the pages to a worker that waits for the event."""
        assert len(kv_indices)
        assert indices_event is not None


def test_pages_whose_numbers_are_not_there_yet_are_counted(run: Traced) -> None:
    """The number of pages is known at once: prefill is not said to have sent nothing."""
    prefill, decode = End(DisaggregationMode.PREFILL), End(DisaggregationMode.DECODE)
    receiver = Receiver(decode.manager, "here:1", 7)
    receiver.init(0)
    receiver.send_metadata(np.array(TO, np.int32), 0)
    one = sender(prefill, 7, Waiting)
    for pages in (FROM[:2], FROM[2:]):
        one.send(torch.full((len(pages),), -1), indices_event=object())
    receiver.poll()
    assert joined(run) == []
    sends = run.sink.of(Copied)[:2]
    assert [(e.op, e.pages, e.device_pages) for e in sends] == [(Op.SEND, 2, ()), (Op.SEND, 1, ())]
    assert [e.skipped for e in sends] == [{"unreadable": 2 * LAYERS}, {"unreadable": LAYERS}]
    assert run.sink.of(Finding) == []


def test_chunks_that_are_sent_while_nobody_traces_are_counted_too(run: Traced) -> None:
    """Tracing is off for one chunk of three: what prefill has sent is still all of it."""
    prefill, decode = End(DisaggregationMode.PREFILL), End(DisaggregationMode.DECODE)
    session = run.attachment.observer.session()
    assert session is not None
    receiver = Receiver(decode.manager, "here:1", 7)
    receiver.init(0)
    receiver.send_metadata(np.array(TO, np.int32), 0)
    one = sender(prefill, 7)
    for number, page in enumerate(FROM):
        session.switch(on=number != 1)
        one.send(np.array([page], np.int32))
    receiver.poll()
    assert [f for f in joined(run) if "taken over" in f.message] == []


@pytest.mark.parametrize(
    ("field", "other"),
    [
        ("page_size", {"page_size": 8, "kv_item_lens": [2 * ITEM] * LAYERS}),
        ("dtype", {"kv_cache_dtype_str": "float8_e4m3fn"}),
        ("bytes a token", {"kv_item_lens": [ITEM // 2] * LAYERS}),
    ],
)
def test_services_that_mean_other_memory_are_named_by_field(
    run: Traced, field: str, other: dict[str, Any]
) -> None:
    """Each differing field is named, and no other."""
    End(DisaggregationMode.PREFILL)
    End(DisaggregationMode.DECODE, **other)
    (finding,) = joined(run)
    assert finding.cls is FaultClass.PD_CONTRACT
    assert finding.expected.startswith(f"{field}=")
    assert finding.expected.count("=") == 1


def registration(args: Any, *, tp: int = 1) -> list[bytes]:
    """Return decode's registration message as mooncake's receiver packs it."""
    pointers = struct.pack(f"{len(args.kv_data_ptrs)}Q", *args.kv_data_ptrs)
    fields = [b"None", b"here", b"1", b"session", pointers, b"", b"", b"0"]
    return [*fields, str(tp).encode(), str(args.kv_item_lens[0]).encode()]


def test_a_registration_that_fits_is_silent(run: Traced) -> None:
    """Decode registers the same geometry: no finding."""
    prefill = End(DisaggregationMode.PREFILL)
    KVArgsRegisterInfo.from_zmq(registration(prefill.args))
    assert run.sink.of(Finding) == []


def test_a_registration_of_other_pages_is_found_before_a_byte_moves(run: Traced) -> None:
    """With half the bytes per page and one layer less, the handshake names the differing fields."""
    prefill = End(DisaggregationMode.PREFILL)
    other = kv_args(prefill.buffers[:1], kv_item_lens=[ITEM // 2])
    KVArgsRegisterInfo.from_zmq(registration(other))
    (finding,) = run.sink.of(Finding)
    assert finding.cls is FaultClass.PD_CONTRACT
    assert finding.expected == f"item_len={ITEM}, buffers={LAYERS}"
    assert finding.got == f"item_len={ITEM // 2}, buffers=1"
    assert run.sink.of(Copied) == []


def test_other_shares_of_the_heads_are_resharded_and_not_compared(run: Traced) -> None:
    """Two prefill ranks with half the heads each, one decode rank: no tile is compared."""
    prefill = End(DisaggregationMode.PREFILL, mla_pool=False, tp=2)
    other = kv_args(prefill.buffers, kv_item_lens=[2 * ITEM] * LAYERS)
    KVArgsRegisterInfo.from_zmq(registration(other, tp=1))
    sender(prefill, 7).send(np.array(FROM, np.int32))
    (event,) = run.sink.of(Copied)
    assert event.skipped == {"resharded": 3 * LAYERS}
    assert run.sink.of(Finding) == []
    assert not [e for e in run.sink.of(Stated) if e.topic in {"tiles", "sent"}]


def test_latent_rows_are_whole_on_every_rank(run: Traced) -> None:
    """MLA with two ranks and one: the pages are the same and are compared as on one rank."""
    prefill = End(DisaggregationMode.PREFILL, tp=2)
    KVArgsRegisterInfo.from_zmq(registration(prefill.args, tp=1))
    sender(prefill, 7).send(np.array(FROM, np.int32))
    assert run.sink.of(Copied)[0].witnessed == 3 * LAYERS
    assert run.sink.of(Finding) == []


def test_warm_up_requests_are_no_transfers(run: Traced) -> None:
    """SGLang's warm-up requests move nothing, and nothing is recorded of them."""
    prefill = End(DisaggregationMode.PREFILL)
    early = "dest_tp_ranks" in inspect.signature(FakeKVSender.__init__).parameters
    FakeKVSender(prefill.manager, "x", 0, *(([0], 0) if early else ())).send(np.array(FROM))
    assert run.sink.of(Copied) == []
