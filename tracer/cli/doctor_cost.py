"""Estimate quickly what tracing would cost on this machine, per MiB that moves."""

import time

__all__ = ["expected_cost"]

#: More bytes than the CPU caches hold, in pages of a common size.
PAGE_BYTES, PAGES, ROUNDS = 64 * 1024, 256, 3

#: How often each level reads the bytes of a copy, on the thread that copies.
READS = {"off": 0, "loads": 1, "ends": 1, "three": 3}


def expected_cost(*, gpu: bool) -> str:
    """Return a sentence with the digest rate of one core and the resulting cost of each level."""
    if gpu:
        return (
            "device pages are digested on the GPU beside the copies; "
            "hicache-dbg bench --device cuda measures it here"
        )
    rate = _rate()
    per_mib = (1 << 20) / rate * 1e6
    levels = ", ".join(f"{level} {reads * per_mib:.0f} us" for level, reads in READS.items())
    return (
        f"one core hashes {rate / 1e9:.1f} GB/s (XXH3). Tracing adds per MiB copied, by level: {levels}; "
        "hicache-dbg bench measures whole runs"
    )


def _rate() -> float:
    """Return the bytes per second of the best round, since other processes may use the core."""
    import numpy as np
    import xxhash

    memory = np.ones(PAGES * PAGE_BYTES, np.uint8)
    pages = [memory[at : at + PAGE_BYTES] for at in range(0, memory.size, PAGE_BYTES)]
    best = 0.0
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for page in pages:
            xxhash.xxh3_64_intdigest(page.data)
        best = max(best, memory.size / (time.perf_counter() - began))
    return best
