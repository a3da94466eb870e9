"""The ledger: one decode step as a bar, shorter from chapter to chapter, and what it is made of.

    print(ledger(5))        # the bars that a reader of chapter 5 knows, in characters
    rows_of(5)              # the same as `Bar`s
    python -m course.draw ledger

The step is Qwen3-0.6B's on an H200 in a usual server: batch 1, 512 tokens of context. Its parts add
up to the time of one token. A bar appears with the chapter that earns it, and stays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from mini_engine.model.config import ModelConfig, named_shape
from mini_engine.plots import hue
from mini_engine.plots.canvas import canvas
from mini_engine.step.cards import DeviceSpec, load_spec
from mini_engine.step.kernels import StepShape, step_ops
from mini_engine.step.run import Mode, around, kernel_us, launched, step_time, with_pdl
from mini_engine.step.storage import stored_as

COURSE = Path(__file__).parent.parent
CONFIG, DECODE = named_shape("qwen3-0.6b"), StepShape.decode(1, 512)
PARTS = ("engine", "launches", "starts", "bytes")
COLOURS = {"engine": hue.ENGINE, "launches": hue.LAUNCH, "starts": hue.STARTS, "bytes": hue.BYTES}
TOLD = {
    "engine": "around the step",
    "launches": "GPU waits for orders",
    "starts": "starting kernels",
    "bytes": "moving bytes",
}
WORKS = "GPU at work"  # what starts and bytes are called before the chapter that tells them apart
GPU_SHARE, TAKEN_APART = 1, 2  # the chapters from which on a bar shows some of its parts, or all
FLOOR = 3  # the chapter that finds the floor


@dataclass(frozen=True)
class Bar:
    """One way to run the step. `parts_us` add up to the time of one token."""

    label: str
    chapter: int  # that earns it
    parts_us: dict[str, float]

    @property
    def ms(self) -> float:
        return sum(self.parts_us.values()) / 1e3

    @property
    def told(self) -> str:
        return f"{self.ms:#.2g}".rstrip(".") + " ms"


def parts_us(
    spec: DeviceSpec,
    mode: Mode,
    steps: int = 1,
    config: ModelConfig = CONFIG,
    quant: str = "bf16",
    shape: StepShape = DECODE,
) -> dict[str, float]:
    """`steps` steps of an engine in one launch, taken apart: µs per token. A start includes the
    gap before its kernel, so the GPU waits for orders only as long as the CPU is late."""
    ops = step_ops(config, shape, spec.ops, stored_as(config, quant)) * steps
    engine_us = around(spec, 1)[0] + spec.copy_us + spec.sync_us
    bytes_us = sum(kernel_us(op, spec) - spec.kernel_floor_us for op in ops)
    works = launched(ops, spec, mode)
    gaps_us = sum(work.gpu_us - work.busy_us for work in works)  # in graphs, and between works
    gaps_us += (len(works) - 1) * spec.stream_gap_us
    starts_us = len(ops) * spec.kernel_floor_us + gaps_us
    waits_us = step_time(ops, spec, mode).itl_us - engine_us - bytes_us - starts_us
    every = (engine_us, waits_us, starts_us, bytes_us)
    return {part: us / steps for part, us in zip(PARTS, every, strict=True)}


@cache
def floor_us() -> float:
    """The bytes of the step, at the speed of a copy."""
    spec = load_spec("h200", engine="launch-bound")
    moved = sum(op.bytes for op in step_ops(CONFIG, DECODE, spec.ops))
    return moved / spec.copy_bandwidth_gb_s / 1e3


@cache
def bars() -> tuple[Bar, ...]:
    """Every bar of the book, the longest first."""
    names = ("transformers", "vllm", "launch-bound")
    transformers, vllm, ours = (load_spec("h200", engine=name) for name in names)
    early = with_pdl(ours)
    return (
        Bar("transformers", 0, parts_us(transformers, "eager")),
        Bar("an engine, eager", 4, parts_us(vllm, "eager")),
        Bar("… in pieces", 9, parts_us(vllm, "piecewise")),
        Bar("… in one graph", 5, parts_us(vllm, "full")),
        Bar("ours, five a layer", 15, parts_us(ours, "full")),
        Bar("… with early starts", 15, parts_us(early, "full")),
        Bar("… 8 tokens a replay", 15, parts_us(early, "full", steps=8)),
    )


def rows_of(chapter: int) -> list[Bar]:
    """The bars that a reader of this chapter knows."""
    return [bar for bar in bars() if bar.chapter <= chapter]


def ledger(chapter: int, columns: int = 40) -> str:
    """The bars in characters, `columns` for the longest; below them the floor, once it is known."""
    known = rows_of(chapter)
    lines = [(bar.label, bar.told, bar.ms) for bar in known]
    if chapter >= FLOOR:
        lines.append(("the floor", f"{floor_us() / 1e3:.2g} ms", floor_us() / 1e3))
    longest = max(ms for _, _, ms in lines)
    return "\n".join(
        f"{label:20} {told:>8} {'█' * max(1, round(columns * ms / longest))}"
        for label, told, ms in lines
    )


def shown(chapter: int) -> dict[str, tuple[str, str]]:
    """Each part that a reader of this chapter can tell, and what it is drawn as: colour, name."""
    if chapter < GPU_SHARE:
        return dict.fromkeys(PARTS, (hue.IDLE, ""))
    parts = {part: (COLOURS[part], TOLD[part]) for part in PARTS}
    if chapter < TAKEN_APART:
        parts |= dict.fromkeys(("starts", "bytes"), (hue.KERNEL, WORKS))
    return parts


def draw(chapter: int, path: Path) -> None:
    """The same as a picture: new bars have a bold name."""
    known = rows_of(chapter)
    parts = shown(chapter)
    names = dict.fromkeys(parts[part] for part in reversed(PARTS))
    names.pop((hue.IDLE, ""), None)
    newest = [bar for bar in known if bar.chapter == chapter] or known[-1:]
    first, last = known[0], min(known, key=lambda bar: bar.ms)
    title = "One token of Qwen3-0.6B: " + (
        f"{first.told.removesuffix(' ms')} to {last.told}" if len(known) > 1 else first.told
    )
    caption = "Predicted: an H200 in a usual server, one request, 512 tokens of context."
    tall, key = 1.1 + 0.6 * len(known), 0.35 * ((len(names) + 1) // 2)
    with canvas(path, (6.9, 1.4 + tall + key), title=title, caption=caption) as figure:
        axes: Axes
        axes, below = figure.subplots(2, 1, height_ratios=[tall, max(key, 0.01)])
        below.set_axis_off()
        for row, bar in enumerate(known):
            left = 0.0
            for part in reversed(PARTS):  # bytes first, where the floor's line is
                wide = bar.parts_us[part] / 1e3
                axes.barh(row, wide, left=left, color=parts[part][0])
                left += wide
            axes.text(left, row, f"  {bar.told}", va="center", weight="bold")
        if chapter >= FLOOR:
            axes.axvline(floor_us() / 1e3, color=hue.INK, linewidth=1.5)
        axes.set_yticks(range(len(known)), [bar.label for bar in known])
        for label, bar in zip(axes.get_yticklabels(), known, strict=True):
            label.set_weight("bold" if bar in newest else "normal")
        axes.invert_yaxis()
        axes.set_xlim(0, first.ms * 1.2)
        axes.set_xlabel("time of one token (ms)" + ("; line: the floor" * (chapter >= FLOOR)))
        axes.grid(visible=False, axis="y")
        below.legend(
            handles=[Patch(color=colour, label=name) for colour, name in names],
            loc="upper right", ncols=2, borderaxespad=0, handlelength=1.2, columnspacing=1,
        )  # fmt: skip


FIGURES: dict[str, Callable[[Path], None]] = {  # of the chapters that show theirs
    name: partial(draw, int(page.name[:2]))
    for page in sorted(COURSE.glob("[0-9][0-9]-*.md"))
    if (name := f"{page.name[:2]}-ledger.svg") in page.read_text()
}
