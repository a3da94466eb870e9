"""A step that somebody has recorded: on the two lanes of a predicted one, or as a table.

In:  the name of a recording that ships with the project, or a file that `torch.profiler` has
     written (`export_chrome_trace`, .json or .json.gz).
Out: a `Recording`: who ran what on which GPU, and its `TraceEvent`s; and, taken apart, `Anatomy`.

A file of `recordings` has the events of a step, or sums over many steps (of all kernels, or of each
by its name), of which there is only the anatomy; or several recordings. Where a source tells of the
GPU alone, the lane of the CPU is empty, and launches are not counted. A profiler with stacks slows
the host down: the idle time of an eager step is an upper bound."""

import gzip
import json
import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

from mini_engine.files import did_you_mean, read_object
from mini_engine.sim.trace import CPU, GPU, TraceEvent

RECORDINGS = Path(__file__).parent / "recordings"
# How a kernel's name tells what it is for: the first line that fits. The order matters: vLLM's KV
# write has "flash" in its name, and so has all that is FlashInfer's.
KINDS: Mapping[str, str] = {
    "collective": r"all_?reduce|all_?gather|nccl",
    "KV write": r"reshape_and_cache|store_kvcache|append_?paged_?kv|updatekvcache|kv_write(?!_att)",
    "norm": r"norm(?!alize|_copy|_qkv|_gate|_lm)|rsqrt",
    "RoPE": r"rotary|rope(?!_kv)",
    "activation": r"act_and_mul|(?<!up_)silu|gelu",
    "attention": r"attention|mha|flash|decodewithpagedkv|reduce_segments",
    "routing": r"topk|routing|bitmatrix|moe_forward|moe_align|expert_tokens|finalize",
    "product": r"gemm|gemv|nvjet|matmul|bmm_|splitk|cijk|linear_kernel|_proj|lm_head|gate_up_silu"
    r"|fused_moe_kernel",
    "quantise": r"quant",
    "copy": r"memcpy|memset|copy|::direc|catarray|fillfunctor|_to_(?:float|int)",
    "elementwise": r"elementwise|triton_poi",
    "reduction": r"reduce|scan|argmax|softmax|sort|moe_sum|triton_red",
}
UNLISTED = "not listed"  # the kernels of a table's source that it leaves out, being short


@dataclass(frozen=True)
class Share:
    count: float  # of several steps, the mean
    us: float


@dataclass(frozen=True)
class Anatomy:
    """What a step consists of, from the GPU's first kernel to its last. Times in µs. None: the
    source does not tell."""

    launches: float | None  # calls that start work on the GPU, copies included
    graph_launches: int | None
    kernels: float | None
    layers: int | None  # as many as there are KV writes, or attentions; None: neither was seen
    busy_us: float
    idle_in_launch_us: float | None  # nothing runs, and the CPU is inside of a call that launches
    idle_us: float | None  # nothing runs, and the CPU does something else
    kinds: Mapping[str, Share]  # the longest first

    @property
    def gpu_us(self) -> float:
        return self.busy_us + (self.idle_in_launch_us or 0.0) + (self.idle_us or 0.0)


@dataclass(frozen=True)
class Recording:
    """One step as it ran. Times in µs, from the first event on."""

    name: str
    what: str  # engine, model, GPU, and what the step did
    source: str
    events: tuple[TraceEvent, ...] = ()  # none: only the table is known
    like: Mapping[str, Any] | None = None  # the shape, card, ... of a step to predict beside it
    table: Anatomy | None = None


