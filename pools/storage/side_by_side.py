"""A parallel map over the caller and daemon threads, all of which end before it returns."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Lock, Thread
from typing import TypeVar

__all__ = ["side_by_side"]

T = TypeVar("T")
R = TypeVar("R")


def side_by_side(work: Callable[[T], R], items: Sequence[T], threads: int) -> list[R]:
    """Apply ``work`` to each item on ``threads`` threads, the caller included; results in item order.

    Where no thread can be started, fewer do the work.

    After an exception no further item is started; the first one is raised once all threads ended.
    """
    ends: dict[int, R] = {}
    errors: list[BaseException] = []
    left, lock = iter(range(len(items))), Lock()

    def run() -> None:
        while not errors:
            with lock:
                at = next(left, None)
            if at is None:
                return
            try:
                ends[at] = work(items[at])
            except BaseException as error:  # noqa: BLE001 (raised by the caller, below)
                errors.append(error)

    others = [Thread(target=run, daemon=True) for _ in range(min(threads, len(items)) - 1)]
    started = list[Thread]()
    with suppress(RuntimeError):  # out of threads
        for other in others:
            other.start()
            started.append(other)
    run()
    for other in started:
        other.join()
    if errors:
        raise errors[0]
    return [ends[at] for at in range(len(items))]
