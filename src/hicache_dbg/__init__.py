"""hicache-dbg: tells whether a tiered KV cache keeps every byte, and names the culprit when not.

Importing this package looks at one environment variable and at nothing else: with
``HICACHE_DBG`` unset no wrapper is installed and neither torch nor an exporter is imported.
"""

import os

__all__ = ["__version__"]

__version__ = "0.1.0"

if os.environ.get("HICACHE_DBG"):
    from hicache_dbg.tracer import autoattach

    autoattach.install()
