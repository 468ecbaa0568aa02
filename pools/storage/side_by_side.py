"""Work on several things at once, by daemon threads that nobody outlives."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from itertools import repeat
from threading import Lock, Thread
from typing import TypeVar

__all__ = ["side_by_side"]

T = TypeVar("T")
R = TypeVar("R")


def side_by_side(work: Callable[[T], R], items: Sequence[T], threads: int) -> Iterator[R]:
    """What ``work`` makes of each item, in their order; what it raises is raised in its turn.

    Whoever stops asking waits until what was begun has ended: then no thread is at work any more.
    """
    ends: list[Future[R]] = [Future() for _ in items]
    left, lock = iter(list(zip(items, ends, strict=True))), Lock()
    stopped: list[bool] = []

    def run() -> None:
        while not stopped:
            with lock:
                one = next(left, None)
            if one is None:
                return
            try:
                one[1].set_result(work(one[0]))
            except BaseException as error:  # noqa: BLE001 (raised where the end is asked for)
                one[1].set_exception(error)

    workers = [Thread(target=run, daemon=True) for _ in repeat(None, min(threads, len(items)))]
    for worker in workers:
        worker.start()
    try:
        for end in ends:
            yield end.result()
    finally:
        stopped.append(True)
        for worker in workers:
            worker.join()
