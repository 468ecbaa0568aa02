"""The compiled helper asks torch about index tensors, and leaves those to Python that a launch cannot read."""

# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from released_stress import DEVICE_SHAPES, HOST_SHAPES, SHAPES, Outcome, Rig, Step, outcome, rigged
from released_traced import Start

from hicache_dbg.tracer.attach.sglang.gpu_calls import DeviceCalls
from hicache_dbg.tracer.attach.sglang.gpu_ops import DeviceOp
from hicache_dbg.tracer.attach.sglang.native import helper
from hicache_dbg.tracer.events import Copied, Started
from hicache_dbg.tracer.settings import Native

KINDS = pytest.mark.parametrize("kind", ["backup", "load"])
#: Which of our functions run: for a whole operation, for its end only, and for none.
WHOLE, END, NONE = ["__init__", "_tell"], ["_tell"], list[str]()
#: Forms of indices in which a launch can read them.
READABLE = {"", "strided", "backwards", "amid", "int32 there"}
#: Forms of plain tensors in which it cannot, or need not.
UNREADABLE = {"odd", "unequal", "int32", "deep", "none there", "one there", "deep there"}
#: Forms of which something is no plain tensor, or nothing is there.
ASIDE = {"parameter", "halved", "halved there", "none here", "sparse", "array"}

CPU, CUDA, METAL = 1, 2, 8
NAME = b"dlpack_exchange_api"


class Borrowed(ctypes.Structure):
    """DLTensor of dlpack.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("kind", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("dims", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    )


Borrow = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(Borrowed))


class Exchange(ctypes.Structure):
    """DLPackExchangeAPI of dlpack.h, as far as the helper uses it."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("others", ctypes.c_void_p * 4),
        ("borrow", Borrow),
    )


_api = ctypes.pythonapi
_api.PyCapsule_New.restype = ctypes.py_object
_api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


def torchs() -> Exchange:
    """Return torch's own functions."""
    capsule = vars(torch.Tensor)["__dlpack_c_exchange_api__"]
    return Exchange.from_address(_api.PyCapsule_GetPointer(capsule, NAME) or 0)


class Told:
    """Says of tensors what torch does, changed by ``change``."""

    def __init__(self, *, major: int = 1, minor: int = 3, name: bytes = NAME) -> None:
        self.change: Callable[[Any], None] = lambda _: None
        self._borrow = torchs().borrow
        self._exchange = Exchange(major, minor, (ctypes.c_void_p * 4)(), Borrow(self._answer))
        self._name = ctypes.create_string_buffer(name)
        at = ctypes.addressof(self._exchange)
        self.capsule = _api.PyCapsule_New(at, ctypes.addressof(self._name), None)

    def _answer(self, tensor: Any, borrowed: Any) -> int:
        self._borrow(tensor, borrowed)
        self.change(borrowed.contents)
        return 0

    def refuse(self) -> None:
        """Fail from now on, as torch does with a sparse tensor."""
        fails = ctypes.cast(_api.PyObject_AsFileDescriptor, ctypes.c_void_p)
        ctypes.c_void_p.from_buffer(self._exchange, Exchange.borrow.offset).value = fails.value


@contextmanager
def noted() -> Iterator[list[str]]:
    """Yield the names of our functions that run."""
    ran: list[str] = []

    def noting(function: Callable[..., Any]) -> Callable[..., Any]:
        def note(*args: Any, **kwargs: Any) -> Any:
            ran.append(function.__name__)
            return function(*args, **kwargs)

        return note

    with pytest.MonkeyPatch.context() as patch:
        for cls, name in zip((DeviceOp, DeviceCalls), WHOLE, strict=True):
            patch.setattr(cls, name, noting(getattr(cls, name)))
        yield ran


def ran_of(rig: Rig, step: Step) -> list[str]:
    """Return which of our functions a step runs once there is a plan."""
    rig.step(Step(step.kind), Outcome())
    with noted() as ran:
        rig.step(step, Outcome())
    assert rig.session.bus.flush()
    return ran


def last_of(rig: Rig) -> Copied:
    """Return the last copy's event."""
    last: Copied = rig.run.sink.of(Copied)[-1]
    return last


