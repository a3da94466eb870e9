"""Figures of chapter 7: what a KV cache saves, and how its rows lie in memory."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from mini_engine.engine.blocks import NULL_BLOCK, BlockPool, slot_of
from mini_engine.model.config import named_shape
from mini_engine.plots import hue
from mini_engine.plots.canvas import canvas, doubling_ticks
from mini_engine.step.cards import load_spec
from mini_engine.step.kernels import OpCost, StepShape, step_ops
from mini_engine.step.run import step_time

CONTEXTS = [128 << i for i in range(9)]  # 128 to 32,768 tokens, this step's included
RUNNING = 512  # the course's own step
# (request, tokens that it has when it asks): they grow in turns, so that blocks get mixed
GROWTH = [("A", 16), ("B", 11), ("C", 30), ("A", 37), ("D", 20), ("C", 52)]
LONGEST, BLOCK_SIZE, NUM_BLOCKS = 64, 16, 12
WHITE = hue.PAPER
COLOURS = dict(zip("ABCD", hue.SERIES, strict=False))


# ---------------------------------------------------------------- work


def work(path: Path) -> None:
    """Arithmetic of the next token and its predicted step, with and without a cache."""
    config, spec = named_shape("qwen3-0.6b"), load_spec("h200")
    cached = [step_ops(config, StepShape.decode(1, n), spec.ops) for n in CONTEXTS]
    again = [step_ops(config, StepShape.mixed([n], [n]), spec.ops) for n in CONTEXTS]
    title = "With a cache, attention costs a token O(n) and all else O(1)"
    caption = (
        "Above: counted for qwen3-0.6b, one request. Below: predicted for one "
        f"{spec.name} and {spec.engine}, not measured, with all arithmetic at "
        f"{spec.product_tflops / spec.peak_tflops:.0%} of the card's peak, which flatters the line "
        "without a cache."
    )
    with canvas(path, (6.9, 9.6), title=title, caption=caption) as figure:
        left, right = figure.subplots(2, 1)
        ways = ((again, hue.OTHER, "without a cache"), (cached, hue.MARK, "with a cache"))
        for ops, colour, name in ways:
            left.plot(CONTEXTS, _gflop(ops, attention=True), "--", color=colour)
            left.plot(CONTEXTS, _gflop(ops, attention=False), "-", color=colour)
            step_ms = [step_time(o, spec, "full").itl_us / 1e3 for o in ops]
            right.plot(CONTEXTS, step_ms, "-", color=colour)
            right.annotate(
                name, (CONTEXTS[-1], step_ms[-1]), xytext=(-4, 8), textcoords="offset points",
                ha="right", color=colour, weight="bold",
            )  # fmt: skip
        slopes = ((again, hue.OTHER, "no cache", "n²", "n"), (cached, hue.MARK, "cache", "n", "1"))
        for ops, colour, name, steep, flat in slopes:
            attention, rest = (_gflop(ops, attention=which) for which in (True, False))
            _name(left, attention, f"{name}, attention: O({steep})", colour, below=True)
            _name(left, rest, f"{name}, all else: O({flat})", colour)
        right.annotate(
            f"the course's step:\nn = {RUNNING}", (RUNNING, 100), xytext=(8, 0),
            textcoords="offset points", size=14, color=hue.OTHER,
        )  # fmt: skip
        _axes(left, "arithmetic (GFLOP)")
        _axes(right, "the step, in one graph (ms)")
        left.set_ylim(0.003, None)  # room for the name of the lowest line
        right.set_ylim(None, 600)  # and of the upper line


def _gflop(steps: list[list[OpCost]], *, attention: bool) -> list[float]:
    return [sum(op.flops for op in s if (op.name == "attention") is attention) / 1e9 for s in steps]


def _name(axes: Axes, ys: list[float], text: str, colour: str, *, below: bool = False) -> None:
    """A line's name: left above it, or right below it, where a rising line leaves room."""
    at = 3 if below else 4
    axes.annotate(
        text, (CONTEXTS[at], ys[at]), xytext=(0, -20) if below else (-6, 8),
        textcoords="offset points", ha="left" if below else "right", color=colour,
    )  # fmt: skip


