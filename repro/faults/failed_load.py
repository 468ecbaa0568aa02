"""Loads that are reported as done and did not bring what was asked for."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from hicache_dbg.pools.indices import Ids, Indices
from hicache_dbg.pools.transfer import CopyOp
from hicache_dbg.repro.faults.base import Fault, Target
from hicache_dbg.repro.faults.places import after_begin, run_loads_through
from hicache_dbg.tracer.events import FaultClass

__all__ = ["FAULTS"]

LayerDone = Callable[[int], None]


def _error_advances_the_counter(target: Target) -> None:
    """The link fails before the last layer; the error path opens the gates all the same."""
    layers = target.controller.group.layer_ids

    def around(load: Callable[[LayerDone], None], op: CopyOp, on_layer_done: LayerDone) -> None:
        def fails(layer: int) -> None:
            on_layer_done(layer)
            if layer == layers[-2]:
                raise OSError("link down")

        with suppress(OSError):
            load(fails)
        on_layer_done(layers[-1])
        target.harmed(op.copies[0].device.ids)

    run_loads_through(target, around)


def _last_page_dropped(target: Target) -> None:
    """A batch limit cuts the last page off, and the operation is done when the batch is."""

    def change(op: CopyOp, _host: Ids, device: Ids) -> None:
        if device.size < 2:
            return
        op.copies = tuple(
            replace(
                copy,
                host=Indices.pages(copy.host.ids[:-1], copy.mirror.host.geometry),
                device=Indices.pages(copy.device.ids[:-1], copy.mirror.device.geometry),
            )
            for copy in op.copies
        )
        op.host_generations = op.host_generations[:-1]
        target.harmed(device[-1:])

    after_begin(target, "load", change)


def _last_layer_forgotten(target: Target) -> None:
    """Layers are counted to the last but one."""

    def change(op: CopyOp, _host: Ids, device: Ids) -> None:
        op.copies = tuple(replace(copy, layers=copy.layers[:-1]) for copy in op.copies)
        target.harmed(device)

    after_begin(target, "load", change)


FAULTS = (
    Fault(
        name="load_error_reported_as_done",
        cls=FaultClass.FAILED_LOAD,
        summary="a load fails before its last layer, and its readers are let in all the same",
        install=_error_advances_the_counter,
    ),
    Fault(
        name="last_page_of_a_load_dropped",
        cls=FaultClass.FAILED_LOAD,
        summary="a load leaves its last page out and is reported as done",
        install=_last_page_dropped,
    ),
    Fault(
        name="last_layer_of_a_load_forgotten",
        cls=FaultClass.FAILED_LOAD,
        summary="a load never copies its last layer and is reported as done",
        install=_last_layer_forgotten,
    ),
)
