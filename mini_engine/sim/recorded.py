"""A step that PyTorch's profiler has recorded, on the two lanes of a predicted one.

In:  the name of a recording that ships with the project, or a file that `torch.profiler` has
     written (`export_chrome_trace`, .json or .json.gz).
Out: a `Recording`: who ran what on which GPU, and its `TraceEvent`s; and, taken apart,
     `Anatomy`: launches, kernels by kind, how busy the GPU was, and what it waited for.

    step = load_recording("sglang-qwen3-8b-graph")
    anatomy(step).launches, anatomy(step).kinds["norm"].count      # 12 launches, 145 norms

A profiler with stacks slows the host down: the times of the CPU lane, and the idle time of the GPU
in an eager step, are upper bounds. What the GPU does is not slower for it.
"""

from __future__ import annotations

import gzip
import json
import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mini_engine.files import did_you_mean
from mini_engine.sim.trace import CPU, GPU, TraceEvent

RECORDINGS = Path(__file__).parent / "recordings"
# How a kernel's name tells what it is for: the first line that fits. The order matters: vLLM's KV
# write has "flash" in its name, and so has all that is FlashInfer's.
KINDS: Mapping[str, str] = {
    "collective": r"all_?reduce|all_?gather|nccl",
    "KV write": r"reshape_and_cache|store_kvcache|append_?paged_?kv",
    "norm": r"norm(?!alize)",
    "RoPE": r"rotary|rope",
    "activation": r"act_and_mul|silu|gelu",
    "attention": r"attention|fmha|flash|decodewithpagedkv|reduce_segments",
    "routing": r"topk|routing|bitmatrix|moe_forward|finalize",
    "product": r"gemm|gemv|nvjet|matmul|bmm_|splitk|cijk|linear_kernel",
    "quantise": r"quant",
    "copy": r"memcpy|memset|copy|::direc|catarray|fillfunctor",
    "elementwise": r"elementwise|triton_poi",
    "reduction": r"reduce|scan|argmax|softmax",
}
_KINDS = {kind: re.compile(words, re.IGNORECASE) for kind, words in KINDS.items()}


@dataclass(frozen=True)
class Recording:
    """One step as it ran. Times in µs, from the first event on."""

    name: str
    what: str  # engine, model, GPU, and what the step did
    source: str
    events: tuple[TraceEvent, ...]
    like: Mapping[str, Any] | None = None  # the shape, card, ... of a step to predict beside it


@dataclass(frozen=True)
class Share:
    """The kernels of one kind."""

    count: int
    us: float


@dataclass(frozen=True)
class Anatomy:
    """What a step consists of. Times in µs.

    The GPU's time from its first kernel to its last is `busy_us`, `idle_in_launch_us` (nothing
    runs, and the CPU is inside of a call that launches) and `idle_us` (nothing runs, and the CPU
    does something else).
    """

    launches: int  # calls that start work on the GPU, copies included
    graph_launches: int
    kernels: int
    layers: int | None  # as many as there are KV writes, or attentions; None: neither was seen
    busy_us: float
    idle_in_launch_us: float
    idle_us: float
    kinds: Mapping[str, Share]  # the longest first

    @property
    def gpu_us(self) -> float:
        return self.busy_us + self.idle_in_launch_us + self.idle_us


def recording_names() -> list[str]:
    """The recordings that ship with the project."""
    return sorted(path.stem for path in RECORDINGS.glob("*.json"))


def load_recording(name_or_path: str | Path) -> Recording:
    """A recording by name, or the last step of a profiler's file.

    Raises ValueError for an unknown name or a file that is no profile, OSError where it cannot be
    read.
    """
    word = str(name_or_path)
    if word in recording_names():
        data = json.loads((RECORDINGS / f"{word}.json").read_text(encoding="utf-8"))
        what = f"{data['engine']}, {data['model']}, {data['gpu']}: {data['step']}"
        rows = [(lane, data["names"][name], *rest) for lane, name, *rest in data["events"]]
        return Recording(word, what, data["source"], _on_two_lanes(rows), data.get("as"))
    path = Path(word)
    if not path.name.endswith((".json", ".json.gz")):
        near, known = did_you_mean(word, recording_names()), ", ".join(recording_names())
        raise ValueError(f"no recording {word!r}: use {known}, or a profiler's .json file{near}")
    return Recording(path.name, "a profile of your own", str(path), _on_two_lanes(_profile(path)))


