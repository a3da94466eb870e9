"""Figures of chapter 10: three requests through the engine, step by step, on both clocks; and what
becomes of a busy server whose KV cache is too small, with and without the reserve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.patches import Patch, Rectangle

from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.engine.batch import Request, SchedulerLimits
from mini_engine.engine.engine import Engine, StepRecord
from mini_engine.model.config import named_shape
from mini_engine.plots.canvas import (
    BLUE,
    MODE_COLOURS,
    ORANGE,
    PALE,
    PREDICTED,
    SKY,
    VERMILION,
    YELLOW,
    canvas,
)
from mini_engine.plots.timeline import COLOURS
from mini_engine.serving.ladder_cost import size_server
from mini_engine.serving.replay import replay
from mini_engine.serving.report import ServeReport
from mini_engine.serving.request_trace import SHIPPED_TRACE, TraceRequest, read_trace
from mini_engine.sim.device import Device
from mini_engine.sim.runner import SimRunner
from mini_engine.sim.trace import CPU, GPU, TraceEvent
from mini_engine.step.capacity import kv_bytes_per_token
from mini_engine.step.cards import load_spec
from mini_engine.step.step_model import StepModel

# (name, prompt tokens, new tokens, arrival in ms)
REQUESTS = [("A", 200, 18, 0.0), ("B", 800, 12, 2.0), ("C", 300, 6, 9.0)]
FILLED_US = 20.0  # shorter gaps are narrower than a dot of the figure
BUDGET, USABLE_BLOCKS = 512, 83  # so few blocks that not all three fit to their end
LIMITS = SchedulerLimits(
    max_num_seqs=256,
    max_num_batched_tokens=BUDGET,
    num_blocks=USABLE_BLOCKS + 1,
    block_size=16,
    max_model_len=2048,
)
PREFILL, DECODE, WAITING = ORANGE, SKY, YELLOW


def serve() -> tuple[list[StepRecord], list[TraceEvent], float]:
    """Every step, every event on either lane, and when the first request came, in µs."""
    sizes = default_capture_sizes(LIMITS.max_num_seqs, BUDGET, mode="FULL_AND_PIECEWISE")
    dispatcher = GraphDispatcher("FULL_AND_PIECEWISE", sizes, LIMITS.max_num_seqs)
    device = Device(load_spec("h200"), compute=False)
    runner = SimRunner(device, named_shape("qwen3-0.6b"), None, LIMITS, dispatcher)
    runner.capture()
    began_us = device.cpu_us
    device.recording = True
    steps: list[StepRecord] = []
    requests = [
        Request(name, range(prompt), new, began_us + at_ms * 1e3)
        for name, prompt, new, at_ms in REQUESTS
    ]
    Engine(runner, LIMITS, dispatcher).run(requests, on_step=steps.append)
    return steps, list(device.timeline), began_us


def batch_over_time(path: Path) -> None:
    """Rows: what each request gets, which graph runs, and the CPU and GPU lanes below."""
    steps, events, zero_us = serve()
    modes = [step.descriptor.mode.name for step in steps]
    title = (
        f"{len(steps)} steps: {modes.count('FULL')} decode in one graph, "
        f"{modes.count('PIECEWISE')} with a piece of a prompt run in pieces"
    )
    caption = (
        "Predicted, not measured: qwen3-0.6b on h200, vLLM, FULL_AND_PIECEWISE, its own ladder, "
        f"a budget of {BUDGET} tokens, {USABLE_BLOCKS} blocks of 16. In a request's row: its "
        "tokens in the step; below them, the rows that the step is padded to. Gaps between kernels "
        f"of less than {FILLED_US:g} µs are drawn filled."
    )
    with canvas(path, (13, 7.4), title=title, caption=caption) as figure:
        rows = figure.subplots(3, 1, sharex=True, height_ratios=[0.28, 2.0, 0.9])
        _legend(rows[0])
        _requests(rows[1], steps, zero_us)
        _lanes(rows[2], events, zero_us)
        rows[2].set_xlim(0, (steps[-1].ended_us - zero_us) / 1e3)
        rows[2].set_xlabel("time since the first request (ms)")


def _legend(axes: Axes) -> None:
    shown = [
        (PREFILL, "prompt, or a chunk of it"),
        (DECODE, "decode"),
        (WAITING, "waits"),
        (MODE_COLOURS["full"], "FULL"),
        (MODE_COLOURS["piecewise"], "PIECEWISE"),
    ]
    axes.set_axis_off()
    axes.legend(
        handles=[Patch(color=colour, label=label) for colour, label in shown],
        loc="upper left", ncols=5, columnspacing=1.2, handlelength=1.2, borderaxespad=0,
    )  # fmt: skip


def _requests(axes: Axes, steps: Sequence[StepRecord], zero_us: float) -> None:
    """A row for each request, and one for the graph that runs and the rows it is padded to."""
    for line, (name, _, _, at_ms) in enumerate(REQUESTS):
        y = 2.0 - line
        served = [
            (step, entry)
            for step in steps
            for entry in step.batch.entries
            if entry.request.request_id == name
        ]
        end_ms = (served[-1][0].ended_us - zero_us) / 1e3
        _box(axes, at_ms, end_ms, y, WAITING, "")
        for step, entry in served:
            colour = PREFILL if entry.is_prefill else DECODE
            start_ms, stop_ms = _span(step, zero_us)
            _box(axes, start_ms, stop_ms, y, colour, str(entry.query_len))
    for step in steps:
        mode, (start_ms, stop_ms) = step.descriptor.mode.name, _span(step, zero_us)
        colour = MODE_COLOURS[mode.lower()]
        _box(axes, start_ms, stop_ms, -1.0, colour, str(step.descriptor.num_tokens))
        if step.batch.preempted:
            line = [name for name, *_ in REQUESTS].index(step.batch.preempted[0].request_id)
            axes.text(start_ms + 0.2, 2.38 - line, "preempted: no blocks", size=13, va="center")
    names = [name for name, *_ in REQUESTS]
    axes.set_yticks([2.4, 1.4, 0.4, -0.6], [*names, "runs at"], weight="bold")
    axes.set_ylim(-1.15, 3.0)
    axes.tick_params(axis="both", length=0, labelbottom=False)
    axes.grid(visible=False)


def _lanes(axes: Axes, events: Sequence[TraceEvent], zero_us: float) -> None:
    """What the CPU and the GPU did, in the colours of the README's timeline."""
    for lane, low in ((CPU, 1.0), (GPU, 0.0)):
        for category, spans in _spans([event for event in events if event.lane == lane]).items():
            boxes = []
            for start_us, end_us in spans:
                left, right = (start_us - zero_us) / 1e3, (end_us - zero_us) / 1e3
                boxes.append([(left, low), (left, low + 0.8), (right, low + 0.8), (right, low)])
            colour = COLOURS.get(category, (PALE, ""))[0]
            axes.add_collection(PolyCollection(boxes, facecolors=colour, edgecolors="none"))
    axes.set_title("CPU: grey engine, orange launches, pale waiting · GPU: kernels", pad=4)
    axes.set_yticks([0.4, 1.4], [GPU, CPU], weight="bold")
    axes.set_ylim(-0.1, 1.9)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")


