"""Switch tracing on and off in a running process, without a restart.

``HICACHE_DBG=armed`` starts a listener and nothing else. The listener accepts settings, never code.
"""
