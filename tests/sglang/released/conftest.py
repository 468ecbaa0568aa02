"""SGLang's pools with stand-ins for its CUDA functions, and an attachment that tests can inspect."""

# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec

import pytest

with warnings.catch_warnings():  # what SGLang and its libraries say of themselves as they come in
    warnings.simplefilter("ignore")
    import released_cases  # noqa: F401 - imports SGLang
    from copy_stand_ins import install

    NAMES = (
        "memory_pool_host",
        *(f"pool_host.{n}" for n in ["mha", "mha_mxfp8", "mla", "dsa", "mamba", "qsa", "unified"]),
    )
    for name in (f"sglang.srt.mem_cache.{n}" for n in NAMES):
        if find_spec(name.rpartition(".")[0]) and find_spec(name):
            install([import_module(name)])
    for name in ("sglang.srt.managers.cache_controller", "sglang.srt.mem_cache.l2_transfer"):
        if find_spec(name):
            import_module(name)

from released_traced import Traced

from hicache_dbg.tracer.attach.sglang.start import trace
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.settings import Checksum, Gate, Native, Settings

#: Tests of what runs without and with the compiled helper.
BOTH_PATHS = {"test_beside", "test_gates", "test_load_tail", "test_open_copies", "test_requests"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of both paths twice."""
    if metafunc.definition.path.stem in BOTH_PATHS and "native" in metafunc.fixturenames:
        metafunc.parametrize("native", [Native.OFF, Native.ON], indirect=True)


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compile the helper in a folder of this run's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def native(request: pytest.FixtureRequest) -> Native:
    """Whether usual operations run in the compiled helper."""
    chosen: Native = getattr(request, "param", Native.OFF)
    return chosen


@pytest.fixture
def traced(native: Native) -> Iterator[Callable[..., Traced]]:
    """Attach with a memory sink; detach at the end."""
    running: list[Traced] = []

    def start(**settings: object) -> Traced:
        sink = MemorySink()
        given = {"gate": Gate.ON, "checksum": Checksum.THREE, "native": native, **settings}
        attachment = trace(Settings(**given), sinks=[sink])  # type: ignore[arg-type]
        running.append(Traced(attachment, sink))
        return running[-1]

    yield start
    for run in running:
        session = run.attachment.observer.session()
        run.attachment.detach()
        if session is not None:
            session.close()
