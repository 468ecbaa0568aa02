"""The search for live objects, behind those that the garbage collector was told to forget."""

import gc
from collections.abc import Iterator

import pytest

from hicache_dbg.tracer.attach.sglang import alive


class Pool:
    """What is searched for."""


class Owner:
    """An object of SGLang's that leads to a pool."""

    __module__ = "sglang.srt.managers.scheduler"

    def __init__(self, inner: object) -> None:
        self.inner = inner


@pytest.fixture
def _frozen() -> Iterator[None]:
    gc.freeze()
    yield
    gc.unfreeze()


def owners(depth: int) -> list[Owner]:
    """Return objects that lead to a pool, which nothing else refers to: the last is the farthest."""
    chain = [Owner(Pool())]
    while len(chain) < depth:
        chain.append(Owner(chain[-1]))
    return chain


def has_dict(one: object) -> bool:
    """Return whether an object's attributes have been moved to a dictionary."""
    return any(type(value) is dict for value in gc.get_referents(one))


@pytest.mark.usefixtures("_frozen")
def test_a_frozen_pool_is_found_and_its_owners_stay_as_fast() -> None:
    """The search reads no ``__dict__``: that slows an object's attributes on CPython 3.11 and 3.12."""
    owner: object = owners(alive._MOST_REFERENCES)[-1]
    gc.freeze()
    assert len(alive.find({Pool}).of({Pool})) == 1
    while isinstance(owner, Owner):
        assert not has_dict(owner)
        owner = owner.inner


@pytest.mark.usefixtures("_frozen")
def test_attributes_in_a_dictionary_are_as_near() -> None:
    """A pool is as near through objects whose ``__dict__`` somebody has read."""
    chain = owners(alive._MOST_REFERENCES)
    assert all(map(vars, chain))
    owner = chain.pop()
    del chain
    gc.freeze()
    assert len(alive.find({Pool}).of({Pool})) == 1
    assert has_dict(owner)
