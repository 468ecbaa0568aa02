# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false
"""SGLang's own scheduler with a model of random weights, its host cache on, and us attached by the gate.

    HICACHE_DBG=1 HICACHE_DBG_SINKS=recording HICACHE_DBG_DIR=rec PYTHONPATH=... python serve.py MODEL_DIR

More sessions than the GPU pool holds are served twice; the second time their prefixes come from the
host. MODEL_DIR is made if it is not there.
"""

import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import prelude  # noqa: F401 - again in each process that SGLang starts
import wrapt


@wrapt.when_imported("sglang.srt.layers.dual_gemm")
def _without_cutlass(module: Any) -> None:
    """0.5.23 looks for a fused layer that wants a package which is not there; None is its own answer then."""
    module.DualGemm._select_mode = lambda *_: None  # noqa: SLF001


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
SESSIONS, PREFIX, ON_GPU = 24, 1024, 8192


def prompts() -> list[list[int]]:
    """A prefix of its own for each session."""
    return [[3 + (7 * s + 13 * i + s * i) % 2000 for i in range(PREFIX)] for s in range(SESSIONS)]


def main(folder: Path) -> int:
    """Serve every session twice."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(LLAMA))
    import sglang
    from sglang.srt.entrypoints import engine as engine_module
    from sglang.version import __version__ as version

    engine_module.assert_pkg_version = lambda *_: None  # the kernels are another version on purpose

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
    answers, cached = [], []
    for turn in range(2):
        began = time.perf_counter()
        got = [
            engine.generate(
                input_ids=prompt,
                sampling_params={"temperature": 0.0, "max_new_tokens": 8, "ignore_eos": True},
            )
            for prompt in prompts()
        ]
        answers.append([one["output_ids"] for one in got])
        cached.append(sum(one["meta_info"].get("cached_tokens", 0) for one in got))
        spent = time.perf_counter() - began
        print(
            f"turn {turn}: {len(got)} requests, {cached[-1]} tokens cached, {spent:.1f} s",
            flush=True,
        )
    same = sum(one == other for one, other in zip(*answers, strict=True))
    print(f"{same} of {SESSIONS} answers are the same both times", flush=True)
    time.sleep(1)  # the bus's thread hands over what the last request brought
    engine.shutdown()
    verified, wrong = recorded()
    print(f"{verified} tiles verified, {wrong} mismatched", flush=True)
    return 0 if verified and not wrong else 1


def recorded() -> tuple[int, int]:
    """Tiles verified and mismatched in the recordings, with a line for each kind of event."""
    kinds: Counter[str] = Counter()
    verified = wrong = 0
    for path in Path(os.environ["HICACHE_DBG_DIR"]).glob("*.jsonl"):
        for line in path.read_text().splitlines():
            event = json.loads(line)
            kinds[f"{event.get('event', 'header')} {event.get('op', '')}".strip()] += 1
            verified += event.get("verified", 0) if event.get("event") == "copied" else 0
            wrong += event.get("mismatched", 0) if event.get("event") == "copied" else 0
            if event.get("event") == "finding":
                print("finding:", event["cls"], event["pool"], event["message"][:300], flush=True)
    print("events:", dict(kinds), flush=True)
    return verified, wrong


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