def _axes(axes: Axes, label: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    doubling_ticks(axes, CONTEXTS[0], CONTEXTS[-1])
    axes.tick_params(axis="x", labelrotation=45)
    axes.axvline(RUNNING, color=hue.OTHER, linewidth=1.2, linestyle=":")
    axes.set_xlabel("n: tokens of context")
    axes.set_ylabel(label)


# ---------------------------------------------------------------- layouts


def layouts(path: Path) -> None:
    """The same four requests in a padded cache and in a paged one."""
    pool = BlockPool(NUM_BLOCKS, BLOCK_SIZE)
    lengths: dict[str, int] = {}
    for name, tokens in GROWTH:
        pool.allocate(name, tokens)
        lengths[name] = tokens
    used = sum(lengths.values())
    padded = len(lengths) * LONGEST
    paged = sum(len(pool.block_table(name)) for name in lengths) * BLOCK_SIZE
    title = f"{used} tokens take {padded} slots of a padded cache, {paged} of a paged one"
    caption = (
        f"Four requests grow in turns; blocks of {BLOCK_SIZE} tokens, texts of up to {LONGEST}. "
        "A small box is a slot: keys and values of one token. Pale: reserved and empty. "
        "White: free."
    )
    with canvas(path, (6.9, 8.4), title=title, caption=caption) as figure:
        above, below = figure.subplots(2, 1, height_ratios=[1, 1.5])
        _padded(above, lengths)
        _paged(below, pool, lengths)


def _padded(axes: Axes, lengths: dict[str, int]) -> None:
    for row, (name, tokens) in enumerate(lengths.items()):
        for position in range(LONGEST):
            _cell(axes, position, -row, COLOURS[name] if position < tokens else hue.IDLE)
        axes.text(-0.8, -row + 0.4, name, ha="right", va="center", weight="bold")
    axes.set_title(f"padded: a row of {LONGEST} slots for each request")
    _blank(axes, (-3, LONGEST + 1.5), (-len(lengths) + 0.8, 1.2))


def _paged(axes: Axes, pool: BlockPool, lengths: dict[str, int]) -> None:
    per_line = 4
    owner: dict[int, str] = {}
    for name, tokens in lengths.items():
        table = pool.block_table(name)
        for position in range(tokens):
            owner[slot_of(table, position, BLOCK_SIZE)] = name
    free = [b for b in range(1, NUM_BLOCKS) if all(b not in pool.block_table(n) for n in lengths)]

    def colour(slot: int) -> str:
        empty = WHITE if slot // BLOCK_SIZE in free else hue.IDLE
        return COLOURS[owner[slot]] if slot in owner else empty

    for slot in range(NUM_BLOCKS * BLOCK_SIZE):
        block, offset = divmod(slot, BLOCK_SIZE)
        column, line = block % per_line, block // per_line
        x = column * (BLOCK_SIZE + 0.4) + offset
        _cell(axes, x, -1.9 * line, hue.OTHER if block == NULL_BLOCK else colour(slot))
        if offset == 0:
            said = {NULL_BLOCK: ": nobody's"} | dict.fromkeys(free, ": free")
            note = f"{block}{said[block]}" if block in said else f"block {block}"
            axes.text(x, -1.9 * line + 0.9, note, size=14, va="bottom")
    axes.text(-0.8, -5.2, "block tables", weight="bold", va="top", size=14)
    for i, name in enumerate(lengths):
        said = f"{name}: {', '.join(map(str, pool.block_table(name)))}"
        at = i * (BLOCK_SIZE + 0.4)
        axes.text(at, -6.2, said, color=COLOURS[name], weight="bold", va="top", size=14)
    axes.set_title("paged: blocks, found through a table")
    _blank(axes, (-3, LONGEST + 1.5), (-7.4, 1.8))


def _cell(axes: Axes, x: float, y: float, colour: str, width: float = 1.0) -> None:
    axes.add_patch(
        Rectangle(
            (x, y),
            width,
            0.8,
            facecolor=colour,
            edgecolor=hue.IDLE if colour == WHITE else WHITE,
            linewidth=0.6,
        )
    )


def _blank(axes: Axes, x: tuple[float, float], y: tuple[float, float]) -> None:
    axes.set_xlim(*x)
    axes.set_ylim(*y)
    axes.set_axis_off()


FIGURES = {"07-work.svg": work, "07-layouts.svg": layouts}
