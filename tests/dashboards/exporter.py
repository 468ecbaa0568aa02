"""Copy pages through the engine's pools under the gate, and serve the metrics.

Run as a script with ``HICACHE_DBG=1`` and a Prometheus port. It prints ``ready`` once the first
pages have come back, and keeps copying until its standard input closes.
"""

import sys
import threading

import numpy as np
from prometheus_client import REGISTRY

from hicache_dbg.exporters.prometheus_gpu import GpuCollector
from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.pools.device import DevicePool
from hicache_dbg.pools.geometry import Layout
from hicache_dbg.pools.host import Mirror, host_geometry_like, host_pool_for
from hicache_dbg.pools.kinds import index_k, mla
from hicache_dbg.tracer.dashboards.vocabulary import OneGpu

TOKENS_PER_PAGE = 64
LAYERS = 2
PAUSE_S = 0.02


def turn(cache: HiCacheController, tokens: np.ndarray) -> int:
    """Load what is cached of ``tokens``, compute the rest, and return how many pages came back."""
    match = cache.match(tokens)
    ticket = cache.load_back(match)
    for layer in range(LAYERS):
        cache.wait_layer(layer, ticket)
    cached = len(match.device_pages) + len(match.host_pages)
    missing = len(tokens) // TOKENS_PER_PAGE - cached
    if missing:
        cache.insert(tokens, np.concatenate([match.device_pages, cache.alloc_device(missing)]))
    cache.unlock(match)
    cache.flush()
    return len(match.host_pages)


def _until_told(done: threading.Event) -> None:
    sys.stdin.read()
    done.set()


def main() -> None:
    """Alternate between two sequences that do not fit on the device together."""
    # In place of that of this machine, which may have no GPU.
    REGISTRY.unregister(REGISTRY._names_to_collectors["hicache_dbg_nvml_state"])
    REGISTRY.register(GpuCollector(OneGpu()))
    mirrors = []
    for geometry in (mla(LAYERS, TOKENS_PER_PAGE), index_k(LAYERS, TOKENS_PER_PAGE)):
        pool = DevicePool(geometry, 6)
        host = host_pool_for(host_geometry_like(pool), 16, Layout.PAGE_FIRST)
        mirrors.append(Mirror(pool, host))
    done = threading.Event()
    threading.Thread(target=_until_told, args=(done,), daemon=True).start()
    sequences = [np.full(4 * TOKENS_PER_PAGE, number, np.int32) for number in (1, 2)]
    with HiCacheController(tuple(mirrors)) as cache:
        ready = False
        while not done.wait(PAUSE_S):
            back = sum(turn(cache, tokens) for tokens in sequences)
            if back and not ready:
                ready = True
                print("ready", flush=True)  # noqa: T201 - the test waits for it


if __name__ == "__main__":
    main()