@KINDS
@pytest.mark.parametrize("form", ["", *SHAPES, *DEVICE_SHAPES, *HOST_SHAPES])
def test_indices_of_every_form_end_alike(
    traced: Start, internal_errors: list[str], kind: str, form: str
) -> None:
    """Whatever SGLang is given: what is told, counted, enqueued and raised is the same."""
    steps = [Step("backup"), Step(kind), Step(kind, form=form), Step(kind)]
    plain, fast = (outcome(steps, traced, native) for native in (Native.OFF, Native.ON))
    assert vars(fast) == vars(plain)
    assert len(plain.raised) == len(steps)
    internal_errors.clear()  # compared above


@KINDS
@pytest.mark.parametrize("form", sorted(READABLE | UNREADABLE | ASIDE))
def test_the_helper_runs_what_a_launch_can_read(
    traced: Start, internal_errors: list[str], kind: str, form: str
) -> None:
    """Of plain tensors that differ from it only the end is Python's; other objects are Python's as a whole."""
    with rigged(traced) as rig:
        ran = ran_of(rig, Step(kind, form=form))
    if form in READABLE:
        assert ran == NONE
    elif form in UNREADABLE:
        assert ran == END
    else:
        assert ran == WHOLE
    internal_errors.clear()  # of the strange ones


@KINDS
def test_indices_on_another_device_end_alike(traced: Start, kind: str) -> None:
    """Only there can a launch read them."""
    steps = [Step("backup"), Step(kind), Step(kind, trouble="elsewhere"), Step(kind)]
    plain, fast = (outcome(steps, traced, native) for native in (Native.OFF, Native.ON))
    assert vars(fast) == vars(plain)
    assert [event["skipped"] for event in plain.events] == [{}] * 4
    with rigged(traced) as rig:
        assert ran_of(rig, Step(kind, trouble="elsewhere")) == END


@KINDS
@pytest.mark.parametrize("trouble", ["captured", "asked", "odd nodes"])
def test_what_is_not_usual_around_a_copy_ends_alike(traced: Start, kind: str, trouble: str) -> None:
    """A graph that is captured, and the requests of a queue."""
    form = "" if trouble == "captured" else "queued"
    steps = [Step(kind, trouble=one, form=form) for one in ("", "", trouble, "")]
    plain, fast = (outcome(steps, traced, native) for native in (Native.OFF, Native.ON))
    assert vars(fast) == vars(plain)
    if trouble != "captured":
        assert [bool(event["requests"]) for event in plain.events] == [False, False, True, False]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    """What a helper that is made from now on asks about tensors."""
    made = Told()
    monkeypatch.setattr(helper, "_exchange", lambda: made.capsule)
    return made


@KINDS
@pytest.mark.parametrize(
    ("change", "device", "ran"),
    [
        ({}, -1, NONE),
        ({"kind": CUDA, "device": 1}, 1, NONE),
        ({"kind": CUDA, "device": 1}, 0, END),
        ({"kind": CUDA, "device": 0}, -1, END),
        ({"kind": METAL, "device": 0}, 0, END),
        ({"kind": METAL, "device": 0}, -1, END),
        ({"kind": CPU, "device": 0}, 0, END),
        ({"code": 1}, -1, END),  # not signed
        ({"bits": 32}, -1, END),
        ({"lanes": 2}, -1, END),
        ({"dims": 0}, -1, END),
    ],
)
def test_what_torch_says_of_a_tensor_decides(  # noqa: PLR0917
    traced: Start, told: Told, kind: str, change: dict[str, int], device: int, ran: list[str]
) -> None:
    """A launch reads one dimension of int64 on its own device, and nothing else."""
    with rigged(traced) as rig:
        rig.step(Step("backup"), Outcome())
        rig.step(Step("load"), Outcome())

        def changed(borrowed: Any) -> None:
            for name, value in change.items():
                setattr(borrowed, name, value)

        told.change = changed
        with pytest.MonkeyPatch.context() as patch:
            for plan in rig.plans():
                patch.setattr(plan, "ordinal", device)
            with noted() as seen:
                rig.step(Step(kind), Outcome())
        assert seen == ran
        assert not last_of(rig).skipped