@cache
def _shipped() -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """Name -> the steps that were recorded, by batch where there are several. What the recordings
    of one file share stands beside them."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for path in sorted(RECORDINGS.glob("*.json")):
        shared = read_object(path)
        for step in cast(list[dict[str, Any]], shared.get("recordings", [{"name": path.stem}])):
            found.setdefault(step["name"], []).append({**shared, **step})
    return found


def recording_names() -> list[str]:
    return sorted(_shipped())


def load_recording(name_or_path: str | Path, batch: int = 1) -> Recording:
    """A recording by name (`batch`: which of its steps, if there are several), or a step of a
    profiler's file. Raises ValueError for an unknown name or batch and a file that is no profile,
    OSError as `open`."""
    word = str(name_or_path)
    if steps := _shipped().get(word):
        found = [one for one in steps if len(steps) == 1 or one["as"]["batch"] == batch]
        if not found:
            known = ", ".join(str(one["as"]["batch"]) for one in steps)
            raise ValueError(f"{word}: no step of {batch} requests was recorded: use {known}")
        (data,) = found
        what = f"{data['engine']}, {data['model']}, {data['gpu']}: {data['step']}"
        rows = [(lane, data["names"][at], *rest) for lane, at, *rest in data.get("events", ())]
        table = None if rows else _table(data)
        return Recording(word, what, data["source"], _on_two_lanes(rows), data.get("as"), table)
    path = Path(word)
    if not path.name.endswith((".json", ".json.gz")):
        near, known = did_you_mean(word, recording_names()), ", ".join(recording_names())
        raise ValueError(f"no recording {word!r}: use {known}, or a profiler's .json file{near}")
    return Recording(path.name, "a profile of your own", str(path), _profile(path))


def _table(data: Mapping[str, Any]) -> Anatomy:
    """One step of a source that tells sums over `steps`, of all kernels or `by_kernel`."""
    steps, sums = data["steps"], ("launches", "kernels", "busy_us", "idle_in_launch_us", "idle_us")
    mean: Any = {key: data[key] / steps if key in data else None for key in sums}
    kernels = [(kind_of(name), n / steps, us / steps) for name, n, us in data.get("by_kernel", ())]
    if kernels:
        kernels.append((UNLISTED, 0, data["busy_us"] / steps - sum(us for _, _, us in kernels)))
    layers = data.get("layers")
    return Anatomy(graph_launches=None, layers=layers, kinds=_shares(kernels), **mean)


def _shares(kernels: Iterable[tuple[str, float, float]]) -> dict[str, Share]:
    """(kind, how many, µs) summed up by kind, the longest first."""
    kinds: dict[str, Share] = {}
    for kind, count, us in kernels:
        so_far = kinds.get(kind, Share(0, 0.0))
        kinds[kind] = Share(so_far.count + count, so_far.us + us)
    return dict(sorted(kinds.items(), key=lambda item: -item[1].us))


def anatomy(recording: Recording) -> Anatomy:
    return recording.table or anatomy_of(recording.events)


def anatomy_of(events: Sequence[TraceEvent], *, whole: bool = False) -> Anatomy:
    """With `whole`, the GPU also waits before its first kernel."""
    on_gpu = sorted((e for e in events if e.lane == GPU), key=lambda e: e.start_us)
    on_cpu = (e for e in events if e.lane == CPU and e.category in ("launch", "graph", "copy"))
    calls = sorted(on_cpu, key=lambda e: e.start_us)
    idle_in_launch = idle = busy = 0.0
    until = min(e.start_us for e in events) if whole else on_gpu[0].start_us
    for event in on_gpu:
        if event.start_us > until:  # a gap: how much of it is inside of a launch call?
            inside = _overlap(calls, until, event.start_us)
            idle_in_launch += inside
            idle += event.start_us - until - inside
        busy += max(0.0, event.end_us - max(event.start_us, until))
        until = max(until, event.end_us)
    if whole:
        idle += max(e.end_us for e in events) - until
    shares = _shares((kind_of(event.name), 1, event.duration_us) for event in on_gpu)
    heard = any(e.lane == CPU for e in events)  # else nobody recorded the calls
    once = shares.get("KV write") or shares.get("attention")
    launches, graphs = len(calls), sum(e.category == "graph" for e in calls)
    kernels = sum(e.category in ("kernel", "node") for e in on_gpu)  # a copy is none
    return Anatomy(
        launches if heard else None, graphs if heard else None, kernels,
        int(once.count) if once else None, busy, idle_in_launch if heard else None, idle, shares,
    )  # fmt: skip


def kind_of(kernel: str) -> str:
    """What a kernel is for, by its name: a key of `KINDS`, or "other"."""
    return next((kind for kind, words in KINDS.items() if re.search(words, kernel, re.I)), "other")


STEP = "ProfilerStep#"  # how the annotation of a step begins (`torch.profiler.schedule`)
# lane (gpu, node, api, op), name, start, duration, correlation: a call and its work on the GPU
# share it. A node is a graph's kernel whose call is not recorded.
Row = tuple[str, str, float, float, int]
_LANES = {
    "kernel": "gpu", "gpu_memcpy": "gpu", "gpu_memset": "gpu",
    "cuda_runtime": "api", "cuda_driver": "api", "hip_runtime": "api", "cpu_op": "op",
}  # fmt: skip
# What a call does, by a word of its name: the first that fits.
_CALLS = {"GraphLaunch": "graph", "Launch": "launch", "Memcpy": "copy", "Memset": "copy",
          "Synchronize": "wait"}  # fmt: skip


def events_of_profile(listed: Iterable[Mapping[str, Any]]) -> tuple[TraceEvent, ...]:
    """The step of median length among a profiler's `traceEvents`, in µs from its first event: what
    an annotation "ProfilerStep#N" spans; where there is none, all that was recorded. Lane CPU: the
    ops of its thread, and the calls into CUDA. Lane GPU: what these calls started. The rows are
    kineto's (pytorch/kineto, libkineto: ActivityType.cpp, CuptiActivity.h)."""

    def thread(event: Mapping[str, Any]) -> tuple[Any, Any]:
        return event.get("pid"), event.get("tid")

    complete = [(str(e.get("cat", "")).lower(), e) for e in listed if e.get("ph") == "X"]
    steps = [event for category, event in complete
             if category == "user_annotation" and str(event["name"]).startswith(STEP)]  # fmt: skip
    begin, end, place = float("-inf"), float("inf"), None
    if steps:
        step = sorted(steps, key=lambda e: float(e["dur"]))[len(steps) // 2]
        begin, place = float(step["ts"]), thread(step)
        end = begin + float(step["dur"])
    rows, started, known = list[Row](), list[Row](), set[int]()
    for category, event in complete:
        if not (lane := _LANES.get(category, "")):
            continue
        correlation = int(event.get("args", {}).get("correlation", 0))
        row = lane, str(event["name"]), float(event["ts"]), float(event["dur"]), correlation
        if lane == "gpu":
            started.append(row)
            continue
        if lane == "api":
            known.add(correlation)
        if begin <= row[2] < end and place in (None, thread(event)):
            rows.append(row)
    # By correlation and not by time, since the two clocks agree only to about a µs. Where a library
    # launches in a way that kineto does not follow, the call is unknown and time decides.
    ours = {row[4] for row in rows if row[0] == "api"}
    rows += [r for r in started if (r[4] in ours if r[4] in known else begin <= r[2] < end)]
    return _on_two_lanes(rows)


def _profile(path: Path) -> tuple[TraceEvent, ...]:
    try:
        opened = gzip.open if path.name.endswith(".gz") else open
        with opened(path, "rt", encoding="utf-8") as file:
            events = events_of_profile(json.load(file)["traceEvents"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is no trace of PyTorch's profiler: {error!r:.80}") from error
    if {event.lane for event in events} != {CPU, GPU}:
        raise ValueError(
            f"{path}: no kernel in it that a call in it launched; record with "
            "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
        )
    return events


def _on_two_lanes(rows: Iterable[Row]) -> tuple[TraceEvent, ...]:
    listed = sorted(rows, key=lambda row: row[2])
    in_graphs = {row[4] for row in listed if row[0] == "api" and "GraphLaunch" in row[1]}
    # A copy to pageable memory returns when it is done (CUDA Runtime API, "API synchronization
    # behavior"), so it is a wait of the CPU: that is how PyTorch reads a token back.
    waits = {row[4] for row in listed if row[0] == "gpu" and row[1].endswith("-> Pageable)")}
    events = []
    for lane, name, start, duration, correlation in listed:
        where, category = CPU, "host"
        if lane in ("gpu", "node"):
            moved = name.startswith(("Memcpy", "Memset"))
            inside = lane == "node" or correlation in in_graphs
            where, category = GPU, "copy" if moved else "node" if inside else "kernel"
        elif lane == "api":
            category = next((does for word, does in _CALLS.items() if word in name), "host")
            category = "wait" if correlation in waits else category
        events.append(TraceEvent(where, name, start - listed[0][2], duration, category))
    return tuple(events)


def _overlap(calls: Sequence[TraceEvent], begin: float, end: float) -> float:
    """How much of [begin, end] the calls cover, which come one after another, by start."""
    first = max(0, bisect_left(calls, begin, key=lambda c: c.start_us) - 1)
    last = bisect_left(calls, end, key=lambda c: c.start_us)
    return sum(max(0.0, min(c.end_us, end) - max(c.start_us, begin)) for c in calls[first:last])
