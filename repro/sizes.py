"""The size of a run: its workload, its pages, and whether this machine has room for them."""

import os
from dataclasses import replace

import torch

from hicache_dbg.repro.chats.workload import ChatWorkload
from hicache_dbg.repro.config import ConfigError, RunConfig
from hicache_dbg.repro.engine import torch_device
from hicache_dbg.repro.oracle import TRUTH_BATCH
from hicache_dbg.repro.sessions import SessionWorkload
from hicache_dbg.repro.trace import Trace, TraceWorkload
from hicache_dbg.repro.workload import Workload
from hicache_dbg.tracer.words import counted

__all__ = ["sized", "truth_sessions", "workload_of"]


def workload_of(config: RunConfig, trace: Trace | None) -> Workload:
    """Return the chats, the sessions, or the requests of ``trace``."""
    if config.model:
        return ChatWorkload(config)
    return SessionWorkload(config) if trace is None else TraceWorkload(trace, config.scale)


def truth_sessions(workload: Workload, trace: Trace | None) -> int:
    """Return how many sessions hold pages at once while the ground truth is computed."""
    # Sessions keep their pages between turns; a request of a trace has one turn only.
    return len(workload.transcripts) if trace is None else TRUTH_BATCH


def sized(config: RunConfig, trace: Trace | None) -> RunConfig:
    """Fill in the sizes left open.

    Raises:
        ConfigError: the pools do not hold one session, or this machine cannot hold the pools.
    """
    pool_set = config.pool_set
    if not config.model:
        config = replace(config, ctx=config.first_prompt)
    workload = workload_of(config, trace)
    tokens = workload.longest()
    needed = config.pages_of(tokens)
    natural = pool_set.session_device_pages if trace is None else pool_set.trace_device_pages
    pages = config.device_pages or natural or needed
    # With storage, the host is made as small as the device, so that pages spill into storage.
    host = config.host_pages or (pages if config.storage else pool_set.host_pages)
    for name, given in (("device_pages", pages), ("host_pages", host)):
        if given < needed:
            raise ConfigError(
                f"{name} is {given}, but one session needs {counted(needed, 'page')} "
                f"({counted(tokens, 'token')} at most); raise {name} or ask for less"
            )
    truth = 0 if pool_set.alone else needed * truth_sessions(workload, trace)
    _require_room(config, pages, host, truth)
    return replace(config, device_pages=pages, host_pages=host)


def _require_room(config: RunConfig, device: int, host: int, truth: int) -> None:
    """Refuse pools that exceed this machine's memory, or the GPU's, before they are built."""
    geometries = config.pool_set.geometries(config.index_dtype)
    page_bytes = sum(geometry.page_bytes() * geometry.layers for geometry in geometries)
    ours = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    sums = [(device + host + truth, ours, "this machine")]
    if config.device == "cuda":
        gpu = torch.cuda.get_device_properties(torch_device("cuda")).total_memory
        sums = [(device + truth, gpu, "the GPU"), (host, ours, "this machine")]
    for pages, room, where in sums:
        if pages * page_bytes > room:
            raise ConfigError(
                f"device_pages {device}, host_pages {host} and {truth} pages of the ground truth take "
                f"{pages * page_bytes / 1e9:.1f} GB of {where}, which has {room / 1e9:.1f} GB; "
                "ask for fewer pages, sessions or tokens"
            )
