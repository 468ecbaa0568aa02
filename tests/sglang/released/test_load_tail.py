"""The place of a load's digests among SGLang's steps: after its last gate, before its end event."""

# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false

from typing import Any

import pytest
from released_base import LAYERS, NUMBER
from released_driving import backup, controller, indices, operation
from released_lane import HostLane, beside
from released_rows import mha_of_sglang
from released_streams import Event, device_events
from released_traced import Start

from hicache_dbg.tracer.attach.sglang.gpu_ops import DeviceOp
from hicache_dbg.tracer.events import Copied, Finding
from hicache_dbg.tracer.settings import Checksum

HOST, FROM, TO = [5, 0, 7], [1, 4, 2], [0, 3, 5]


def test_a_loads_tail_is_behind_its_last_gate_and_before_its_end(
    traced: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every layer's gate opens first, then the digests run, then the event that releases the pages."""
    device_events(monkeypatch)
    monkeypatch.setattr(Event, "cuda_event", property(id), raising=False)
    run = traced(checksum=Checksum.LOADS)
    setup = mha_of_sglang("layer_first")
    beside(run, setup)
    host = indices(HOST, setup.page)
    backup(setup, host, indices(FROM, setup.page), "kernel")
    owner = controller(setup, "kernel")
    steps: list[tuple[str, int]] = []
    (events, *_) = owner.layer_done_counter.events
    gates = {id(event): layer for layer, event in enumerate(events.load_events)}
    record, digest, again = Event.record, DeviceOp.digest, HostLane.record

    def recording(event: Event, stream: Any = None) -> None:
        steps.append(("gate", gates[id(event)]) if id(event) in gates else ("event", id(event)))
        record(event, stream)

    def digesting(op: DeviceOp, on: int, *, during: bool) -> None:
        steps.append(("digest", 0))
        digest(op, on, during=during)

    def recording_again(lane: HostLane, event: int, stream: int) -> None:
        steps.append(("again", event))
        again(lane, event, stream)

    monkeypatch.setattr(Event, "record", recording)
    monkeypatch.setattr(DeviceOp, "digest", digesting)
    monkeypatch.setattr(HostLane, "record", recording_again)
    owner.load_queue.append(operation(host, indices(TO, setup.page)))
    owner.start_loading()
    assert run.sink.of(Copied)[-1].verified == 2 * LAYERS * len(HOST)
    finish = owner.ack_load_queue[-1].finish_event
    opened = [at for at, (what, _) in enumerate(steps) if what == "gate"]
    digests = [at for at, (what, _) in enumerate(steps) if what == "digest"]
    assert [steps[at][1] for at in opened] == list(range(LAYERS))
    assert digests
    assert max(opened) < min(digests)
    assert max(digests) < steps.index(("again", id(finish)))
    assert (finish is events.load_events[-1]) == (NUMBER < (0, 5, 16))
    assert run.sink.of(Finding) == []
