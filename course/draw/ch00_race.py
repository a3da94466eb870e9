"""The race: one decode step on the lanes of CPU and GPU, several ways, and the text it writes.

`race` is the table that the site's widget draws, for every batch; `race_svg` is its still and the
animated picture of the README. Nothing is computed in JavaScript but where a box begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.engine.generation import SHIPPED
from mini_engine.files import write_whole
from mini_engine.model.config import named_shape
from mini_engine.plots import hue
from mini_engine.sim.generate import generate, open_checkpoint
from mini_engine.sim.recorded import anatomy, load_recording
from mini_engine.step.cards import load_spec
from mini_engine.step.run import around, padded_step
from mini_engine.step.step_model import StepModel

SHAPE, CARD, HOST, CONTEXT, BATCHES = "qwen3-0.6b", "h200", "server", 512, 256
WAYS = {  # what the lane is called, the engine, and the mode that it captures in
    "transformers": ("transformers", "transformers", "NONE"),
    "eager": ("vLLM, eager", "vllm", "NONE"),
    "pieces": ("vLLM, in pieces", "vllm", "PIECEWISE"),
    "graph": ("vLLM, one graph", "vllm", "FULL"),
}
SHOWN = ("transformers", "eager", "graph")  # on the first page and in the README
PROMPT = "Return the number"
RECORDED = (1, 4, 8, 16)  # batches
SLOWER = 40  # the text appears so many times as slowly as predicted


@dataclass(frozen=True)
class Lane:
    """The steps of one way at each batch from 1 to BATCHES, in µs."""

    name: str
    launches: int
    kernels: int
    itl: list[int]
    before: list[int]  # the engine's own work and the copy of the inputs, before the launches
    busy: list[int]  # GPU at work
    issue: float  # the launches; no batch changes them
    beside: float  # the engine's work on the next step, after the launches
    sync: float  # of the CPU, when the GPU has ended


@cache
def race() -> dict[str, Lane]:
    """What `mini_engine demo --batch N` predicts of each way, for every N."""
    lanes = {}
    for way, (name, engine, mode) in WAYS.items():
        spec = load_spec(CARD, HOST, engine)
        seqs, tokens = spec.batch_defaults
        sizes = default_capture_sizes(seqs, tokens, mode=mode)
        dispatcher, model = GraphDispatcher(mode, sizes, seqs), StepModel(named_shape(SHAPE), spec)
        batches = range(1, BATCHES + 1)
        padded = [
            padded_step(dispatcher.dispatch(n, n, 1), n, n * CONTEXT, n * CONTEXT) for n in batches
        ]
        (launched,) = {launched for launched, _ in padded}
        steps = model.steps(launched, [shape for _, shape in padded])
        before = [around(spec, n)[0] + spec.copy_us for n in batches]
        lanes[way] = Lane(
            name,
            steps[0].launches,
            steps[0].kernels,
            [round(step.itl_us) for step in steps],
            [round(us) for us in before],
            [round(step.gpu_busy_us) for step in steps],
            round(steps[0].cpu_us - before[0] - spec.ahead_us, 1),
            spec.ahead_us,
            spec.sync_us,
        )
    return lanes


@cache
def words() -> tuple[str, ...]:
    """What the shipped checkpoint writes after PROMPT, a piece a token."""
    checkpoint = open_checkpoint(SHIPPED)
    pieces: list[int] = []
    generate(
        checkpoint,
        load_spec(CARD),
        [PROMPT],
        "NONE",
        on_token=lambda _, token: pieces.append(token),
    )
    texts = [checkpoint.tokenizer.decode(pieces[:n]) for n in range(len(pieces) + 1)]
    return tuple(after[len(before) :] for before, after in pairwise(texts))


def table() -> dict[str, Any]:
    """What the widget reads."""
    lanes = {way: vars(lane) for way, lane in race().items()}
    about = (
        f"{SHAPE} on one {CARD.upper()} in a usual server, {CONTEXT} tokens of context. The text "
    )
    about += f"is written by the course's small checkpoint, {SLOWER} times as slowly as predicted."
    return {
        "lanes": lanes, "prompt": PROMPT, "words": words(), "slower": SLOWER, "about": about,
        "recorded": recorded(), "view": 0,
    }  # fmt: skip


def recorded() -> dict[str, Any]:
    """The same race as others have recorded it, of which the GPU's lane is known. Times in µs."""
    lanes = []
    for way, name in (("eager", "SGLang, eager"), ("graph", "SGLang, one graph")):
        steps = [anatomy(load_recording(f"sglang-{SHAPE}-h100-{way}", batch)) for batch in RECORDED]
        lanes.append(
            {
                "name": name,
                "launches": round(steps[0].launches or 0),
                "kernels": round(steps[0].kernels or 0),
                "itl": [round(step.gpu_us) for step in steps],
                "busy": [round(step.busy_us) for step in steps],
            }
        )
    about = f"Recorded by others with nsys, which slows the CPU: SGLang, {SHAPE} on one H100 "
    about += f"({load_recording(f'sglang-{SHAPE}-h100-eager').source}). From its first kernel to "
    about += "its last; the CPU's lane is not told."
    return {"batches": RECORDED, "lanes": lanes, "about": about}


