"""Chats with a real model: the same turns with everything computed anew, and through the tiers."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

import torch

from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.pools.group import PoolGroup
from hicache_dbg.pools.transfer import TransferError
from hicache_dbg.pools.transformers_cache import PrefixStore, geometry_of
from hicache_dbg.repro.chats.smollm2 import Chatbot, load
from hicache_dbg.repro.chats.texts import CHATS, SYSTEM
from hicache_dbg.repro.config import ConfigError, RunConfig
from hicache_dbg.repro.engine import device_pools, mirrors, plan_of
from hicache_dbg.repro.fault_place import misplaced
from hicache_dbg.repro.faults.base import Fault, Target
from hicache_dbg.repro.oracle import judge
from hicache_dbg.repro.result import EngineStats, Exchange, RunResult
from hicache_dbg.repro.run import OnProgress
from hicache_dbg.repro.workload import End, Reply, Stop, Transcript

__all__ = ["run_chats"]

PAGE_TOKENS = 16
HOST_PAGES = 512


@dataclass(slots=True)
class _Hits:
    """Pages that were there already, by where."""

    host: int = 0
    device: int = 0


@dataclass(slots=True)
class _Chats:
    """Transcripts and messages of all chats, in whichever way their replies are made."""

    bot: Chatbot
    count: int
    turns: int
    most: int
    transcripts: dict[int, Transcript] = field(default_factory=dict)
    texts: dict[tuple[int, int], str] = field(default_factory=dict)
    _messages: dict[int, list[dict[str, str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.transcripts = {chat: Transcript() for chat in range(self.count)}
        self._messages = {chat: [_said("system", SYSTEM)] for chat in range(self.count)}

    def prompts(self) -> Iterator[tuple[int, int, list[int]]]:
        """Chat, turn and prompt, a turn of each chat after the other; each wants :meth:`answered`."""
        for turn in range(self.turns):
            for chat in range(self.count):
                if self.transcripts[chat].end is None:
                    self._messages[chat].append(_said("user", CHATS[chat][turn]))
                    yield chat, turn, self.bot.prompt(self._messages[chat])

    def answered(self, chat: int, turn: int, tokens: Sequence[int]) -> None:
        """Take a reply; the next question of the chat is asked after it."""
        text = self.bot.text(tokens)
        stop = Stop.END if tokens and self.bot.ends(tokens[-1]) else Stop.LENGTH
        self._took(chat, turn, Reply(tuple(tokens), stop), text)
        self._messages[chat].append(_said("assistant", text))

    def failed(self, chat: int, turn: int, error: str) -> None:
        """Take note that there is no reply; the chat is over."""
        self._took(chat, turn, Reply((), Stop.ERROR, error), f"({error})")
        self.transcripts[chat].end = End.ERROR

    def _took(self, chat: int, turn: int, reply: Reply, text: str) -> None:
        self.texts[chat, turn] = text
        transcript = self.transcripts[chat]
        transcript.replies.append(reply)
        if turn == self.turns - 1:
            transcript.end = End.DONE


def run_chats(
    config: RunConfig, fault: Fault | None = None, on_progress: OnProgress | None = None
) -> RunResult:
    """Hold every chat twice, without tiers and through them, and compare what was said.

    ``config.sessions`` chats of ``config.rounds`` turns (as many as there are at most) run side by
    side, a turn of each after the other, with ``config.max_tokens`` a reply at most.

    Raises:
        ModelMissingError: the model is not installed.
        ConfigError: the device pool holds no chat, or the fault has no place here.
    """
    report = on_progress or (lambda _done, _total, _text: None)
    config = replace(
        config,
        pools="mha",
        sessions=min(config.sessions, len(CHATS)),
        rounds=min(config.rounds, len(CHATS[0])),
    )
    total = 2 * config.sessions * config.rounds
    report(0, total, "loading the model")
    bot = load()
    started = time.perf_counter()
    truth, chats = (
        _Chats(bot, config.sessions, config.rounds, config.max_tokens) for _ in range(2)
    )
    longest = _without_tiers(truth, lambda done: report(done, total, "without tiers"))
    known = time.perf_counter() - started
    config = _sized(config, longest)
    stats, error = _through_tiers(config, chats, fault, report)
    return RunResult(
        config=config,
        fault=fault.name if fault else "",
        reports=judge(truth.transcripts, chats.transcripts),
        stats=stats,
        wall_seconds=time.perf_counter() - started,
        truth_seconds=known,
        engine_error=error,
        truth=truth.transcripts,
        exchanges=tuple(_exchanges(truth, chats)),
    )


def _without_tiers(chats: _Chats, report: Callable[[int], None]) -> int:
    """Hold the chats with everything computed anew; the most tokens that one came to."""
    longest = 0
    for done, (chat, turn, prompt) in enumerate(chats.prompts()):
        report(done)
        longest = max(longest, len(prompt) + chats.most)
        chats.answered(chat, turn, chats.bot.reply(prompt, chats.most))
    return longest


def _sized(config: RunConfig, longest: int) -> RunConfig:
    """By default the device holds the longest chat and nothing more: the others wait on the host."""
    needed = -(-longest // PAGE_TOKENS)
    pages = config.device_pages or needed
    if pages < needed:
        raise ConfigError(
            f"device_pages is {pages}, but one chat needs {needed} pages of {PAGE_TOKENS} tokens; "
            "raise device_pages or ask for less"
        )
    return replace(config, device_pages=pages, host_pages=config.host_pages or HOST_PAGES)


def _through_tiers(
    config: RunConfig, chats: _Chats, fault: Fault | None, report: OnProgress
) -> tuple[EngineStats, str]:
    """Hold the chats through the tiers: what the engine did, and what failed unnoticed."""
    plan = replace(
        plan_of(config), pools=(geometry_of(chats.bot.model.config, PAGE_TOKENS, torch.float32),)
    )
    if fault is not None:
        if fault.stage != "cache":
            raise misplaced(fault)
        plan = fault.apply(plan)
    total = 2 * config.sessions * config.rounds
    pools = device_pools(plan.pools, config.device_pages or 0, torch.device("cpu"))
    hits, error = _Hits(), ""
    with closing(PoolGroup(mirrors(plan, pools))) as group:
        controller = HiCacheController(group, io_backend=plan.io_backend)
        try:
            if fault is not None:
                fault.install(Target(controller))
            store = PrefixStore(controller)
            for done, (chat, turn, prompt) in enumerate(chats.prompts()):
                report(total // 2 + done, total, "through the tiers")
                _turn(chats, store, chat, turn, prompt, hits)
                controller.flush()  # nothing is under way between turns: a run is its seed's
        except TransferError as failed:
            error = str(failed)
        finally:
            error = _closed(controller) or error
    done_by = controller.stats
    return (
        EngineStats(
            loads=done_by.loads,
            backups=done_by.backups,
            host_hit_pages=hits.host,
            device_hit_pages=hits.device,
            evicted_pages=done_by.evicted,
        ),
        error,
    )


def _turn(  # noqa: PLR0917
    chats: _Chats, store: PrefixStore, chat: int, turn: int, prompt: list[int], hits: _Hits
) -> None:
    with store.open(prompt, chats.most) as cache:
        hits.host += cache.loaded // store.page_tokens
        hits.device += (cache.cached - cache.loaded) // store.page_tokens
        try:
            tokens = chats.bot.reply(prompt, chats.most, cache)
        except TransferError as error:
            chats.failed(chat, turn, str(error))
            return
        cache.keep([*prompt, *tokens])
    chats.answered(chat, turn, tokens)


def _closed(controller: HiCacheController) -> str:
    try:
        controller.close()
    except TransferError as error:
        return str(error)
    return ""


def _exchanges(truth: _Chats, chats: _Chats) -> Iterator[Exchange]:
    for (chat, turn), got in sorted(chats.texts.items()):
        expected = truth.texts.get((chat, turn), "")
        yield Exchange(chat, turn, CHATS[chat][turn], expected, got)


def _said(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}
