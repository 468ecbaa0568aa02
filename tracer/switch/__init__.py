"""Tracing switched on and off in a process that runs, without a restart.

``HICACHE_DBG=armed`` starts a listener and nothing else. It takes settings, never code.
"""
