"""Figures of chapter 10: three requests on both clocks, and what a batch and a reader more do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.patches import Patch, Rectangle

from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.engine.batch import Request, SchedulerLimits
from mini_engine.engine.engine import Engine, StepRecord
from mini_engine.model.config import named_shape
from mini_engine.plots import hue
from mini_engine.plots.canvas import canvas, doubling_ticks
from mini_engine.plots.timeline import COLOURS
from mini_engine.sim.device import Device
from mini_engine.sim.recorded import load_recording
from mini_engine.sim.runner import SimRunner
from mini_engine.sim.trace import CPU, GPU, TraceEvent
from mini_engine.step.cards import load_spec
from mini_engine.step.kernels import StepShape, step_ops
from mini_engine.step.run import step_time
from mini_engine.step.storage import stored_as
from mini_engine.validate.points import SHIPPED_POINTS, Sheets, read_points

# (name, prompt tokens, new tokens, arrival in ms)
REQUESTS = [("Ann", 200, 18, 0.0), ("Bob", 800, 12, 2.0), ("Cem", 300, 6, 9.0)]
FILLED_US = 20.0  # shorter gaps are narrower than a dot of the figure
BUDGET, USABLE_BLOCKS = 512, 83  # so few blocks that not all three fit to their end
LIMITS = SchedulerLimits(
    max_num_seqs=256,
    max_num_batched_tokens=BUDGET,
    num_blocks=USABLE_BLOCKS + 1,
    block_size=16,
    max_model_len=2048,
)
PREFILL, DECODE, WAITING = hue.PREFILL, hue.DECODE, hue.IDLE


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
        f"{modes.count('PIECEWISE')} carry a prompt and run in pieces"
    )
    caption = (
        "Predicted: Qwen3-0.6B on an H200, our engine with nine kernels a layer, a budget of "
        f"{BUDGET} tokens, {USABLE_BLOCKS} blocks of 16. In a row: the tokens of the step; "
        "below: the rows that it is padded to."
    )
    with canvas(path, (6.9, 8.6), title=title, caption=caption) as figure:
        rows = figure.subplots(3, 1, sharex=True, height_ratios=[0.75, 2.0, 0.9])
        _legend(rows[0])
        _requests(rows[1], steps, zero_us)
        _lanes(rows[2], events, zero_us)
        rows[2].set_xlim(0, (steps[-1].ended_us - zero_us) / 1e3)
        rows[2].set_xlabel("time since the first request (ms)")


def _legend(axes: Axes) -> None:
    shown = [
        (PREFILL, "prompt, or a chunk of it"),
        (DECODE, "decode"),
        (WAITING, "waits for a seat"),
        (hue.MODE_COLOURS["full"], "FULL"),
        (hue.MODE_COLOURS["piecewise"], "PIECEWISE"),
    ]
    axes.set_axis_off()
    legend = axes.legend(
        handles=[Patch(color=colour, label=label) for colour, label in shown],
        loc="upper left", ncols=2, columnspacing=1.2, handlelength=1.2, borderaxespad=0,
    )  # fmt: skip
    legend.set_in_layout(False)  # a long name must not make the lanes narrow


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
        colour = hue.MODE_COLOURS[mode.lower()]
        _box(axes, start_ms, stop_ms, -1.0, colour, str(step.descriptor.num_tokens))
        if step.batch.preempted:
            line = [name for name, *_ in REQUESTS].index(step.batch.preempted[0].request_id)
            axes.text(start_ms + 0.2, 2.38 - line, "preempted", size=14, va="center")
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
            colour = COLOURS.get(category, (hue.IDLE, ""))[0]
            axes.add_collection(PolyCollection(boxes, facecolors=colour, edgecolors="none"))
    axes.set_title("CPU: orange launches, grey engine, pale waits", pad=4)
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


LETTER_MS = 0.72  # of the text in a box


def _box(axes: Axes, left: float, right: float, y: float, colour: str, text: str) -> None:
    axes.add_patch(
        Rectangle(
            (left, y), right - left, 0.8, facecolor=colour, edgecolor=hue.PAPER, linewidth=1.5
        )
    )
    if len(text) * LETTER_MS < right - left:  # else the next box says the same
        axes.text(
            (left + right) / 2, y + 0.38, text, size=14, ha="center", va="center",
            color=hue.INK if colour in (PREFILL, DECODE) else hue.PAPER,
        )  # fmt: skip


# ---------------------------------------------------------------- what a batch does

MANY = 128  # the batch that the title speaks of


def throughput(path: Path) -> None:
    """Tokens a second against the requests of a batch, as recorded: of all of them, and of each."""
    servers = (
        ("vLLM on a B200, graph", hue.SERIES[0], "*", [(batch, 1e3 / ms) for batch, ms in ON_B200]),
        ("SGLang on an H100, graph", hue.FULL, "o", recorded("cg")),
        ("the same, eager", hue.EAGER, "o", recorded("eager")),
    )
    (_, alone), (_, crowded) = servers[0][3]
    with canvas(
        path, (6.9, 9.4),
        title=f"{MANY} readers in one batch write {MANY * crowded / alone:.0f} times as much "
        f"as one, each at {crowded / alone:.0%} of the speed",
        caption="Recorded by others: Qwen3-0.6B, SGLang with 272 tokens of context, vLLM (context "
        "not told). Dotted: a step that takes as long for many as for one.",
    ) as figure:  # fmt: skip
        legend, above, below = figure.subplots(3, 1, height_ratios=[0.8, 2, 2])
        for label, colour, mark, points in servers:
            batches, each = zip(*points, strict=True)
            totals = [batch * one for batch, one in points]
            style = {"color": colour, "markersize": 15 if mark == "*" else 9}
            above.plot(batches, totals, f"{mark}-", label=label, **style)
            below.plot(batches, each, f"{mark}-", **style)
            above.plot([1, MANY], [each[0], MANY * each[0]], ":", color=colour)
            below.plot([1, MANY], [each[0]] * 2, ":", color=colour)
        above.set_yscale("log")
        for axes, told in ((above, "all readers together"), (below, "each reader")):
            axes.set_xscale("log", base=2)
            axes.set_ylabel("tokens a second")
            axes.set_title(told)
            axes.yaxis.set_major_formatter("{x:,.0f}")
            doubling_ticks(axes, 1, MANY)
        below.set_ylim(0, 750)
        below.set_xlabel("requests that decode at once")
        legend.set_axis_off()
        shown = legend.legend(*above.get_legend_handles_labels(), loc="upper left", borderaxespad=0)
        shown.set_in_layout(False)


def recorded(way: str) -> list[tuple[int, float]]:
    """Requests, and tokens a second of each, as the profile of chapter 0 has it for SGLang."""
    published, _ = read_points(SHIPPED_POINTS, Sheets.shipped())
    known = re.compile(rf"yicon-sglang-{way}-qwen3-0\.6b-b\d+-p16")
    return sorted((p.batch, 1e3 / p.itl_ms) for p in published if known.fullmatch(p.id))


# Batch and ms of a step in one graph: https://github.com/vllm-project/vllm/issues/47089
ON_B200 = ((1, 1.5), (128, 2.5))
SGLANG_TOKENS = 336  # of a text, halfway from the 128th token after a prompt of 16 to the 512th

# ---------------------------------------------------------------- what a further reader adds

KEYS, ROWS, SERVER = "its keys and values", "its rows in the kernels", "the server's work for it"
APART = {KEYS: hue.ATTENTION, ROWS: hue.PRODUCT, SERVER: hue.ENGINE, "not taken apart": hue.OTHER}


def further_reader(path: Path) -> None:
    """What one more request adds to a step, in µs: three recorded servers, and our formula."""
    shape, h200, known = named_shape("qwen3-0.6b"), load_spec("h200"), Sheets.shipped()
    points = {p.id: p for p in read_points(SHIPPED_POINTS, known)[0]}
    token = stored_as(shape).kv_bytes_per_token

    few, many = (load_recording("sglang-qwen3-0.6b-h100-graph", n).table for n in (1, 16))
    busy = (many.busy_us - few.busy_us) / 15
    idle = [t.idle_us + (t.idle_in_launch_us or 0) for t in (few, many)]
    waits = (idle[1] - idle[0]) / 15
    keys = token * SGLANG_TOKENS / load_spec("h100").attention_gb_s / 1e3

    first, last = points["gf-graph-b1"], points["gf-graph-b32-in128"]
    nano = 1e3 * (last.itl_ms - first.itl_ms) / (last.batch - first.batch)
    nano_keys = token * last.context / load_spec("rtx3090").attention_gb_s / 1e3

    (alone, ms), (crowd, longer) = ON_B200
    one, more = (
        step_time(step_ops(shape, StepShape.decode(n, 512), h200.ops), h200, "full", num_reqs=n)
        for n in (1, 33)
    )
    ours = (more.itl_us - one.itl_us) / 32
    our_keys = token * 512 / h200.attention_gb_s / 1e3
    bars = {
        "vLLM on a B200, recorded": (0, 0, 0, 1e3 * (longer - ms) / (crowd - alone)),
        "SGLang on an H100, recorded": (keys, busy - keys, waits, 0),
        "nano-vllm on an RTX 3090, recorded": (nano_keys, 0, 0, nano - nano_keys),
        "our formula for vLLM on an H200": (
            our_keys, ours - our_keys - h200.request_us, h200.request_us, 0,
        ),
    }  # fmt: skip
    totals = [sum(parts) for parts in bars.values()]
    with canvas(
        path, (6.9, 7.6),
        title=f"A further reader makes a step {min(totals):.0f} to {max(totals):.0f} µs longer",
        caption="Qwen3-0.6B in one graph. Recorded by others; the last is fitted to steps of vLLM.",
    ) as figure:  # fmt: skip
        axes, legend = figure.subplots(2, 1, height_ratios=[4, 1.5])
        for y, (who, parts) in enumerate(bars.items()):
            axes.text(0, y - 0.36, who, va="bottom")
            left = 0.0
            for us, colour in zip(parts, APART.values(), strict=True):
                axes.barh(y, us, left=left, height=0.5, color=colour, edgecolor=hue.PAPER)
                if us > 6:
                    axes.text(
                        left + us / 2, y, f"{us:.0f}", ha="center", va="center",
                        color=hue.ink_on(colour),
                    )  # fmt: skip
                left += us
            axes.text(left + 1, y, f"{left:.0f} µs", va="center", weight="bold")
        axes.set(xlim=(0, 1.2 * max(totals)), ylim=(len(bars) - 0.5, -0.8))
        axes.set_xlabel("µs that one more request adds to a step")
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        legend.set_axis_off()
        handles = [Patch(color=colour, label=part) for part, colour in APART.items()]
        legend.legend(handles=handles, loc="upper left", borderaxespad=0, handlelength=1.2)


FIGURES = {
    "10-throughput.svg": throughput,
    "10-batch-over-time.svg": batch_over_time,
    "10-further-reader.svg": further_reader,
}