# ---------------------------------------------------------------- as a picture

WIDE, ROW, LEFT, RIGHT = 880, 84, 150, 784  # pixels; lanes go from LEFT to RIGHT
LETTER = 7.8  # of the text that appears, in pixels
LOOP_S = 9.0  # until the text begins again
LOOK = hue.lanes_look("""
text{font:13px system-ui,"DejaVu Sans",sans-serif;fill:$text}.name{font-weight:600}
.soft{fill:$soft}.ms{font-size:19px;font-weight:700;text-anchor:end}.type{font:13px monospace}
.end{text-anchor:end}
.cpu{fill:$cpu}.gpu{fill:$gpu}.host{fill:$host}.idle{fill:$idle}
@media(prefers-color-scheme:dark){text{fill:$dark_text}.soft{fill:$dark_soft}.cpu{fill:$dark_cpu}
.gpu{fill:$dark_gpu}.idle{fill:$dark_idle}}
@media(prefers-reduced-motion:reduce){rect{animation:none!important}}
""")


def race_svg(path: Path) -> None:
    """The race of one reader, animated without a script: its text is uncovered word by word."""
    ways = [race()[way] for way in SHOWN]
    longest = max(lane.itl[0] for lane in ways)
    told = "; ".join(f"{lane.name.replace(',', '')} {lane.itl[0] / 1e3:.1f} ms" for lane in ways)
    rows = "".join(_row(number, lane, longest) for number, lane in enumerate(ways))
    tall = ROW * len(ways) + 30
    write_whole(
        path,
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {tall}" role="img" '
        f'aria-label="One decode step on the lanes of CPU and GPU: {told}">'
        f"<style>{LOOK}</style>{rows}"
        f'<text class="soft" x="{LEFT}" y="{tall - 10}">{SHAPE} on one {CARD.upper()}, predicted; '
        f"the text is {SLOWER} times as slow</text></svg>\n".encode(),
    )


def _row(number: int, lane: Lane, longest: int) -> str:
    """One way: its name, two lanes, the text, and how long the step is."""
    y, itl, before, busy = ROW * number + 8, lane.itl[0], lane.before[0], lane.busy[0]

    def box(name: str, start_us: float, end_us: float, top: int) -> str:
        left, width = (us * (RIGHT - LEFT) / longest for us in (start_us, end_us - start_us))
        return (
            f'<rect class="{name}" x="{LEFT + left:.1f}" y="{y + top}" '
            f'width="{max(width, 1):.1f}" height="16"/>'
        )

    issued = before + lane.issue
    boxes = [box("idle", 0, itl, 0), box("idle", 0, itl, 20), box("host", 0, before, 0)]
    boxes += [box("cpu", before, issued, 0)] + [box("host", issued, issued + lane.beside, 0)] * (
        lane.beside > 0
    )
    first = before + lane.issue / lane.launches
    count = max(4, round(70 * itl / longest))  # stripes: a kernel is thinner than a pixel
    for i in range(count):
        start_us = first + i * (itl - lane.sync - first) / count
        boxes.append(box("gpu", start_us, start_us + busy / count, 20))
    text, widths = PROMPT + "".join(words()), [len(PROMPT) * LETTER]
    for word in words():
        widths.append(widths[-1] + len(word) * LETTER)
    when = [index * itl * SLOWER / 1e6 / LOOP_S for index in range(len(widths))]
    frames = "".join(
        f"{100 * at:.2f}%{{width:{width:.0f}px}}"
        for at, width in zip(when, widths, strict=True)
        if at < 1
    )
    half = max(width for at, width in zip(when, widths, strict=True) if at < 0.2)
    return (
        f"<style>@keyframes k{number}{{{frames}}}#r{number}{{animation:k{number} {LOOP_S:g}s "
        "step-end infinite}</style>"
        f'<clipPath id="c{number}"><rect id="r{number}" x="{LEFT}" y="{y + 40}" '
        f'width="{half:.0f}" height="22"/></clipPath>'
        f'<text class="name" x="8" y="{y + 14}">{lane.name}</text>'
        f'<text class="soft" x="8" y="{y + 34}">{lane.launches:,} launches</text>{"".join(boxes)}'
        f'<g clip-path="url(#c{number})"><text class="type" x="{LEFT}" y="{y + 55}" '
        f'textLength="{len(text) * LETTER:.0f}">{text}</text></g>'
        f'<text class="ms" x="{WIDE - 8}" y="{y + 16}">{itl / 1e3:.1f} ms</text>'
        f'<text class="soft end" x="{WIDE - 8}" y="{y + 35}">busy {busy / itl:.0%}</text>'
    )


FIGURES = {"race.svg": race_svg}
