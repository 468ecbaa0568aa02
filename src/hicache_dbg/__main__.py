"""``python -m hicache_dbg``: the command."""

import sys

from hicache_dbg.tracer.cli.main import main

sys.exit(main())
