"""The figures of chapter 16: what a graph saved for others, which lever to pull, other bars.

In:  the pairs of published points that differ in nothing but the launch, eager and as one graph.
Out: four SVGs.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Patch, Rectangle

from course.draw.ledger import COLOURS, PARTS, TOLD, parts_us
from mini_engine.model.config import named_shape
from mini_engine.plots import hue
from mini_engine.plots.canvas import canvas, percent_ticks
from mini_engine.step.cards import load_spec
from mini_engine.validate.points import SHIPPED_POINTS, Pair, Sheets, pairs, read_points, rows_of


def saved_by_a_graph(path: Path) -> None:
    """Recorded: the share saved against what is left, and the rule of the later clock."""
    sheets = Sheets.shipped()
    points, _ = read_points(SHIPPED_POINTS, sheets)
    steps = [
        (pair.fast.point.itl_ms, 1 - 1 / pair.measured, pair.slow.point.itl_ms)
        for pair in pairs(rows_of(points, sheets))
        if (pair.slow.launched, pair.fast.launched) == ("NONE", "FULL")
    ]
    graph_ms, saved, eager_ms = np.array(steps).T
    quick, waited = eager_ms < SLOW_MS, saved >= WAITED
    title = "What a graph saves shrinks\nas the GPU's work nears the CPU's"
    caption = (
        f"Recorded by others: {len(steps)} pairs of steps, eager and as one graph, each on one "
        f"card and host. Colour: an eager step below or above {SLOW_MS} ms. Curves: the later "
        "clock wins; the CPU's is the median of the eager steps that a graph made a tenth shorter."
    )
    with canvas(path, (6.9, 6.76), title=title, caption=caption) as figure:
        axes = figure.subplots()
        left_ms = np.geomspace(1.2, 26)
        for group, colour, x, y in (
            (quick, hue.SERIES[0], 1.25, 0.3),
            (~quick, hue.SERIES[1], 10.3, 0.62),
        ):
            cpu_ms = float(np.median(eager_ms[group & waited]))
            rule = 1 - left_ms / np.maximum(left_ms, cpu_ms)
            axes.plot(left_ms, rule, color=colour, zorder=1)
            axes.text(x, y, f"{cpu_ms:.2g} ms of Python", color=colour, weight="bold", size=14)
        token = min(range(len(steps)), key=lambda n: steps[n][0])  # of chapter 0
        axes.annotate(
            "the token\nof chapter 0", (graph_ms[token], saved[token] - 0.015), (1.25, 0.5),
            size=14, arrowprops={"arrowstyle": "-|>", "color": hue.INK},
        )  # fmt: skip
        for of, colour in ((quick, hue.SERIES[0]), (~quick, hue.SERIES[1])):
            axes.plot(graph_ms[of], saved[of], "o", color=colour, markersize=7, alpha=0.7)
        axes.set_xscale("log")
        axes.set_xticks([1.5, 3, 6, 12, 24], ["1.5", "3", "6", "12", "24"])
        axes.minorticks_off()
        axes.set_xlabel("the step as one graph (ms)")
        axes.set_ylabel("saved of the eager step")
        axes.set_ylim(-0.1, 1)
        percent_ticks(axes)


# ---------------------------------------------------------------- what a layer costs

# a row: engine and card, a part of the host's name, what is printed
HOSTS = (
    ("SGLang eager", "h100", "yiconrain", "SGLang, H100,\n0.6B to 8B"),
    ("SGLang eager", "h100", "pull/1401", "SGLang, another\nH100, 8B"),
    ("vLLM eager", "h100", "pull/10058", "vLLM, H100,\n8B"),
    ("plain PyTorch eager loop", "rtx5090", "", "plain PyTorch,\nRTX 5090, 0.6B"),
    ("vLLM eager", "a100", "", "vLLM, two A100\nhosts, 7B and 8B"),
    ("nano-vllm eager", "rtx5090", "", "nano-vllm,\nRTX 5090, 4B"),
    ("nano-vllm eager", "rtx3090", "", "nano-vllm,\nRTX 3090, 0.6B"),
)
SLOW_US = 450  # a layer, between the groups
SLOW_MS, WAITED = (
    15,
    0.1,
)  # an eager step is slow from here on; a graph saves this if the GPU waited


def us_a_layer(found: Iterable[Pair]) -> dict[str, list[float]]:
    """Of each row of `HOSTS`: the eager steps during which the GPU waited, µs by layers."""
    whole = [one for one in found if (one.slow.launched, one.fast.launched) == ("NONE", "FULL")]
    waited = [one.slow.point for one in whole if 1 - 1 / one.measured >= WAITED]
    return {
        told: [
            1e3 * step.itl_ms / named_shape(step.model).num_layers
            for step in waited
            if step.cls == cls and step.card.startswith(card) and part in step.host
        ]
        for cls, card, part, told in HOSTS
    }


def layers(path: Path) -> None:
    """Recorded: a strip of points for each engine and host."""
    sheets = Sheets.shipped()
    points, _ = read_points(SHIPPED_POINTS, sheets)
    found = us_a_layer(pairs(rows_of(points, sheets)))
    title = "An eager step costs its layers\ntimes what the host asks for one"
    caption = (
        f"Recorded by others: the {sum(map(len, found.values()))} eager steps of the last figure "
        "of which a graph saved at least a tenth. Colours as there."
    )
    with canvas(path, (6.9, 6.36), title=title, caption=caption) as figure:
        axes = figure.subplots()
        for row, us in enumerate(found.values()):
            colour = hue.SERIES[int(min(us) > SLOW_US)]
            axes.plot(us, [row] * len(us), "o", color=colour, markersize=9, alpha=0.6)
        axes.set_yticks(range(len(found)), list(found))
        axes.invert_yaxis()
        axes.set_xlim(0, 1040)
        axes.set_xlabel("eager step by layers (µs a layer)")


# ---------------------------------------------------------------- which lever

QUESTIONS = (  # a question, and where "yes" leads
    (
        "Do users wait outside\nof the step?",
        "Tokeniser, network: no kernel\nhelps. (A queue because the\nstep is slow is a no.)",
    ),
    (
        "Does the GPU idle for\nover a fifth of a step?",
        "Record the step: graphs,\nladder, pieces (5, 8, 9)",
    ),
    ("Are its kernels shorter\nthan some 7 µs?", "Fewer kernels, early\nstarts (11, 13, 15)"),
    (
        "Do the bytes explain\nover half of the time?",
        "Few bits, or more users\nfor each byte (3, 10)",
    ),
)
LAST = "Then it is arithmetic: reuse prompts (10),\ntile (12), or take a larger card"
ROW, BOX = 2.0, 1.25


def which_lever(path: Path) -> None:
    """Four questions in the order in which to ask them."""
    title = "Ask from the top and pull the lever at the first yes"
    caption = "Numbers in brackets are chapters."
    with canvas(path, (6.9, 9.16), title=title, caption=caption) as figure:
        axes = figure.subplots()
        axes.set_axis_off()
        axes.set(xlim=(-0.05, 10.05), ylim=(-len(QUESTIONS) * ROW - BOX - 0.1, 0.1))
        for row, (question, lever) in enumerate(QUESTIONS):
            top = -row * ROW
            _box(axes, 0, 4.0, top, question, hue.INK)
            _box(axes, 4.8, 5.2, top, lever, hue.SERIES[0])
            _arrow(axes, (4.0, top - BOX / 2), (4.8, top - BOX / 2), "yes")
            _arrow(axes, (2.05, top - BOX), (2.05, top - ROW), "no")
        _box(axes, 0, 10, -len(QUESTIONS) * ROW, LAST, hue.SERIES[0])


def _box(axes: Axes, left: float, wide: float, top: float, text: str, colour: str) -> None:
    axes.add_patch(
        Rectangle((left, top - BOX), wide, BOX, facecolor=hue.PAPER, edgecolor=colour, lw=2.2)
    )
    axes.text(left + wide / 2, top - BOX / 2, text, ha="center", va="center", size=14)


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], word: str) -> None:
    axes.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=20, color=hue.INK))
    level = start[1] == end[1]
    x, y = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2
    axes.text(x + (0 if level else 0.2), y + (0.14 if level else 0), word, size=15,
              ha="center" if level else "left", va="bottom" if level else "center")  # fmt: skip


# ---------------------------------------------------------------- other bars

BARS = (("0.6B, H200", "qwen3-0.6b", "h200"), ("8B, H200", "qwen3-8b", "h200"),
        ("8B, RTX 4090", "qwen3-8b", "rtx4090"))  # fmt: skip


def other_bars(path: Path) -> None:
    """The ledger's second bar and its graph, for more weights and for a slower card."""
    caption = "Predicted: vLLM's kernels in a usual server, one request, 512 tokens of context."
    title = "More bytes on a slower card:\nnothing is left for a graph to cut"
    with canvas(path, (6.9, 6.36), title=title, caption=caption) as figure:
        axes = figure.subplots()
        names, row = [], 0.0
        for name, model, card in BARS:
            spec, config = load_spec(card, engine="vllm"), named_shape(model)
            for told, mode in ((name, "eager"), ("… in a graph", "full")):
                left, parts = 0.0, parts_us(spec, mode, config=config)
                for part in reversed(PARTS):
                    wide = parts[part] / 1e3
                    axes.barh(row, wide, left=left, color=COLOURS[part])
                    left += wide
                axes.text(left, row, f"  {left:.1f} ms", va="center", weight="bold")
                names.append((row, told))
                row += 1.0
            row += 0.5
        axes.set_yticks([at for at, _ in names], [told for _, told in names])
        axes.invert_yaxis()
        axes.set_xlim(0, 22.5)
        axes.set_xlabel("time of one token (ms)")
        axes.grid(visible=False, axis="y")
        axes.legend(
            handles=[Patch(color=COLOURS[part], label=TOLD[part]) for part in reversed(PARTS)],
            loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, borderaxespad=0,
            handlelength=1.2, columnspacing=1,
        )  # fmt: skip


FIGURES = {
    "16-saved-by-a-graph.svg": saved_by_a_graph,
    "16-us-a-layer.svg": layers,
    "16-which-lever.svg": which_lever,
    "16-other-bars.svg": other_bars,
}