def _spans(events: Sequence[TraceEvent]) -> dict[str, list[tuple[float, float]]]:
    """Category -> (start, end) of what was done without a gap that could be seen, in µs."""
    found: dict[str, list[tuple[float, float]]] = {}
    for event in sorted(events, key=lambda e: e.start_us):
        kind = "node" if event.lane == GPU else event.category
        spans = found.setdefault(kind, [])
        if spans and event.start_us - spans[-1][1] < FILLED_US:
            spans[-1] = (spans[-1][0], event.end_us)
        else:
            spans.append((event.start_us, event.end_us))
    return found


def _span(step: StepRecord, zero_us: float) -> tuple[float, float]:
    return (step.began_us - zero_us) / 1e3, (step.ended_us - zero_us) / 1e3


def _box(axes: Axes, left: float, right: float, y: float, colour: str, text: str) -> None:
    axes.add_patch(
        Rectangle((left, y), right - left, 0.8, facecolor=colour, edgecolor="white", linewidth=1.5)
    )
    axes.text(
        (left + right) / 2, y + 0.38, text, size=13, ha="center", va="center",
        color="black" if colour in (PREFILL, DECODE) else "white",
    )  # fmt: skip


# ---------------------------------------------------------------- memory that runs short

FASTER, SMALL_BUDGET = 8, 2048  # vLLM's budget for a server on a card below 70 GiB
KV_BLOCKS = (600, 800, 1000, 1200, 1600, 2000, 2400, 2800, 3200)  # of 16 tokens
SHAPE, SPEC = named_shape("qwen3-0.6b"), load_spec("h200")
COSTS = StepModel(SHAPE, SPEC)  # remembers what it was asked


