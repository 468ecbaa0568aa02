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
from hicache_dbg.tracer.settings import Checksum, Gate, Settings


@pytest.fixture
def traced() -> Iterator[Callable[..., Traced]]:
    """Attach with a memory sink; detach at the end."""
    running: list[Traced] = []

    def start(**settings: object) -> Traced:
        sink = MemorySink()
        given = {"gate": Gate.ON, "checksum": Checksum.THREE, **settings}
        attachment = trace(Settings(**given), sinks=[sink])  # type: ignore[arg-type]
        running.append(Traced(attachment, sink))
        return running[-1]

    yield start
    for run in running:
        session = run.attachment.observer.session()
        run.attachment.detach()
        if session is not None:
            session.close()
