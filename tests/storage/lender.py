"""Store pages in memory lent to a Mooncake Store, and wait to be killed.

python -m tests.storage.lender MASTER METADATA_URL PAGES
"""

import signal
import sys

from tests.pools.stored import Bench

from hicache_dbg.pools.storage.mooncake import MooncakeStore

if __name__ == "__main__":
    address, metadata, pages = sys.argv[1:]
    bench = Bench(MooncakeStore(address, metadata, segment_bytes=32 << 20))
    bench.store(int(pages))
    sys.stdout.write("stored\n")
    sys.stdout.flush()
    signal.pause()
