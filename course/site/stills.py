"""What a page shows in the place of a widget where no JavaScript runs: one telling moment of it.

In:  the widget's own state (course/site/widgets). Out: HTML on one line, drawn with the
classes that the widget draws with. Nothing is computed here but where a box stands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from html import escape
from math import exp, log
from typing import Any

from course.site.widgets import state as state_of

WIDE = 340  # pixels of each picture: what a phone has
State = dict[str, Any]


def still(name: str) -> str:
    """The `<noscript>` of a widget."""
    drawn = f'<div class="still {name}">{STILLS[name](state_of(name))}</div>'
    return f"<noscript>{' '.join(drawn.split())}</noscript>"


def answers(fields: list[State]) -> str:
    """The `<noscript>` of the fields of a prediction: each answer, folded away."""
    told = "".join(
        f"<details><summary>Answer to {field['q']}"
        f"{', ' + escape(field['ask']) if 'ask' in field else ''}</summary>"
        f"<p>{escape(' '.join(field['says'].split()))}</p></details>"
        for field in fields
    )
    return f"<noscript>{told}</noscript>"


def race(state: State) -> str:
    """One reader's step in each way, and what it has written when the fastest has ended."""
    lanes = [state["lanes"][way] for way in state["shown"]]
    longest, words = max(lane["itl"][0] for lane in lanes), state["words"]
    rows = []
    for lane in lanes:
        itl, before, busy = (lane[name][0] for name in ("itl", "before", "busy"))
        issued, first = before + lane["issue"], before + lane["issue"] / lane["launches"]
        count = max(4, round(60 * itl / longest))  # stripes: a kernel is thinner than a pixel
        pace = (itl - lane["sync"] - first) / count
        spans = [("idle", 0, itl, 2), ("idle", 0, itl, 26), ("host", 0, before, 2)]
        spans += [("issue", before, issued, 2), ("host", issued, issued + lane["beside"], 2)]
        spans += [
            ("run", at, at + busy / count, 26) for at in (first + i * pace for i in range(count))
        ]
        boxes = "".join(
            rect(kind, WIDE * start / longest, y, max(WIDE * (end - start) / longest, 0.6), 18)
            for kind, start, end, y in spans
            if end > start
        )
        done = int(len(words) * lanes[-1]["itl"][0] / itl)
        rows.append(
            f'<div class="race-way"><div class="race-who"><b>{lane["name"]}</b> '
            f'<span>{lane["launches"]:,} launches</span></div><div class="race-lanes"><svg '
            f'viewBox="0 0 {WIDE} 46" preserveAspectRatio="none" aria-hidden="true">{boxes}</svg>'
            f'</div><p class="race-text">{escape(state["prompt"] + "".join(words[:done]))}</p>'
            f'<div class="race-ms"><b>{itl / 1e3:.1f} ms</b> <span>GPU busy {busy / itl:.0%}</span>'
            "</div></div>"
        )
    return f'{"".join(rows)}<p class="race-says">Predicted. {escape(state["about"])}</p>'


def capture(state: State) -> str:
    """The story in which a name points elsewhere and the replay does not, at its end."""
    story = next(story for story in state["stories"] if story["name"] == "rebind")
    lines = "".join(f'<li class="done"><code>{escape(line)}</code></li>' for line in story["lines"])
    parts = []
    for i, cell in enumerate(story["frames"][-1]):
        y = 52 * i + 8
        touched = " touched" if cell["reads"] or cell["writes"] else ""
        holds = " ".join("?" if value is None else f"{value:g}" for value in cell["holds"])
        mark = "← read" if cell["reads"] else "← written" if cell["writes"] else ""
        parts += [
            text(", ".join(cell["names"]), 24, y + 23, "end", "code"),
            f'<path class="arrow" d="M30 {y + 18}h24m-7-5l7 5-7 5"/>' if cell["names"] else "",
            rect(f"cell{touched}", 58, y, 200, 36),
            text(cell["address"], 68, y + 15, kind="code small"),
            text(f"[{holds}]", 68, y + 30, kind="code"),
            text(mark, 264, y + 23, kind="mark"),
        ]
    found, wanted = (" ".join(f"{n:g}" for n in story[name]) for name in ("found", "wanted"))
    told = f"{story['of']} is [{found}], and you wanted [{wanted}]. {story['told']}"
    return f'<ol class="lines">{lines}</ol>{svg(166, told, *parts)}'


