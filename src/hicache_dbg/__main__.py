"""``python -m hicache_dbg``: the command."""

import sys

from hicache_dbg.tracer.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
