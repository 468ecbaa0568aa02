"""Settings that cannot be."""

import pytest

from hicache_dbg.pools.geometry import IoBackend
from hicache_dbg.repro.config import ConfigError, RunConfig
from hicache_dbg.repro.faults.registry import fault_named


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sessions": 0}, "sessions is 0, expected at least 1"),
        ({"device_pages": 0}, "device_pages is 0, expected at least 1"),
        ({"ctx": 3}, "ctx is 3, expected at least 4"),
        ({"timeout": 0.0}, "timeout is 0.0, expected above 0 seconds"),
        ({"seed": -1}, "seed is -1, expected at least 0"),
        ({"index_dtype": "fp4"}, "index_dtype is 'fp4', expected one of bf16, fp8"),
        ({"pools": "mha"}, "pools is 'mha', expected one of mla_index_k"),
        (
            {"layout": "page_head"},
            "layout is 'page_head', expected one of layer_first, page_first, page_first_direct",
        ),
        ({"io_backend": "rdma"}, "io_backend is 'rdma', expected one of kernel, direct"),
    ],
)
def test_a_value_that_cannot_be_is_named(settings: dict[str, object], message: str) -> None:
    """The message is one line with the setting, its value and what is allowed."""
    with pytest.raises(ConfigError) as error:
        RunConfig(**settings)  # type: ignore[arg-type]  # wrong on purpose
    assert str(error.value) == message


def test_a_layout_has_its_backend() -> None:
    """page_first_direct is made for the direct backend, the others for the kernel; asked wins."""
    assert RunConfig(layout="page_first_direct").backend is IoBackend.DIRECT
    assert RunConfig(layout="page_first").backend is IoBackend.KERNEL
    assert RunConfig(layout="layer_first", io_backend="direct").backend is IoBackend.DIRECT


def test_an_unknown_fault_is_named() -> None:
    """The message lists the faults there are."""
    with pytest.raises(ConfigError, match="fault is 'x', expected one of host_sized_for_fp8, "):
        fault_named("x")
