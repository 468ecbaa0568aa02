# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false
"""SGLang's own scheduler over a model of random weights, with its host cache on and us attached.

    HICACHE_DBG=1 HICACHE_DBG_SINKS=recording HICACHE_DBG_DIR=rec PYTHONPATH=... \
        python serve.py MODEL_DIR [--replies FILE] [--same-as FILE] [--flip]

The conversations, three turns each, exceed the GPU pool, so from the second turn on their prefixes come
from the host. MODEL_DIR is created if missing. ``--replies`` writes the replies, ``--same-as`` compares
them with another run's, and ``--flip`` changes one bit of pinned memory before the first load.
"""

import argparse
import json
import os
import sys
import time
from collections import Counter
from functools import wraps
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import prelude  # noqa: F401 - needed in each process that SGLang starts
import torch
import wrapt

FLIP = "FLIP_A_BIT"


@wrapt.when_imported("sglang.srt.layers.dual_gemm")
def _without_cutlass(module: Any) -> None:
    """Answer None, as 0.5.23 does where its fused layer cannot run: the package it needs is absent."""
    module.DualGemm._select_mode = lambda *_: None  # noqa: SLF001


@wrapt.when_imported("sglang.srt.managers.cache_controller")
def _flipping(module: Any) -> None:
    """Flip one bit in layer 2 of the first page about to be loaded, in the scheduler's process."""
    if not os.environ.get(FLIP):
        return
    owner, left = module.HiCacheController, ["one"]
    original = owner.start_loading

    @wraps(original)
    def start_loading(controller: Any) -> Any:
        if controller.load_queue and left:
            left.clear()
            host = controller.mem_pool_host
            pool = getattr(getattr(host, "anchor_entry", None), "host_pool", host)
            slot = int(controller.load_queue[0].host_indices[0])
            pool.k_buffer[2, slot].view(-1).view(torch.uint8)[5] ^= 1
            print(f"flipped a bit of layer 2, host page {slot // pool.page_size}", flush=True)
        return original(controller)

    owner.start_loading = start_loading


LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 2048,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SESSIONS, TURNS, COMMON, PREFIX, MORE, ON_GPU = 24, 3, 256, 1024, 128, 8192
SAMPLING = {"temperature": 0.0, "max_new_tokens": 16, "ignore_eos": True}


def _words(session: int, count: int, first: int = 0) -> list[int]:
    return [
        3 + (7 * session + 13 * i + session * i) % 2000 for i in range(first + 1, first + count + 1)
    ]


def opening(session: int) -> list[int]:
    """Return the system prompt, which all sessions share, followed by the session's own prefix."""
    return _words(0, COMMON) + _words(session + 1, PREFIX)


def main() -> int:
    """Serve every conversation, then read the recording."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--replies", type=Path)
    parser.add_argument("--same-as", type=Path)
    parser.add_argument("--flip", action="store_true")
    options = parser.parse_args()
    if options.flip:
        os.environ[FLIP] = "1"
    replies = serve(options.folder)
    if options.replies:
        options.replies.write_text(json.dumps(replies))
    if options.same_as:
        others = json.loads(options.same_as.read_text())
        same = sum(
            a == b
            for ours, bare in zip(replies, others, strict=True)
            for a, b in zip(ours, bare, strict=True)
        )
        print(f"{same} of {SESSIONS * TURNS} replies are those of the other run", flush=True)
    if "HICACHE_DBG_DIR" not in os.environ:
        return 0
    verified, wrong = recorded()
    print(f"{verified} tiles verified, {wrong} mismatched", flush=True)
    return 0 if verified and (wrong > 0) == options.flip else 1


def serve(folder: Path) -> list[list[list[int]]]:
    """Serve all turns; return the replies by session and turn."""
    engine = started(folder)
    talks = [opening(session) for session in range(SESSIONS)]
    replies: list[list[list[int]]] = [[] for _ in talks]
    for turn in range(TURNS):
        began, cached = time.perf_counter(), 0
        for session, talk in enumerate(talks):
            got = engine.generate(input_ids=talk, sampling_params=SAMPLING)
            replies[session].append(got["output_ids"])
            cached += got["meta_info"].get("cached_tokens", 0)
            talk.extend(got["output_ids"] + _words(session + 50, MORE, PREFIX + turn * MORE))
        spent = time.perf_counter() - began
        print(
            f"turn {turn}: {SESSIONS} requests, {cached} tokens cached, {spent:.1f} s", flush=True
        )
    time.sleep(1)  # lets the bus's thread hand over the last request's events
    engine.shutdown()
    return replies


def started(folder: Path) -> Any:
    """Start SGLang's engine over a model of random weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(LLAMA))
    import sglang
    from sglang.srt.entrypoints import engine as engine_module
    from sglang.version import __version__ as version

    engine_module.assert_pkg_version = lambda *_: None  # another version on purpose
    began = time.perf_counter()
    engine: Any = sglang.Engine(
        model_path=str(folder),
        load_format="dummy",
        skip_tokenizer_init=True,
        attention_backend="triton",
        sampling_backend="pytorch",
        grammar_backend="none",
        disable_cuda_graph=True,
        enable_hierarchical_cache=True,
        hicache_ratio=8.0,
        hicache_write_policy="write_through",
        hicache_io_backend="kernel",
        hicache_mem_layout="layer_first",
        page_size=64,
        max_total_tokens=ON_GPU,
        max_running_requests=4,
        chunked_prefill_size=1024,
        mem_fraction_static=0.3,
        random_seed=1,
        log_level="info",
    )
    print(f"SGLang {version} is up after {time.perf_counter() - began:.1f} s", flush=True)
    return engine


def recorded() -> tuple[int, int]:
    """Print a line for each kind of event; return the tiles verified and mismatched in the recordings."""
    kinds: Counter[str] = Counter()
    skipped: Counter[str] = Counter()
    verified = wrong = 0
    for path in Path(os.environ["HICACHE_DBG_DIR"]).rglob("*.jsonl*"):
        for line in path.read_text().splitlines():
            event = json.loads(line)
            kind = event.get("event", "header")
            kinds[f"{kind} {event.get('op', '')}".strip()] += 1
            if kind == "copied":
                verified += event.get("verified", 0)
                wrong += event.get("mismatched", 0)
                skipped.update(event.get("skipped") or {})
            elif kind == "finding":
                print("finding:", event["cls"], event["pool"], event["message"][:400], flush=True)
    print("events:", dict(kinds), "skipped:", dict(skipped), flush=True)
    return verified, wrong


if __name__ == "__main__":
    sys.exit(main())
