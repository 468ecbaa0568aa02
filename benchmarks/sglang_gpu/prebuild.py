# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false
"""Compile one of SGLang's run-time kernels into its cache: python prebuild.py KIND [BYTES].

SGLang compiles each kernel on first use, one after another, 13 to 16 s each. In parallel they take a
minute. ``--list`` prints the arguments for all kernels that the round trips use, ``--list-served`` for
those that ``serve.py``'s requests use.
"""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

ROWS = (256, 1024, 1152, 2048, 4096)
STAGED = (256, 1024, 1152, 1728, 2048, 4096, 8448, 37440, 65536, 149760)
#: A model of heads of 128 and rows of 2,048 B: positions, rotary embedding, activation, writing of KV.
SERVED = ("rows 2048", "staged 2048", "positions 0", "rotary 128", "activation 0", "store 2048")


def main(kind: str, size: int = 0) -> None:
    """Import SGLang and build."""
    import prelude  # noqa: F401
    from sglang.kernels.ops.kvcache import hicache

    if kind == "rows":
        hicache.can_use_hicache_jit_kernel(element_size=size)
    elif kind == "staged":
        hicache.can_use_write_back_jit_kernel(element_size=size)
    elif kind == "tma" and hasattr(hicache, name := "_jit_hicache_tma_module"):
        getattr(hicache, name)(block_quota=hicache.TMA_BLOCK_QUOTA)
    elif kind == "mamba":
        from sglang.kernels.ops.mamba.transfer_mamba import _jit_transfer_mamba_module

        _jit_transfer_mamba_module()
    elif kind == "dsv4":
        from sglang.kernels.ops.kvcache.hisparse import _jit_dsv4_transfer_module

        _jit_dsv4_transfer_module(1024)
    else:
        _served(kind, size)


def _served(kind: str, size: int) -> None:
    if kind == "positions":
        from sglang.kernels.ops.attention.clamp_position import _jit_clamp_position_module

        _jit_clamp_position_module(torch.int64)
    elif kind == "rotary":
        from sglang.kernels.ops.attention.rope import _jit_fused_rope_module

        _jit_fused_rope_module(
            is_neox=True, rope_dim=size, dtype=torch.bfloat16, q_dtype=torch.bfloat16
        )
    elif kind == "activation":
        from sglang.kernels.ops.activation.activation import activation_module

        activation_module(torch.bfloat16)
    elif kind == "store":
        from sglang.kernels.ops.kvcache.kvcache import can_use_store_cache

        can_use_store_cache(size, size)


if __name__ == "__main__":
    if sys.argv[1] == "--list":
        for line in (*(f"rows {n}" for n in ROWS), *(f"staged {n}" for n in STAGED)):
            print(line)
        print("tma 0\nmamba 0\ndsv4 0")
    elif sys.argv[1] == "--list-served":
        print("\n".join(SERVED))
    else:
        main(sys.argv[1], int(sys.argv[2]))
