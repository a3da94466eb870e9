"""Figures of chapter 12: what the score matrix costs in bytes, how a running softmax is corrected,
and how one query fills a GPU."""

from __future__ import annotations

import math
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from mini_engine.model.config import named_shape
from mini_engine.plots import hue
from mini_engine.plots.canvas import canvas
from mini_engine.step.cards import load_spec
from mini_engine.step.kernels import StepShape, step_ops

LENGTHS = [128 << i for i in range(9)]  # 128 to 32,768 tokens
CONTEXT = 512  # of the course's own step
SPLIT_COLOURS = hue.SERIES


# ---------------------------------------------------------------- traffic


def attention_bytes(shape: StepShape) -> float:
    """One layer of qwen3-0.6b in one kernel: q, keys, values in, and the result out."""
    ops = step_ops(named_shape("qwen3-0.6b"), shape, "fused9")
    return next(op.bytes for op in ops if op.name == "attention")


def score_bytes(queries: int, keys: int) -> float:
    """The score matrix through memory: written, read by softmax, written, read by the product."""
    config = named_shape("qwen3-0.6b")
    return 4 * config.num_heads * queries * keys * config.dtype_bytes


def traffic(path: Path) -> None:
    """Bytes of attention in one layer, with the scores in memory and without them."""
    prompt = score_bytes(4096, 4096) / attention_bytes(StepShape.mixed([4096], [4096]))
    decode = score_bytes(1, CONTEXT) / attention_bytes(StepShape.decode(1, CONTEXT))
    title = (
        f"Scores are {prompt:.0f} times all other bytes of a prompt of 4,096 tokens, and "
        f"{decode:.0%} of a decode step's"
    )
    caption = (
        "Counted for one layer of Qwen3-0.6B in bf16. Each key and value once; the score matrix "
        "is written and read twice."
    )
    with canvas(path, (6.9, 6.16), title=title, caption=caption) as figure:
        left, right = figure.subplots(1, 2, sharey=True)
        for axes, name, shapes in (
            (left, "prompt: n queries", [StepShape.mixed([n], [n]) for n in LENGTHS]),
            (right, "decode: 1 query", [StepShape.decode(1, n) for n in LENGTHS]),
        ):
            flash = [attention_bytes(shape) / 1e6 for shape in shapes]
            scores = [
                score_bytes(shape.num_tokens, n) / 1e6
                for shape, n in zip(shapes, LENGTHS, strict=True)
            ]
            axes.plot(LENGTHS, scores, "--", color=hue.OTHER, label="the scores")
            axes.plot(LENGTHS, flash, "-", color=hue.MARK, label="all else")
            axes.set_title(name)
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_xticks(LENGTHS[2::4], [f"{n:,}" for n in LENGTHS[2::4]])
            axes.set_xticks([], minor=True)
            axes.set_xlabel("n keys")
        left.set_ylabel("bytes through HBM (MB)")
        left.legend(loc="upper left")


# ---------------------------------------------------------------- the running softmax

SCORES, VALUES = (1.0, 3.0, 2.0, 5.0), (10.0, 20.0, 30.0, 40.0)


def online(path: Path) -> None:
    """The weights of four scores in two tiles, before and after the largest score changes."""
    frames = (("first tile, m = 3", 2, 3.0), ("m = 5: they shrink", 2, 5.0),
              ("second tile, m = 5", 4, 5.0))  # fmt: skip
    with canvas(
        path, (6.9, 5.36), title="A larger score comes, and older weights shrink",
        caption="Scores 1, 3 and then 2, 5; values 10, 20 and then 30, 40. A bar is the weight "
        "e^(score - m), m the largest score so far.",
    ) as figure:  # fmt: skip
        every = figure.subplots(1, 3, sharey=True)
        for axes, (title, seen, largest) in zip(every, frames, strict=True):
            weights = [math.exp(score - largest) for score in SCORES[:seen]]
            total = sum(w * v for w, v in zip(weights, VALUES[:seen], strict=True))
            axes.bar(
                range(seen),
                weights,
                color=[hue.SERIES[0], hue.SERIES[0], hue.SERIES[1], hue.SERIES[1]][:seen],
            )
            for place, weight in enumerate(weights):
                axes.text(place, weight + 0.02, f"{weight:.2f}", ha="center")
            axes.set_title(title, size=14)
            axes.set_xlim(-0.6, 3.6)
            axes.set_ylim(0, 1.2)
            axes.set_xticks(range(4), [f"{score:g}" for score in SCORES])
            axes.set_xlabel(f"answer: {total / sum(weights):.1f}", weight="bold")
            axes.grid(visible=False)