@cache
def short_of_memory(blocks: int, *, reserve: bool) -> ServeReport:
    """The shipped trace, its requests FASTER times as fast, with so many blocks of KV cache."""
    mode = "FULL_AND_PIECEWISE"
    sizes = default_capture_sizes(256, SMALL_BUDGET, mode=mode)
    server = size_server(SHAPE, SPEC, mode, sizes, max_num_batched_tokens=SMALL_BUDGET)
    limits = replace(server.limits, num_blocks=blocks + 1, reserve_full_isl=reserve)
    requests = [
        TraceRequest(r.arrival_us / FASTER, r.prompt_tokens, r.output_tokens)
        for r in read_trace(SHIPPED_TRACE)
    ]
    return replay(requests, COSTS, limits, server.dispatcher)


def reserve(path: Path) -> None:
    """Preemptions and the wait for the first token against the KV cache, with and without it."""
    block_gb = 16 * kv_bytes_per_token(SHAPE) / 1e9
    shown = (
        (False, VERMILION, "s", "enters with room for a chunk"),
        (True, BLUE, "o", "enters with room for all of it"),
    )
    lost, kept = (short_of_memory(1000, reserve=one).preemptions for one in (False, True))
    title = f"With 1,000 blocks {lost} preemptions by the chunk, {kept} with the reserve"
    caption = (
        f"{PREDICTED}: qwen3-0.6b on h200, vLLM, FULL_AND_PIECEWISE, a budget of {SMALL_BUDGET:,} "
        f"tokens, the shipped trace {FASTER} times as fast; a block of 16 tokens takes "
        f"{1e3 * block_gb:.2f} MB."
    )
    with canvas(path, (13, 6), title=title, caption=caption) as figure:
        left, right = figure.subplots(1, 2, sharex=True)
        for rule, colour, marker, label in shown:
            served = [short_of_memory(blocks, reserve=rule) for blocks in KV_BLOCKS]
            look = {"color": colour, "marker": marker, "markersize": 8, "label": label}
            left.plot(KV_BLOCKS, [one.preemptions for one in served], **look)
            right.plot(KV_BLOCKS, [(one.ttft_p99_us or 0) / 1e6 for one in served], **look)
        ticks = (600, 1000, 1600, 2000, 2400, 2800, 3200)
        for axes in (left, right):
            axes.set_xticks(ticks, [f"{t:,}\n{t * block_gb:.1f} GB" for t in ticks], size=13)
            axes.set_xlabel("KV cache (blocks)")
            axes.set_ylim(0, None)
        left.yaxis.set_major_formatter("{x:,.0f}")
        left.set_title("preemptions, 500 requests")
        right.set_title("time to the first token, p99 (s)")
        left.legend(loc="upper right")


FIGURES = {"10-batch-over-time.png": batch_over_time, "10-reserve.png": reserve}
