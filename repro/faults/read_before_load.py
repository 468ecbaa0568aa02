"""Readers that are let to a layer before its bytes are there, or go without asking."""

from collections.abc import Callable

from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.pools.indices import Ids
from hicache_dbg.pools.ticket import GATE_TIMEOUT_S, LoadTicket
from hicache_dbg.pools.transfer import CopyOp
from hicache_dbg.repro.faults.base import Fault, Target
from hicache_dbg.repro.faults.places import after_begin, put, run_loads_through
from hicache_dbg.tracer.events import FaultClass

__all__ = ["FAULTS"]

LayerDone = Callable[[int], None]


def _one_event_for_all_layers(target: Target) -> None:
    """The event behind the first layer's copy is taken for that of the whole load."""
    layers = target.controller.group.layer_ids

    def around(load: Callable[[LayerDone], None], op: CopyOp, on_layer_done: LayerDone) -> None:
        target.harmed(op.copies[0].device.ids)

        def first(layer: int) -> None:
            if layer == layers[0]:
                for number in layers:
                    on_layer_done(number)

        load(first)

    run_loads_through(target, around)


def _a_getter_that_does_not_wait(target: Target) -> None:
    """One of two ways to a layer has lost its wait: layer 1 is read as it is."""
    controller = target.controller

    def wait_layer(layer: int, ticket: LoadTicket, timeout: float = GATE_TIMEOUT_S) -> None:
        if layer != 1:
            HiCacheController.wait_layer(controller, layer, ticket, timeout)

    def change(_op: CopyOp, _host: Ids, device: Ids) -> None:
        target.harmed(device)

    put(controller, "wait_layer", wait_layer)
    after_begin(target, "load", change)


FAULTS = (
    Fault(
        name="all_gates_opened_with_the_first",
        cls=FaultClass.READ_BEFORE_LOAD,
        summary="the first layer's event opens the gates of all layers",
        install=_one_event_for_all_layers,
    ),
    Fault(
        name="a_getter_without_a_wait",
        cls=FaultClass.READ_BEFORE_LOAD,
        summary="one of the layers is read without waiting for its gate",
        install=_a_getter_that_does_not_wait,
    ),
)
