"""Tile digests: XXH3-64 on the CPU and on the GPU, behind one interface."""

from hicache_dbg.tracer.digest.cpu import CpuDigester

__all__ = ["CpuDigester"]
