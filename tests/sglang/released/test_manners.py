"""Wrapped methods are transparent to callers, compilers and other wrappers."""

# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false

import inspect
import traceback
from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest
import torch
from released_base import Setup, bytes_of
from released_driving import backup, controller, indices, load
from released_rows import mha_of_sglang, mla
from released_traced import Start

from hicache_dbg.tracer.events import Copied, Finding

LOOKS = ("__name__", "__qualname__", "__module__", "__doc__", "__isabstractmethod__")


def test_every_wrapped_method_looks_as_it_did(traced: Start) -> None:
    """Name, module, docstring and signature are the original's, and so is what it wraps."""
    run = traced()
    done = run.attachment.hooks.patches._done
    assert len(done) > 60
    for owner, name, original, ours in done:
        inner, outer = (getattr(one, "__func__", one) for one in (original, ours))
        for look in LOOKS:
            assert getattr(outer, look, None) == getattr(inner, look, None), (owner, name, look)
        assert inspect.signature(outer) == inspect.signature(inner), (owner, name)
        assert inspect.unwrap(outer) is inspect.unwrap(inner), (owner, name)


def test_what_sglang_raises_has_its_own_traceback(
    traced: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same exception is raised from the same place, without ours as its cause."""
    setup = mla("layer_first")
    error = RuntimeError("out of its own depth")

    def refuses(*_: Any, **__: Any) -> None:
        raise error

    host = setup.pool.alloc(setup.page)
    ends = setup.pool_device, host, indices([1], setup.page)
    for method in ("backup_from_device_all_layer", "load_to_device_per_layer", "alloc", "free"):
        owner = next(cls for cls in type(setup.pool).__mro__ if method in vars(cls))
        monkeypatch.setattr(owner, method, wraps(vars(owner)[method])(refuses))
    traced()
    calls: tuple[Callable[[], Any], ...] = (
        lambda: setup.pool.alloc(4),
        lambda: setup.pool.free(host),
        lambda: setup.pool.backup_from_device_all_layer(*ends, "kernel"),
        lambda: setup.pool.load_to_device_per_layer(*ends, 0, "kernel"),
    )
    for call in calls:
        error.__traceback__ = None
        with pytest.raises(RuntimeError) as caught:
            call()
        assert caught.value is error
        assert traceback.extract_tb(error.__traceback__)[-1].name == "refuses"
        assert (error.__cause__, error.__context__) == (None, None)


@pytest.mark.parametrize("loading", [False, True], ids=["quiet", "while a load is on its way"])
def test_an_accessor_is_compiled_in_one_piece(traced: Start, *, loading: bool) -> None:
    """A model function that reads a layer compiles without a graph break and reads the same value."""
    setup = mha_of_sglang("layer_first")
    device = setup.pool_device

    def read(factor: torch.Tensor) -> torch.Tensor:
        keys: torch.Tensor = device.get_key_buffer(0)[4:8]
        return keys * factor

    factor = torch.tensor(2.0, dtype=torch.bfloat16)
    want = read(factor)
    run = traced()
    owner = controller(setup, "kernel")  # gives the pool its counter
    if loading:
        owner.layer_done_counter.set_consumer(owner.layer_done_counter.update_producer())
        device.layer_transfer_counter = None  # what it waits for is CUDA's
    torch.compiler.reset()
    compiled = torch.compile(read, backend="eager", fullgraph=True)
    got = compiled(factor)
    assert torch.equal(got.view(torch.int16), want.view(torch.int16))
    assert run.sink.of(Finding) == []


class Other:
    """Another plugin that counts the calls of a method."""

    def __init__(self) -> None:
        self.calls = 0

    def around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function as SGLang's own hooks do."""

        @wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return original(*args, **kwargs)

        return wrapper


def _there_and_back(setup: Setup) -> None:
    before = [bytes_of(tensor, setup.rows)[[1]].clone() for tensor in setup.devices]
    host = setup.pool.alloc(setup.page)
    backup(setup, host, indices([1], setup.page), "kernel")
    load(setup, host, indices([3], setup.page), "kernel")
    setup.pool.free(host)
    for tensor, old in zip(setup.devices, before, strict=True):
        assert bytes_of(tensor, setup.rows)[[3]].equal(old)


METHODS = ("backup_from_device_all_layer", "load_to_device_per_layer", "alloc")


@pytest.mark.parametrize("first", ["theirs", "ours"])
def test_another_plugin_on_the_same_methods_is_called_once_a_call(
    traced: Start, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """In either order both see every call once, tiles are verified, and each detaches alone."""
    setup = mla("layer_first")
    other = Other()
    owners = {
        name: next(cls for cls in type(setup.pool).__mro__ if name in vars(cls)) for name in METHODS
    }
    released = {name: vars(owner)[name] for name, owner in owners.items()}

    def hook() -> None:
        for name, owner in owners.items():
            monkeypatch.setattr(owner, name, other.around(vars(owner)[name]))

    if first == "theirs":
        hook()
    run = traced()
    if first == "ours":
        hook()
    with_theirs = {name: vars(owner)[name] for name, owner in owners.items()}
    _there_and_back(setup)
    layers = len(setup.devices)
    assert other.calls == 1 + 1 + layers
    copies = run.sink.of(Copied)
    assert sum(event.verified for event in copies) == 2 * layers
    assert run.sink.of(Finding) == []
    run.attachment.detach()
    _there_and_back(setup)
    assert other.calls == 2 * (1 + 1 + layers)
    assert len(run.sink.of(Copied)) == len(copies)
    if first == "ours":  # what they wrapped is theirs to put back
        assert {name: vars(owner)[name] for name, owner in owners.items()} == with_theirs
    monkeypatch.undo()  # puts a wrapper of ours back, which would stay for the tests that follow
    for name, owner in owners.items():
        setattr(owner, name, released[name])