def anatomy(recording: Recording) -> Anatomy:
    """Launches, kernels by kind, and where the GPU's time went."""
    on_gpu = sorted((e for e in recording.events if e.lane == GPU), key=lambda e: e.start_us)
    calls = sorted(
        (
            e
            for e in recording.events
            if e.lane == CPU and e.category in ("launch", "graph", "copy")
        ),
        key=lambda e: e.start_us,
    )
    idle_in_launch = idle = busy = 0.0
    until = on_gpu[0].start_us
    for event in on_gpu:
        if event.start_us > until:  # a gap: how much of it is inside of a launch call?
            inside = _overlap(calls, until, event.start_us)
            idle_in_launch += inside
            idle += event.start_us - until - inside
        busy += max(0.0, event.end_us - max(event.start_us, until))
        until = max(until, event.end_us)
    kinds: dict[str, list[float]] = {}
    for event in on_gpu:
        kinds.setdefault(kind_of(event.name), []).append(event.duration_us)
    shares = {kind: Share(len(took), sum(took)) for kind, took in kinds.items()}
    once = shares.get("KV write") or shares.get("attention")
    return Anatomy(
        launches=len(calls),
        graph_launches=sum(e.category == "graph" for e in calls),
        kernels=sum(e.category in ("kernel", "node") for e in on_gpu),
        layers=once.count if once else None,
        busy_us=busy,
        idle_in_launch_us=idle_in_launch,
        idle_us=idle,
        kinds=dict(sorted(shares.items(), key=lambda item: -item[1].us)),
    )


def kind_of(kernel: str) -> str:
    """What a kernel is for, by its name: a key of `KINDS`, or "other"."""
    return next((kind for kind, words in _KINDS.items() if words.search(kernel)), "other")


# ---------------------------------------------------------------- reading

# lane (gpu, api, op), name, start, duration, correlation: a call and its work on the GPU share it
Row = tuple[str, str, float, float, int]
_GPU_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
_API_CATEGORIES = ("cuda_runtime", "cuda_driver", "hip_runtime")


def _profile(path: Path) -> list[Row]:
    """The calls of a profile's last step, with their work on the GPU.

    A step is what an annotation "ProfilerStep#N" spans (`torch.profiler.schedule`); where there is
    none, all that was recorded is one step.
    """
    try:
        opened = gzip.open if path.name.endswith(".gz") else open
        with opened(path, "rt", encoding="utf-8") as file:
            document = json.load(file)
        listed = [e for e in document["traceEvents"] if e.get("ph") == "X"]
        rows = [row for event in listed if (row := _row(event))]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is no trace of PyTorch's profiler: {error!r:.80}") from error
    steps = [e for e in listed if str(e["name"]).startswith("ProfilerStep#")]
    if steps:
        last = max(steps, key=lambda e: float(e["ts"]))
        begin, end = float(last["ts"]), float(last["ts"]) + float(last["dur"])
        rows = [row for row in rows if row[0] == "gpu" or begin <= row[2] < end]
    calls = {row[4] for row in rows if row[0] == "api"}
    rows = [row for row in rows if row[0] != "gpu" or row[4] in calls]
    if not any(row[0] == "gpu" for row in rows):
        raise ValueError(
            f"{path}: no kernel in it that a call in it launched; record with "
            "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
        )
    return rows


def _row(event: Mapping[str, Any]) -> Row | None:
    category = str(event.get("cat", "")).lower()
    lane = "gpu" if category in _GPU_CATEGORIES else "api" if category in _API_CATEGORIES else ""
    if category == "cpu_op":
        lane = "op"
    if not lane:
        return None
    correlation = int(event.get("args", {}).get("correlation", 0))
    return lane, str(event["name"]), float(event["ts"]), float(event["dur"]), correlation


def _on_two_lanes(rows: Iterable[Row]) -> tuple[TraceEvent, ...]:
    """Rows as events, each with the category by which it is drawn and counted."""
    listed = sorted(rows, key=lambda row: row[2])
    zero = listed[0][2]
    in_graphs = {row[4] for row in listed if row[0] == "api" and "GraphLaunch" in row[1]}
    events = []
    for lane, name, start, duration, correlation in listed:
        if lane == "gpu":
            moved = name.startswith(("Memcpy", "Memset"))
            category = "copy" if moved else "node" if correlation in in_graphs else "kernel"
        else:
            category = _category(name) if lane == "api" else "host"
        where = GPU if lane == "gpu" else CPU
        events.append(TraceEvent(where, name, start - zero, duration, category))
    return tuple(events)


def _category(call: str) -> str:
    for word, category in (
        ("GraphLaunch", "graph"), ("Launch", "launch"), ("Memcpy", "copy"), ("Memset", "copy"),
        ("Synchronize", "wait"),
    ):  # fmt: skip
        if word in call:
            return category
    return "host"


def _overlap(calls: Sequence[TraceEvent], begin: float, end: float) -> float:
    """How much of [begin, end] the calls cover, which come one after another, by start."""
    first = max(0, bisect_left(calls, begin, key=lambda c: c.start_us) - 1)
    last = bisect_left(calls, end, key=lambda c: c.start_us)
    return sum(max(0.0, min(c.end_us, end) - max(c.start_us, begin)) for c in calls[first:last])