def pages(state: State) -> str:
    """The moment of paged blocks at which most of them are held."""
    moments = state["ways"][0]["moments"]
    now = max(moments, key=lambda moment: moment["slots"])
    size, row, one, parts = state["size"], 6, 56, []
    for block in range(state["blocks"]):
        x, y = 4 + block % row * one, 4 + block // row * 66
        owners = [of for of in now["tables"] if block in of["table"]]
        held = [of["tokens"] - size * of["table"].index(block) for of in owners]
        parts.append(f'<g class="block {"one " + owners[0]["who"] if owners else ""}">')
        parts.append(rect("", x, y, 50, 54))
        parts.append(text(block, x + 25, y + 16, "middle", "small"))
        name = "null" if block == 0 else owners[0]["who"][0] if owners else ""
        parts.append(text(name, x + 25, y + 33, "middle"))
        for slot in range(size if block else 0):
            full = slot < max(held, default=0)
            parts.append(rect("full" if full else "free", x + 6 + slot * 9.6, y + 40, 7.6, 9))
        parts.append("</g>")
    told = f"{now['told']}. {now['needed']} tokens stand in {now['slots']} slots."
    return svg(66 * -(-state["blocks"] // row), told, *parts)


def ladder(state: State) -> str:
    """The rows that run at each batch, with the first rungs of the widget."""
    rungs, top = state["rungs"], state["top"]
    one, parts = (WIDE - 42) / top, [text("rows that run", 36, 12)]
    for batch in range(1, top + 1):
        rung = next((rung for rung in rungs if rung >= batch), None)
        for kind, rows in (("pad", rung or 0), ("row" if rung else "alone", batch)):
            tall = 216 * rows / top
            parts.append(rect(kind, 34 + (batch - 1) * one, 236 - tall, one - 0.6, tall))
    for batch in (1, 16, 32, 48, 64):
        parts.append(text(batch, 34 + (batch - 0.5) * one, 250, "middle"))
        parts.append(text(batch, 30, 240 - 216 * batch / top, "end") if batch > 1 else "")
    us = state["graph_us"][rungs[-1] - 1][rungs[-1] - 1]
    told = f"Rungs {' and '.join(map(str, rungs))}: a batch is padded to the next one, which is "
    told += f"drawn above it; a batch above {rungs[-1]} runs without a graph. "
    told += f"A batch of {rungs[-1]} takes {us / 1e3:.2f} ms, one of {rungs[-1] + 1} "
    return svg(256, f"{told}{state['eager_us'][rungs[-1]] / 1e3:.2f}.", *parts)


def roofline(state: State) -> str:
    """The steps of the first model on the first card, a point for each batch."""
    step, card, low, high = state["steps"][0][0], state["cards"][0], 0.5, 2000

    def at(bytes_each: float, tflops: float) -> str:
        across, up = (log(v / low) / log(high / low) for v in (bytes_each, tflops))
        return f"{44 + (WIDE - 56) * across:.1f} {264 - 248 * up:.1f}"

    ridge, first = 1e3 * card["tflops"] / card["gb_s"], low * card["gb_s"] / 1e3
    parts = [f'<path class="roof" d="M{at(low, first)}L{at(ridge, card["tflops"])}']
    parts[0] += f'L{at(high, card["tflops"])}"/>'
    for gflop, mb, us in zip(step["gflop"], step["mb"], step["us"][0], strict=True):
        x, y = at(1e3 * gflop / mb, 1e3 * gflop / us).split()
        parts.append(f'<circle class="run" cx="{x}" cy="{y}" r="4"/>')
    for tick in (1, 10, 100, 1000):
        x, y = at(tick, tick).split()
        parts += [text(tick, float(x), 280, "middle"), text(tick, 38, float(y) + 4, "end")]
    parts += [text("TFLOP/s at best", 48, 12), text("operations for each byte", 328, 298, "end")]
    told = f"{state['models'][0]} on {card['name'].upper()}: a point is a step at a batch, from "
    told += f"{state['batches'][0]} at the left to {state['batches'][-1]} at the right."
    return svg(304, told, *parts)


def cutter(state: State) -> str:
    """A layer as it is cut first."""
    boxes, before = [], None
    for op in state["layer"]:
        kept_out = op in state["cuts"]
        joined = " joined" if kept_out == before else ""
        boxes.append(
            f'<b class="{"live" if kept_out else "in"}{joined}">{op.replace("_", " ")}</b>'
        )
        before = kept_out
    told = f"One of {state['layers']} layers: {', '.join(state['cuts'])} stays out of the graphs, "
    told += "and what stands between two of them is a graph."
    return f'<p class="boxes">{"".join(boxes)}</p><p>{told}</p>'


def softmax(state: State) -> str:
    """After the tile with the largest score: weights are measured from it."""
    scores, tile = state["scores"], state["tile"]
    done = (scores.index(max(scores)) // tile + 1) * tile
    one, parts = (WIDE - 8) / len(scores), [text("scores", 4, 12), text("weights", 4, 158)]
    for i, score in enumerate(scores):
        kind = "idle" if i >= done else "run" if i >= done - tile else "gone"
        weight = 64 * exp(score - max(scores)) if i < done else 0
        x, y = 5 + i * one, 118 - 18 * max(score, 0)
        parts.append(rect(kind, x, y, one - 3, max(1, 18 * abs(score))))
        parts.append(rect("issue", x, 226 - weight, one - 3, weight))
    told = f"{done} of {len(scores)} scores are read, {tile} at a time. The largest, "
    told += f"{max(scores):g}, has come, so that all weights before it became smaller."
    return svg(232, told, *parts)


def floor(state: State) -> str:
    """A token before all levers and after all of them, and the floor."""
    best = min(
        (key for key in state["us"] if key.endswith(" 16")), key=lambda k: sum(state["us"][k])
    )
    ways = {"at the beginning": state["us"]["0 0 0 1 16"], "with all levers": state["us"][best]}
    longest, floor_us, bars = sum(state["us"]["0 0 0 1 16"]), state["floor_us"][16], []
    for name, parts in ways.items():
        bar = "".join(
            f'<i class="{of}" style="width:{100 * us / longest:.1f}%"></i>'
            for of, us in zip(("host", "issue", "start", "run"), parts, strict=True)
        )
        bars.append(
            f'<div class="token"><span>{name}</span><b>{sum(parts) / 1e3:.2g} ms</b>'
            f'<div>{bar}<u style="left:{100 * floor_us / longest:.1f}%"></u></div></div>'
        )
    told = ", ".join(state["parts"])
    return (
        f'<div class="bars">{"".join(bars)}</div><p>In this order: {told}. The dashed line is the '
        f"floor, {floor_us / 1e3:.2g} ms.</p>"
    )


def errors(state: State) -> str:
    """Ours alone: how many times too much or too little each step was."""
    places = Counter(
        round((170 + 150 * log(min(10, max(0.1, ratio))) / log(10)) / 5) * 5
        for ratio in state["ours"]
    )
    parts = []
    for tick in (0.1, 0.5, 1, 2, 10):
        x = 170 + 150 * log(tick) / log(10)
        parts.append(f'<path class="tick" d="M{x:.1f} 4V124"/>')
        parts.append(text("right" if tick == 1 else f"×{tick:g}", x, 142, "middle"))
    for x, count in places.items():
        tall = 110 * count / max(places.values())
        parts.append(rect("issue", x - 2, 124 - tall, 4, tall))
    told = f"Our {len(state['ours'])} steps, each predicted without its source: how many times too "
    return svg(148, f"{told}much or too little.", *parts)


def svg(tall: int, told: str, *parts: str) -> str:
    """A picture and, below it, the sentence that says what it shows."""
    drawn = "".join(parts)
    return f'<svg viewBox="0 0 {WIDE} {tall}" aria-hidden="true">{drawn}</svg><p>{escape(told)}</p>'


def rect(kind: str, x: float, y: float, wide: float, tall: float) -> str:
    size = f'width="{wide:.1f}" height="{tall:.1f}"'
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" {size}/>'


def text(said: object, x: float, y: float, anchor: str = "start", kind: str = "") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} class="{kind}">{escape(str(said))}</text>'


STILLS: dict[str, Callable[[State], str]] = {
    "capture": capture, "cutter": cutter, "errors": errors, "floor": floor, "ladder": ladder,
    "pages": pages, "race": race, "roofline": roofline, "softmax": softmax,
}  # fmt: skip
