"""Measure requests per second of the prefix tree on a conversation trace, beside SGLang's RadixCache.

    python benchmarks/radix.py --trace mooncake_conversation_trace.jsonl --peer PYTHON

Each line of a trace is a JSON object whose ``hash_ids`` name the request's blocks of 512 tokens. A
request is matched and inserted, then what exceeds the room is evicted; only these calls are timed.
Both sides start from one array of token ids. Our time includes the conversion into a key, the peer's
does not. Every replay runs in its own process, ours and the peer's in turn, and the table shows the
medians of the rounds.

PYTHON is the interpreter of an environment with sglang installed. This file runs under it too, so
nothing of ours is imported at the top.
"""

import argparse
import json
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

BLOCK = 512
Tokens = npt.NDArray[np.int64]
now = time.perf_counter


class Engine(Protocol):
    """A prefix cache under test; sizes are in tokens."""

    def key(self, tokens: Tokens) -> Any:
        """Bring the tokens into the form a caller holds; not timed."""
        ...

    def match(self, key: Any) -> int:
        """Return how many tokens are cached."""
        ...

    def values(self, key: Any) -> Any:
        """Return the ids to insert: those of the last match, then new ones; not timed."""
        ...

    def insert(self, key: Any, values: Any) -> None:
        """Cache the whole key."""
        ...

    def evict(self, room: int) -> None:
        """Evict until no more than ``room`` tokens are cached."""
        ...


class Ours:
    """This repository's tree, device end only."""

    def __init__(self, page: int) -> None:
        from hicache_dbg.pools.radix import RadixTree

        self.tree = RadixTree(page)
        self._page = page
        self._next = 0

    def key(self, tokens: Tokens) -> Tokens:
        """Return what the engine takes."""
        return tokens

    def match(self, key: Tokens) -> int:
        """Return how many tokens are cached."""
        self._encoded = self.tree.encode(key)
        self._match = self.tree.match(self._encoded)
        return self._match.pages * self._page

    def values(self, key: Tokens) -> npt.NDArray[np.int64]:
        """Return the ids of the last match and new ones."""
        first = self._next
        self._next += key.size // self._page - self._match.pages
        new = np.arange(first, self._next, dtype=np.int64)
        return np.concatenate([self._match.device_pages, new])

    def insert(self, key: Tokens, values: npt.NDArray[np.int64]) -> None:
        """Cache the whole key."""
        assert key.size * 4 == len(self._encoded), "a key is matched before it is inserted"
        self.tree.insert(self._encoded, values)

    def evict(self, room: int) -> None:
        """Evict until no more than ``room`` tokens are cached."""
        over = self.tree.stats.evictable_device - room // self._page
        if over > 0:
            self.tree.evict_device(over)


class Peer:
    """SGLang's RadixCache over an allocator that does nothing."""

    def __init__(self, page: int) -> None:
        import torch

        api: Any = import_module("sglang.srt.mem_cache.base_prefix_cache")
        radix: Any = import_module("sglang.srt.mem_cache.radix_cache")

        class Allocator:
            device = "cpu"

            def free(self, *_: Any, **__: Any) -> None: ...

            free_segment = free

        # Its copies are small: with more threads it is up to eight times slower.
        torch.set_num_threads(1)
        self._torch, self._api, self._key = torch, api, radix.RadixKey
        self._cache = radix.RadixCache.create_simulated(page_size=page, mock_allocator=Allocator())
        self._page = page
        self._next = 0

    def key(self, tokens: Tokens) -> Any:
        """Return what the engine takes."""
        return self._key(array("q", tokens.tobytes()), None)

    def match(self, key: Any) -> int:
        """Return how many tokens are cached."""
        self._match = self._cache.match_prefix(self._api.MatchPrefixParams(key=key))
        return int(self._match.device_prefix_len)

    def values(self, key: Any) -> Any:
        """Return the ids of the last match and new ones."""
        first, known = self._next, self._match
        self._next += len(key) // self._page * self._page - known.device_prefix_len
        kept = self._cache.path_device_indices(known.last_device_node).to(self._torch.int64)
        return self._torch.cat([kept, self._torch.arange(first, self._next)])

    def insert(self, key: Any, values: Any) -> None:
        """Cache the whole key."""
        self._cache.insert(self._api.InsertParams(key=key, value=values))

    def evict(self, room: int) -> None:
        """Evict until no more than ``room`` tokens are cached."""
        over = self._cache.evictable_size() - room
        if over > 0:
            self._cache.evict(self._api.EvictParams(num_tokens=over))


ENGINES: dict[str, Callable[[int], Engine]] = {"ours": Ours, "peer": Peer}


@dataclass(frozen=True)
class Replay:
    """Seconds spent in each call over one replay."""

    requests: int
    tokens: int
    hit_tokens: int
    match: float
    insert: float
    evict: float

    @property
    def seconds(self) -> float:
        """All timed calls together."""
        return self.match + self.insert + self.evict

    def row(self) -> str:
        """Return the columns of the table."""
        us = [1e6 * t / self.requests for t in (self.match, self.insert, self.evict)]
        return (
            f"{us[0]:9.1f} {us[1]:9.1f} {us[2]:9.1f} {self.requests / self.seconds:11,.0f} "
            f"{self.tokens / self.seconds / 1e6:9.1f} {self.hit_tokens / self.tokens:6.3f}"
        )


COLUMNS = " match us insert us  evict us  requests/s    Mtok/s    hit"