@KINDS
def test_a_launch_reads_as_many_as_the_host_has(traced: Start, told: Told, kind: str) -> None:
    """Its digests would be of other pages."""
    few, asked = (ctypes.c_int64 * 1)(1), list[int]()

    def fewer(borrowed: Any) -> None:
        asked.append(borrowed.shape[0])
        if len(asked) % 2 == 0:  # the host's indices, behind the device's
            borrowed.shape = few

    with rigged(traced) as rig:
        rig.step(Step("backup"), Outcome())
        rig.step(Step("load"), Outcome())
        told.change = fewer
        assert ran_of(rig, Step(kind)) == END
        assert asked


@KINDS
@pytest.mark.parametrize(("end", "ran"), [("device", END), ("host", NONE)])
def test_two_dimensions_have_all_their_elements(
    traced: Start, told: Told, kind: str, end: str, ran: list[str]
) -> None:
    """Only the device's are read by a launch, in a row."""
    asked, shapes = list[int](), list[Any]()

    def deep(borrowed: Any) -> None:
        asked.append(borrowed.shape[0])
        if len(asked) % 2 == (end == "device"):
            shapes.append((ctypes.c_int64 * 2)(2, borrowed.shape[0] // 2))
            borrowed.shape, borrowed.dims = shapes[-1], 2

    with rigged(traced) as rig:
        rig.step(Step("backup"), Outcome())
        rig.step(Step("load"), Outcome())
        told.change = deep
        assert ran_of(rig, Step(kind)) == ran
        assert shapes
        assert not last_of(rig).skipped


@KINDS
def test_indices_begin_where_torch_says(traced: Start, told: Told, kind: str) -> None:
    """At an offset from an address."""

    def moved(borrowed: Any) -> None:
        borrowed.data -= 64
        borrowed.offset = 64

    with rigged(traced) as rig:
        rig.step(Step("backup"), Outcome())
        rig.step(Step("load"), Outcome())
        told.change = moved
        assert ran_of(rig, Step(kind)) == NONE
        rig.step(Step("load"), Outcome())
        assert last_of(rig).verified
        assert not last_of(rig).skipped


@KINDS
def test_a_tensor_of_which_torch_says_nothing_is_pythons(
    traced: Start, told: Told, kind: str
) -> None:
    """It is no failure."""
    with rigged(traced) as rig:
        rig.step(Step("backup"), Outcome())
        rig.step(Step("load"), Outcome())
        told.refuse()
        assert ran_of(rig, Step(kind)) == WHOLE
        assert not last_of(rig).skipped


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (None, f"torch {torch.__version__} lacks DLPack's exchange API: 2.10 has it"),
        (
            {"major": 2, "minor": 1},
            "ImportError: torch has version 2.1 of DLPack: expected 1",
        ),
        ({"name": b"dltensor"}, "ValueError: PyCapsule_GetPointer called with "),
        (1 << 40, "ValueError: PyCapsule_GetPointer called with "),  # an address
    ],
    ids=["missing", "major", "name", "number"],
)
def test_without_answers_about_tensors_everything_is_pythons(
    traced: Start, monkeypatch: pytest.MonkeyPatch, given: Any, why: str
) -> None:
    """The start-up line says why, and each copy is followed all the same."""
    name = "__dlpack_c_exchange_api__"
    other = Told(**given) if isinstance(given, dict) else None
    if given is None:
        monkeypatch.delattr(torch.Tensor, name)
    else:
        monkeypatch.setattr(torch.Tensor, name, given if other is None else other.capsule)
    with rigged(traced) as rig:
        for kind in ("backup", "load"):
            assert ran_of(rig, Step(kind)) == WHOLE
            assert not last_of(rig).skipped
        assert last_of(rig).verified
        wrappers = [vars(type(setup.pool)).get("load_to_device_per_layer") for setup in rig.setups]
        assert "Wrapper" not in {type(wrapper).__name__ for wrapper in wrappers}
        (started,) = rig.run.sink.of(Started)
        (said,) = (one for one in started.unrecognised if one.startswith("compiled helper: "))
        assert said.startswith(f"compiled helper: {why}")


def test_a_newer_minor_version_is_the_same(traced: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it adds lies behind what is used."""
    newer = Told(minor=9)
    monkeypatch.setattr(torch.Tensor, "__dlpack_c_exchange_api__", newer.capsule)
    with rigged(traced) as rig:
        assert ran_of(rig, Step("backup")) == NONE
