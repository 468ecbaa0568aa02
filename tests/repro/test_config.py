"""Invalid settings are refused."""

import pytest
import torch

from hicache_dbg.pools.geometry import IoBackend
from hicache_dbg.repro.config import ConfigError, RunConfig
from hicache_dbg.repro.engine import DeviceMissing, plan_of, torch_device
from hicache_dbg.repro.faults.registry import fault_named


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sessions": 0}, "sessions is 0, expected at least 1"),
        ({"device_pages": 0}, "device_pages is 0, expected at least 1"),
        ({"ctx": 3}, "ctx is 3, expected at least 4"),
        ({"ctx": 999_999_999}, "ctx is 999999999, expected at most 1000000"),
        ({"sessions": 10**30}, f"sessions is {10**30}, expected at most 10000"),
        ({"rounds": 10_001}, "rounds is 10001, expected at most 10000"),
        ({"max_tokens": 10**9}, "max_tokens is 1000000000, expected at most 1000000"),
        ({"host_pages": 10**9}, "host_pages is 1000000000, expected at most 100000000"),
        ({"scale": 513}, "scale is 513, expected at most 512"),
        ({"timeout": 0.0}, "timeout is 0.0, expected above 0 seconds"),
        ({"seed": -1}, "seed is -1, expected at least 0"),
        ({"index_dtype": "fp4"}, "index_dtype is 'fp4', expected one of bf16, fp8"),
        ({"pools": "gqa"}, "pools is 'gqa', expected one of mla_index_k, mha, deepseek_v4"),
        ({"device": "tpu"}, "device is 'tpu', expected one of cpu, cuda"),
        ({"model": "gpt"}, "model is 'gpt', expected smollm2"),
        (
            {"layout": "page_head"},
            (
                "layout is 'page_head', expected one of layer_first, page_first, page_first_direct "
                "for pools mla_index_k"
            ),
        ),
        (
            {"layout": "diagonal", "pools": "mha"},
            (
                "layout is 'diagonal', expected one of layer_first, page_first, page_first_direct, "
                "page_head for pools mha"
            ),
        ),
        (
            {"io_backend": "rdma", "layout": "layer_first"},
            "io_backend is 'rdma', expected one of kernel, direct for layout layer_first",
        ),
        (
            {"io_backend": "direct"},
            "io_backend is 'direct', expected kernel for layout page_first",
        ),
    ],
)
def test_a_value_that_cannot_be_is_named(settings: dict[str, object], message: str) -> None:
    """The message is one line with the setting, its value and the allowed values."""
    with pytest.raises(ConfigError) as error:
        RunConfig(**settings)  # type: ignore[arg-type]  # wrong on purpose
    assert str(error.value) == message


def test_a_layout_has_its_backend() -> None:
    """page_first_direct defaults to the direct backend, the others to the kernel; an explicit one wins."""
    assert RunConfig(layout="page_first_direct").backend is IoBackend.DIRECT
    assert RunConfig(layout="page_first").backend is IoBackend.KERNEL
    assert RunConfig(layout="page_head", pools="mha").backend is IoBackend.KERNEL
    assert RunConfig(layout="layer_first", io_backend="direct").backend is IoBackend.DIRECT


def test_an_unknown_fault_is_named() -> None:
    """The message says where the names are listed, and which are similar."""
    with pytest.raises(ConfigError, match=r"fault is 'x', expected a name that .* faults lists$"):
        fault_named("x")
    with pytest.raises(ConfigError, match="did you mean stored_bit_flips or "):
        fault_named("stored_bits_flip")


def test_the_first_prompt_suits_the_pool_set() -> None:
    """A page of deepseek_v4 holds 256 tokens: its prompts are longer by default."""
    assert RunConfig().first_prompt == 300
    assert RunConfig(pools="deepseek_v4").first_prompt == 780
    assert RunConfig(pools="deepseek_v4", ctx=40).first_prompt == 40


def test_a_fault_without_its_pool_is_refused() -> None:
    """A fault in the mirror of index-K is refused by a pool set without index-K."""
    with pytest.raises(ConfigError, match=r"host_sized_for_fp8 .* none .* mha; use pools mla_inde"):
        fault_named("host_sized_for_fp8").apply(plan_of(RunConfig(pools="mha")))


def test_a_device_that_is_not_here_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a CUDA device the message says so, and what else to do."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceMissing, match=r"'cuda', but torch .* finds no CUDA device here; use"):
        torch_device("cuda")
    assert torch_device("cpu") == torch.device("cpu")
