"""Which copies run in CUDA's relaxed capture mode."""

from contextlib import nullcontext

import pytest
import torch

from hicache_dbg.pools.captures import guard_for


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_without_cuda_copies_run_unguarded(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    """ROCm calls its devices cuda too; it has no CUDA driver to ask."""
    monkeypatch.setattr(torch.version, "cuda", None)
    assert guard_for(torch.device(device)) is nullcontext
