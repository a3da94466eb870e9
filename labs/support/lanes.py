"""A step on two lanes, in characters: the CPU above, the GPU below.

In:  the events of a step, and the length of the longest that stands beside it. Out: text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mini_engine.sim.trace import LANES, TraceEvent, busy_us

WIDE = 60  # characters of the longest step
CELLS = "·░▒▓█"  # a lane is idle all the time that a character stands for, … or never
LEGEND = "a lane at work: █ all the time, ▓ ▒ ░ part of it, · never"


def length_us(events: Iterable[TraceEvent]) -> float:
    return max(event.end_us for event in events)


def drawn(events: Sequence[TraceEvent], longest_us: float) -> str:
    """Two lines. A character is longest_us / WIDE, as dark as its lane is busy then."""
    length, tick_us = length_us(events), longest_us / WIDE
    lines = []
    for lane in LANES:
        busy = [0.0] * max(1, round(length / tick_us))
        for event in events:
            if event.lane != lane or event.category == "wait":
                continue
            for at in range(int(event.start_us / tick_us), len(busy)):
                overlap = min(event.end_us, (at + 1) * tick_us) - max(event.start_us, at * tick_us)
                if overlap <= 0:
                    break
                busy[at] += overlap / tick_us
        cells = "".join(CELLS[min(4, round(4 * share + 0.3))] for share in busy)
        after = (
            f" {length / 1e3:.1f} ms"
            if lane == LANES[0]
            else f" busy {busy_us(events, lane) / length:.0%}"
        )
        lines.append(f"  {lane} {cells}{after}")
    return "\n".join(lines)
