"""Run a real vLLM three ways, and read out of it what it captured and how long its tokens take.

In:  a `Setup`; what `vllm serve` logs; what `vllm bench serve` saves.
Out: command lines; `StartUp`: modes and ladder as vLLM resolved them; graphs captured, by mode;
     `Latency`; how many graphs our own policy expects, and which ITL our model predicts.

    serve_command(Setup(), "graphs")      # vllm serve Qwen/Qwen3-0.6B --max-num-seqs 64 …
    start = read_startup(log)             # start.cudagraph_mode == "FULL_AND_PIECEWISE"
    captured_graphs(log)                  # {"PIECEWISE": 51, "FULL": 35}
    latency(json.loads(saved)).median_itl_ms

Formats: vLLM 0.33. Nothing here imports vLLM or needs a GPU: it is text in, numbers out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mini_engine.model.config import named_shape
from mini_engine.step.cards import DeviceSpec
from mini_engine.step.kernels import StepShape, step_ops
from mini_engine.step.run import Mode, step_time

# What is on: torch.compile and CUDA graphs. Neighbours differ by one switch.
VARIANTS = {
    "eager": "neither",
    "compiled": "torch.compile, no graphs",
    "graphs": "both: vLLM as it comes",
}


@dataclass(frozen=True)
class Setup:
    """What is the same for all variants. The ladder depends on both limits: always give them."""

    model: str = "Qwen/Qwen3-0.6B"
    shape: str = "qwen3-0.6b"  # the same model, as `mini_engine.model.config` names it
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    max_model_len: int = 4096
    port: int = 8017


@dataclass(frozen=True)
class StartUp:
    """What vLLM says of itself when it starts."""

    version: str  # "0.33.0"
    compilation_mode: str  # "NONE", "VLLM_COMPILE"
    cudagraph_mode: str  # that it runs with
    capture_sizes: tuple[int, ...]  # tokens, rising; () without graphs


@dataclass(frozen=True)
class Latency:
    """Of one run of `vllm bench serve`, in ms. Percentiles as vLLM has them: interpolated."""

    gaps: int  # between two pieces of a stream, in all requests that succeeded
    mean_itl_ms: float
    median_itl_ms: float
    p99_itl_ms: float
    mean_tpot_ms: float
    tokens_per_gap: float  # 1.0: each piece of the stream was one token


def serve_command(setup: Setup, variant: str) -> list[str]:
    """The words that start a server: `vllm serve MODEL …`, the limits, the variant's switch.

    Options: --max-num-seqs, --max-num-batched-tokens, --max-model-len, --port, --host 127.0.0.1, so
    that nobody else on the network can ask, and --no-enable-prefix-caching, so that no prompt is
    answered from an earlier one. The variants
    (`VARIANTS`): "graphs" adds nothing. "compiled" adds -cc.cudagraph_mode=NONE, which leaves
    torch.compile as it is. "eager" adds --enforce-eager, which turns *both* off
    (`ModelConfig.enforce_eager`: "equivalent to setting `-cc.mode=none -cc.cudagraph_mode=none`").
    Raises ValueError for another variant.
    """
    if variant not in VARIANTS:
        raise ValueError(f"variant {variant!r}: expected one of {', '.join(VARIANTS)}")
    switch = {"eager": ["--enforce-eager"], "compiled": ["-cc.cudagraph_mode=NONE"], "graphs": []}
    return [
        "vllm", "serve", setup.model,
        "--max-num-seqs", str(setup.max_num_seqs),
        "--max-num-batched-tokens", str(setup.max_num_batched_tokens),
        "--max-model-len", str(setup.max_model_len),
        "--host", "127.0.0.1",
        "--port", str(setup.port),
        "--no-enable-prefix-caching",
        *switch[variant],
    ]  # fmt: skip


def bench_command(setup: Setup, batch: int, context: int, tokens: int, out: str) -> list[str]:
    """The words that measure: `batch` requests at a time, `tokens` new tokens each after prompts of
    `context`. --save-detailed keeps the gaps themselves; without it only their summary is saved."""
    return [
        "vllm", "bench", "serve",
        "--model", setup.model,
        "--port", str(setup.port),
        "--dataset-name", "random",
        "--random-input-len", str(context),
        "--random-output-len", str(tokens),
        "--ignore-eos",
        "--num-prompts", str(8 * batch),
        "--max-concurrency", str(batch),
        "--num-warmups", str(batch),
        "--percentile-metrics", "ttft,tpot,itl",
        "--metric-percentiles", "50,99",
        "--save-result", "--save-detailed", "--result-filename", out,
    ]  # fmt: skip


def read_startup(log: str) -> StartUp:
    """Version, modes and ladder from a start-up log.

    One line says what vLLM was started with, after all defaults (`EngineCore.__init__` in
    vllm/v1/engine/core.py): "Initializing a V1 LLM engine (v0.33.0) with config: … ". In it stands
    compilation_config={…}, a dict with, among others, these keys:

        'mode': <CompilationMode.VLLM_COMPILE: 3>
        'decoder_replay_cudagraph_capture_sizes': []               another thing
        'cudagraph_mode': <CUDAGraphMode.FULL_AND_PIECEWISE: (2, 1)>
        'cudagraph_capture_sizes': [1, 2, 4, 8]                    the ladder; [] without graphs

    Lines *before* this one say what is in it already, or what was asked for ("non-default args: …"
    has the same keys). *Later* lines may change the mode, when the attention backend cannot do what
    was asked for (`resolve_cudagraph_mode_and_sizes` in vllm/config/compilation.py): "…; setting
    cudagraph_mode=PIECEWISE because …" or "… Overriding to NONE.". The last of them holds; with
    NONE no size is captured, so the ladder is () then. The ladder rises: versions and options
    differ in the order in which they print it. Raises ValueError where the line is missing.
    """
    begun = re.search(r"Initializing a V1 LLM engine \(v([^)]+)\) with config: (.*)", log)
    if begun is None:
        raise ValueError(
            "no line “Initializing a V1 LLM engine …”: is this the log of `vllm serve`, at level "
            "INFO, and did it get that far?"
        )
    version, config = begun.groups()
    mode = _found(r"'mode': <CompilationMode\.(\w+)", config)
    cudagraph_mode = _found(r"'cudagraph_mode': <CUDAGraphMode\.(\w+)", config)
    sizes = _found(r"'cudagraph_capture_sizes': \[([\d, ]*)\]", config)
    changed = r"setting cudagraph_mode=([A-Z_]+)|Overriding to ([A-Z_]+)"
    for one, other in re.findall(changed, log[begun.end() :]):
        cudagraph_mode = one or other
    ladder = sorted(int(size) for size in re.findall(r"\d+", sizes))
    return StartUp(version, mode, cudagraph_mode, () if cudagraph_mode == "NONE" else tuple(ladder))


def captured_graphs(log: str) -> dict[str, int]:
    """How many captures the server made in each mode, from its progress bars: {"PIECEWISE": 51}.

    A bar is printed again and again, with "\\r" or a new line between (tqdm):

        Capturing CUDA graphs (PIECEWISE):  49%|████▉     | 25/51 [00:00<00:00, 29.65it/s]
        Capturing CUDA graphs (decode, FULL): 100%|██████████| 35/35 [00:02<00:00, 13.2it/s]

    The mode is the last word in the brackets: the older model runner puts others before it. While
    vLLM measures how much memory graphs will take, it captures once for practice, all PIECEWISE and
    two FULL (`profile_cudagraph_memory` in vllm/v1/worker/gpu/cudagraph_utils.py), and throws them
    away: of each mode the *last* bar counts. {} for a log without bars. Raises ValueError for a
    last bar that has not reached its end, as its two counts tell: 199/200 is printed as 100%.
    """
    bars = re.findall(r"Capturing CUDA graphs \((?:[^()]*, )?(\w+)\):[^\r\n]*?(\d+)/(\d+) \[", log)
    last = {mode: (int(done), int(total)) for mode, done, total in bars}
    for mode, (done, total) in last.items():
        if done < total:
            raise ValueError(f"{mode}: {done} of {total} captured: the log ends before the capture")
    return {mode: total for mode, (_, total) in last.items()}


def expected_graphs(
    capture_sizes: Sequence[int], cudagraph_mode: str, max_num_seqs: int
) -> dict[str, int]:
    """How many captures a mode needs for a ladder, without speculation: {"PIECEWISE": 51, …}.

    PIECEWISE and FULL: one for each size. A mode with FULL graphs for decode batches only
    (FULL_DECODE_ONLY, FULL_AND_PIECEWISE) has FULL ones for sizes up to max_num_seqs: a decode
    batch has a token for each request, so no larger one can come. NONE: {}. A mode that captures
    nothing is left out. Source: `CudaGraphManager._init_candidates` in
    vllm/v1/worker/gpu/cudagraph_utils.py. `mini_engine.dispatch.dispatcher` has the whole rule.
    """
    decodes = sum(size <= max_num_seqs for size in capture_sizes)
    every = len(capture_sizes)
    counts = {
        "NONE": {},
        "PIECEWISE": {"PIECEWISE": every},
        "FULL": {"FULL": every},
        "FULL_DECODE_ONLY": {"FULL": decodes},
        "FULL_AND_PIECEWISE": {"PIECEWISE": every, "FULL": decodes},
    }[cudagraph_mode]
    return {mode: count for mode, count in counts.items() if count}


def latency(result: Mapping[str, Any]) -> Latency:
    """ITL and TPOT from the file that `vllm bench serve --save-result --save-detailed` writes.

    Lists, an entry for each request: `itls` the gaps of its stream in *seconds* (the first token is
    no gap: it is in `ttfts`), `latencies` from request to last token in seconds, `output_lens` in
    tokens; 0 for a request that failed, whose gaps do not count. ITL: over all gaps of all
    requests. TPOT: each request's own (latency - ttft) / (tokens - 1), then the mean over requests
    of two tokens or more. The summary fields of the file (`mean_itl_ms`, …) may be missing, and are
    not used. Percentiles: `numpy.percentile`. Raises ValueError where the gaps were not saved,
    where the lists are not of one length (a file that was cut or edited), or hold no gap.
    """
    if "itls" not in result:
        raise ValueError("no itls in this file: run `vllm bench serve` with --save-detailed")
    gaps_ms, tpots_ms, tokens = [], [], 0
    for gaps, ttft, whole, length in zip(
        result["itls"], result["ttfts"], result["latencies"], result["output_lens"], strict=True
    ):
        if length == 0:
            continue
        gaps_ms += [1e3 * gap for gap in gaps]
        if length > 1:
            tpots_ms.append(1e3 * (whole - ttft) / (length - 1))
            tokens += length - 1
    if not gaps_ms:
        raise ValueError("no request has a second token: nothing lies between tokens")
    median, p99 = np.percentile(gaps_ms, [50, 99])
    return Latency(
        gaps=len(gaps_ms),
        mean_itl_ms=float(np.mean(gaps_ms)),
        median_itl_ms=float(median),
        p99_itl_ms=float(p99),
        mean_tpot_ms=float(np.mean(tpots_ms)),
        tokens_per_gap=tokens / len(gaps_ms),
    )


# ---------------------------------------------------------------- our side


def predicted_itl_ms(
    setup: Setup, variant: str, batch: int, context: int, spec: DeviceSpec
) -> float:
    """What our model says of such a step: vLLM's kernels as they were counted, an engine's work
    between steps, no HTTP, no client. An engine's own kernels and Inductor's are alike to it."""
    mode: Mode = "full" if variant == "graphs" else "eager"
    ops = step_ops(named_shape(setup.shape), StepShape.decode(batch, context), "vllm")
    return step_time(ops, spec, mode, num_reqs=batch).itl_us / 1e3


def _found(pattern: str, config: str) -> str:
    """What a key of the config line says. ValueError names the key that is missing."""
    match = re.search(pattern, config)
    if match is None:
        raise ValueError(f"the config line has no {pattern.partition(':')[0]}: is this vLLM 0.33?")
    return match[1]