def synthetic_trace(requests: int, seed: int = 0) -> list[list[int]]:
    """Make conversations of several turns over a few shared system prompts."""
    rng = np.random.default_rng(seed)
    fresh = iter(range(10, 10**9))
    open_talks: list[list[int]] = []
    trace = []
    for _ in range(requests):
        if len(open_talks) < 50 or rng.random() < 0.6:
            blocks = [int(rng.zipf(1.5)) % 10]
        else:
            blocks = open_talks.pop(int(rng.integers(len(open_talks))))
        blocks = blocks + [next(fresh) for _ in range(1 + int(rng.exponential(16)))]
        trace.append(blocks)
        if rng.random() < 0.8:
            open_talks.append(blocks)
            del open_talks[:-2000]
    return trace


def trace_requests(path: Path | None, requests: int) -> Iterator[Tokens]:
    """Yield each request's tokens."""
    if path is None:
        trace = synthetic_trace(requests)
    else:
        with path.open() as lines:
            trace = [json.loads(line)["hash_ids"] for line in islice(lines, requests)]
    inside = np.arange(BLOCK, dtype=np.int64)
    for blocks in trace:
        yield (np.array(blocks, dtype=np.int64)[:, None] * BLOCK + inside).reshape(-1)


def replay(engine: Engine, requests: Iterable[Tokens], room: int) -> Replay:
    """Send the requests through a cache with room for ``room`` tokens."""
    match = insert = evict = 0.0
    count = hits = total = 0
    for tokens in requests:
        key = engine.key(tokens)
        start = now()
        hit = engine.match(key)
        match += now() - start
        values = engine.values(key)
        start = now()
        engine.insert(key, values)
        inserted = now()
        engine.evict(room)
        evict += now() - inserted
        insert += inserted - start
        count += 1
        hits += hit
        total += tokens.size
    return Replay(count, total, hits, match, insert, evict)


def probe(engine: Engine, page: int, pages: int, probes: int) -> Replay:
    """Time one kind of request in a tree that always holds ``pages`` pages.

    A request is 192 pages: the first half is cached, the second is new and evicts as much, so a
    request is the same work at every size.
    """
    half = 96 * page
    talks = max(2, pages // 192)
    repeated = talks // 2  # few enough that a first half is requested again before it is the oldest

    def tokens(seed: int) -> Tokens:
        return np.random.default_rng(seed).integers(0, 150_000, 2 * half)

    def fill() -> Iterator[Tokens]:
        for talk in range(talks):
            yield tokens(talk)[:half]
            yield tokens(talk)

    def ask() -> Iterator[Tokens]:
        for i in range(probes):
            yield np.concatenate([tokens(i % repeated)[:half], tokens(talks + i)[half:]])

    replay(engine, fill(), pages * page)
    return replay(engine, ask(), pages * page)


def run_process(python: str, options: list[str]) -> Replay:
    """Run one replay under ``python``, with this file's hidden options."""
    command = [python, __file__, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return Replay(**json.loads(done.stdout.splitlines()[-1]))


def median(runs: list[Replay]) -> Replay:
    """Return the run whose time is in the middle."""
    return sorted(runs, key=lambda r: r.seconds)[len(runs) // 2]


def compare(title: str, pythons: dict[str, str], options: list[str], rounds: int) -> None:
    """Run every engine in turn, ``rounds`` times, and print the medians and their ratio."""
    runs: dict[str, list[Replay]] = {name: [] for name in pythons}
    for _ in range(rounds):
        for name, python in pythons.items():
            runs[name].append(run_process(python, ["--engine", name, *options]))
    medians = {name: median(done) for name, done in runs.items()}
    for name, m in medians.items():
        ratio = m.seconds / medians["ours"].seconds
        beside = "" if name == "ours" else f"  ours is {ratio:.1f} times as fast"
        print(f"{title:>10} {name:>5} {m.row()}{beside}", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trace", type=Path, help="default: a synthetic one")
    parser.add_argument("--requests", type=int, default=12_031)
    parser.add_argument("--page", type=int, default=64, help="tokens a page")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--probes", type=int, default=2_000)
    parser.add_argument("--rooms", type=float, nargs="+", default=[3e6, 3e7], help="tokens")
    parser.add_argument("--sizes", type=float, nargs="+", default=[1e4, 3e4, 1e5, 3e5, 1e6])
    parser.add_argument("--peer", help="interpreter of an environment with sglang installed")
    for hidden in ("--engine", "--room", "--size"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    args = parse()
    if args.engine:
        engine = ENGINES[args.engine](args.page)
        if args.size:
            result = probe(engine, args.page, int(args.size), args.probes)
        else:
            requests = trace_requests(args.trace, args.requests)
            result = replay(engine, requests, int(args.room))
        print(json.dumps(asdict(result)))
        return
    pythons = {"ours": sys.executable} | ({"peer": args.peer} if args.peer else {})
    common = ["--page", str(args.page), "--probes", str(args.probes)]
    trace = ["--requests", str(args.requests)]
    if args.trace:
        trace += ["--trace", str(args.trace)]
        print(f"trace {args.trace.name}, page {args.page}, medians of {args.rounds} rounds")
    else:
        print(f"no --trace: a synthetic one, page {args.page}, medians of {args.rounds} rounds")
    print(f"{'room':>10} {'tree':>5} {COLUMNS}")
    for room in args.rooms:
        compare(f"{room:.0e}", pythons, [*common, *trace, "--room", str(int(room))], args.rounds)
    print(f"the same request, half of its 192 pages cached, by pages in the tree\n{'pages':>10}")
    for size in args.sizes:
        compare(f"{size:.0e}", pythons, [*common, "--size", str(int(size))], args.rounds)


if __name__ == "__main__":
    main()
