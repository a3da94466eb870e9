"""The key to "Draw it from memory" of INVARIANTS.md: full and piecewise, with what they need.

A schema and not a timeline: the width of a box says nothing about its time. Op names, cuts and the
numbers in the static buffers are the engine's.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle

from mini_engine.dispatch.ladder import CaptureLadder
from mini_engine.engine.batch import Request, SchedulerLimits
from mini_engine.engine.scheduler import Scheduler
from mini_engine.engine.step_arrays import step_arrays
from mini_engine.model.config import named_shape
from mini_engine.plots import hue
from mini_engine.plots.canvas import canvas
from mini_engine.step.kernels import StepParts, StepShape, step_parts

LIMITS = SchedulerLimits(
    max_num_seqs=4, max_num_batched_tokens=16, num_blocks=8, block_size=4, max_model_len=8
)
PROMPTS = ((7, 3, 9), (5, 1, 4, 2, 8), (6,))
SHOWN = ("input_ids", "positions", "slot_mapping", "context_lens", "block_table")
OWNERS = (hue.SERIES[0], hue.SERIES[2], hue.SERIES[1])
WIDTH = 26.0


def decode_batch() -> tuple[dict[str, np.ndarray], int, dict[int, int]]:
    """The arrays of three requests in their first decode step, their rung, and block -> owner."""
    scheduler = Scheduler(LIMITS)
    for number, prompt in enumerate(PROMPTS):
        scheduler.submit(Request(str(number), prompt, 4))
    prefill = scheduler.step()
    assert prefill
    scheduler.update(prefill, [11, 12, 13])
    decode = scheduler.step()
    assert decode
    arrays = step_arrays(decode, LIMITS)
    rung = CaptureLadder([1, 2, 4]).rung(decode.num_reqs)
    assert rung
    table = arrays["block_table"]
    return arrays, rung, {int(b): r for r, row in enumerate(table) for b in row if b}


def key(path: Path) -> None:
    """Static buffers and cache above, then the two ways of running one layer."""
    parts = step_parts(named_shape("qwen3-0.6b"), StepShape.decode(4, 512), "fused9")
    arrays, rung, owners = decode_batch()
    with canvas(
        path,
        (13, 11.2),
        title="Full: one replay for the whole step. Piecewise: a replay for each piece, attention "
        "launched live between them",
        caption="One layer of Qwen3-0.6B, its neighbours cut off, a batch of 3 on the rung of 4; "
        "names, cuts and contents as the engine has them. Widths are not times.",
    ) as figure:
        axes = figure.subplots()
        axes.set_axis_off()
        axes.set(xlim=(0, WIDTH), ylim=(-0.4, 19.4))
        _buffers(axes, arrays, rung)
        _cache(axes, owners, arrays["slot_mapping"])
        _lanes(axes, 6.5, "FULL", parts, full=True)
        _lanes(axes, 0.2, "PIECEWISE", parts, full=False)


def _buffers(axes: Axes, arrays: dict[str, np.ndarray], rung: int) -> None:
    _text(
        axes, 0, 19.0, "static buffers: fixed addresses, copied into before every replay", bold=True
    )
    for column, name in enumerate(SHOWN):
        left = 1.8 + 2.75 * column
        _text(axes, left + 1.3, 18.2, name, centre=True)
        for row in range(rung):
            live = row < len(arrays[name])
            value = arrays[name][row] if live else np.zeros_like(arrays[name][0])
            face = OWNERS[row] if live else hue.IDLE
            _box(axes, left, 17.0 - 0.9 * row, 2.6, 0.8, str(value), face, hatched=not live)
    for row in range(rung):
        label = f"row {row}" if row < len(arrays["input_ids"]) else "padded"
        _text(axes, 0, 17.4 - 0.9 * row, label)


def _cache(axes: Axes, owners: dict[int, int], slots: np.ndarray) -> None:
    _text(axes, 17.3, 19.0, "KV cache: never moves", bold=True)
    for block in range(LIMITS.num_blocks):
        for offset in range(LIMITS.block_size):
            left, bottom = 17.3 + 1.68 * offset, 17.35 - 0.62 * block
            face = OWNERS[owners[block]] if block in owners else hue.PAPER
            slot = block * LIMITS.block_size + offset
            written = "written" if slot in slots else ""
            words = "nobody's" if slot == 0 else written
            _box(
                axes,
                left,
                bottom,
                1.6,
                0.55,
                words,
                hue.IDLE if not block else face,
                hatched=not block,
            )
        _text(axes, 24.1, 17.62 - 0.62 * block, f"block {block}")
    start = (15.6, 17.4 - 0.9 * 3)
    _arrow(axes, start, (17.25, 17.62), hue.MARK)
    _text(axes, 9.6, 13.6, "the padded row writes to slot 0", colour=hue.MARK)


def _lanes(axes: Axes, bottom: float, name: str, parts: StepParts, *, full: bool) -> None:
    """A CPU lane over a GPU lane: a layer, the next one up to its attention, and the head."""
    cut = next(at for at, op in enumerate(parts.layer) if op.splitting)
    ops = [*parts.layer, *parts.layer[: cut + 1]]
    wide, head = (WIDTH - 6.4) / (len(ops) + 1), WIDTH - 3.2
    _text(axes, 0, bottom + 5.3, name, bold=True)
    _text(axes, 0, bottom + 3.9, "CPU")
    _text(axes, 0, bottom + 1.45, "GPU,\none\nstream")
    _text(axes, 3.5, bottom + 1.45, "…")
    _text(axes, 4.2 + len(ops) * wide, bottom + 1.45, "…")
    _cpu(axes, 1.5, bottom, "copy in", hue.COPY, arrow=True)
    _box(axes, 1.5, bottom + 0.7, 1.3, 1.5, "copy", hue.COPY)
    _cpu(axes, WIDTH - 1.35, bottom, "read\n3 rows", hue.ENGINE)
    frames, begin = [], 3.3
    for at, op in enumerate(ops):
        left = 4.1 + at * wide
        words = (
            "atten-\ntion"
            if op.name == "attention"
            else op.name.replace("_", "_\n").replace("\nkv_\n", "\nkv_")
        )
        if full or not op.splitting:
            _box(axes, left, bottom + 0.7, wide - 0.12, 1.5, words, hue.NODE)
            continue
        _box(axes, left + 0.1, bottom + 0.7, wide - 0.44, 1.5, words, hue.KERNEL)
        _cpu(axes, left - 0.15, bottom, "launch", hue.LAUNCH, arrow=True)
        frames.append((begin, left))
        begin = left + wide - 0.15
    words = "\n".join(op.name for op in parts.tail).replace("t_", "t_\n")
    _box(axes, head, bottom + 0.7, 1.7, 1.5, words, hue.NODE if full else hue.KERNEL)
    if full:
        frames = [(begin, WIDTH - 1.4)]
    else:
        _cpu(axes, head - 0.1, bottom, f"launch\n× {len(parts.tail)}", hue.LAUNCH, arrow=True)
    for left, right in frames:
        frame = Rectangle((left, bottom + 0.4), right - left, 2.1, fill=False, edgecolor=hue.CALL)
        frame.set_linewidth(2.5)
        axes.add_patch(frame)
        _cpu(axes, left, bottom, "replay", hue.CALL, arrow=True)
    graphs = "1 graph" if full else "layers + 1 graphs"
    words = (
        "once, at the start, on a side stream: for 4 rows, then 2, then 1, a warm-up and then the "
        f"capture;\none pool, {graphs} a rung (a frame is a graph)"
    )
    _text(axes, 3.3, bottom + 5.35, words, colour=hue.CALL)
    if full:
        words = "attention in the graph: reads context_lens, block_table out of the static buffers"
    else:
        words = "attention launched live: it may look at this batch and choose its launch anew"
    _text(axes, 3.3, bottom - 0.1, words, colour=hue.KERNEL)


def _cpu(
    axes: Axes, left: float, bottom: float, words: str, face: str, *, arrow: bool = False
) -> None:
    _box(axes, left, bottom + 3.4, 1.3, 1.0, words, face)
    if arrow:
        _arrow(axes, (left + 0.65, bottom + 3.35), (left + 0.65, bottom + 2.6), face)


def _box(
    axes: Axes, left: float, bottom: float, width: float, height: float, words: str, face: str,
    *, hatched: bool = False,
) -> None:  # fmt: skip
    style = {"hatch": "///", "edgecolor": hue.ENGINE} if hatched else {"edgecolor": hue.ENGINE}
    axes.add_patch(Rectangle((left, bottom), width, height, facecolor=face, alpha=0.45, **style))
    axes.text(left + width / 2, bottom + height / 2, words, ha="center", va="center", size=10.5,
              linespacing=1.1)  # fmt: skip


def _text(
    axes: Axes, x: float, y: float, words: str, *, bold: bool = False, centre: bool = False,
    colour: str = hue.SOFT,
) -> None:  # fmt: skip
    axes.text(x, y, words, ha="center" if centre else "left", va="center", size=13 if bold else 12,
              weight="bold" if bold else "normal", color=colour)  # fmt: skip


def _arrow(axes: Axes, begin: tuple[float, float], end: tuple[float, float], colour: str) -> None:
    axes.add_patch(
        FancyArrowPatch(
            begin, end, arrowstyle="-|>", mutation_scale=14, linewidth=1.8, color=colour
        )
    )


FIGURES = {"09-from-memory.svg": key}