# ---------------------------------------------------------------- splits


def split(path: Path) -> None:
    """One query over 512 keys: who takes which tile, and how many SMs have something to do."""
    # torch stands behind these two; the numbers themselves need none
    from mini_engine.cuda.kernels.attention import TILE, num_splits

    config, sms = named_shape("qwen3-0.6b"), load_spec("h200").sm_count
    kv_heads, tiles = config.num_kv_heads, CONTEXT // TILE
    splits = num_splits(CONTEXT, 1, kv_heads, 2 * sms)
    rows = [
        (f"{config.num_heads} query heads", config.num_heads),
        (f"{kv_heads} KV heads", kv_heads),
        (f"… in {splits} splits", kv_heads * splits),
    ]
    query, shared, parts = (count for _, count in rows)
    title = f"One query fills {shared} to {query} of {sms} SMs; split, it fills {parts}"
    caption = f"Qwen3-0.6B, one request, {CONTEXT} keys in tiles of {TILE}, on an H200."
    with canvas(path, (6.9, 6.56), title=title, caption=caption) as figure:
        above, below = figure.subplots(2, 1, height_ratios=[1, 0.9])
        for line, count in enumerate((1, 4, splits)):
            _tiles(above, -1.5 * line, tiles, count)
        above.set_title(f"who takes which of a head's {tiles} tiles")
        above.set_xlim(-3.6, tiles + 0.2)
        above.set_ylim(-3.3, 1.1)
        above.set_axis_off()
        _programs(below, rows, sms)


def _tiles(axes: Axes, y: float, tiles: int, splits: int) -> None:
    for tile in range(tiles):
        owner = tile % splits
        colour = SPLIT_COLOURS[owner % len(SPLIT_COLOURS)]
        axes.add_patch(Rectangle((tile, y), 0.94, 1, facecolor=colour, edgecolor=hue.PAPER))
        if splits > 10 and owner not in (0, splits - 1):
            continue  # two figures do not fit side by side
        axes.text(
            tile + 0.47, y + 0.47, str(owner), ha="center", va="center",
            color=hue.ink_on(colour),
        )  # fmt: skip
    noun = "1 program" if splits == 1 else f"{splits} programs"
    axes.text(-0.3, y + 0.47, noun, ha="right", va="center")


def _programs(axes: Axes, rows: list[tuple[str, int]], sms: int) -> None:
    for line, (_, count) in enumerate(rows):
        axes.barh(-line, count, color=hue.KERNEL if count >= sms / 2 else hue.MARK, height=0.62)
        inside = count >= sms / 2
        axes.text(
            count - 3 if inside else count + 2, -line, str(count), va="center_baseline",
            ha="right" if inside else "left", weight="bold", color=hue.PAPER if inside else hue.INK,
        )  # fmt: skip
    axes.axvline(sms, color=hue.INK, linewidth=1.5, linestyle="--")
    axes.text(sms + 3, 0, f"{sms} SMs on the card", va="center")
    axes.set_yticks([-line for line in range(len(rows))], [name for name, _ in rows])
    axes.set_xlim(0, 225)
    axes.set_ylim(-len(rows) + 0.5, 0.6)
    axes.set_xlabel("programs that can run side by side")
    axes.grid(visible=False, axis="y")


FIGURES = {"12-traffic.svg": traffic, "12-online.svg": online, "12-split.svg": split}
