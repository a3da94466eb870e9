"""What a cell of a notebook shows: a picture that it drew, and steps on two lanes.

IPython is imported when a cell shows something: the engine does without it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mini_engine.plots import hue
from mini_engine.sim.trace import CPU, GPU, TraceEvent, busy_us

WIDE, LEFT, RIGHT, ROW, STRIPE = 564, 200, 476, 60, 9  # pixels; lanes go from LEFT to RIGHT
PARTS = {"host": "host", "launch": "cpu", "graph": "cpu", "copy": "cpu"}  # of the CPU's lane
KEY = (("cpu", "CPU launches"), ("host", "engine"), ("gpu", "GPU computes"), ("idle", "waits"))
LOOK = hue.lanes_look("""
text{font:15px system-ui,"DejaVu Sans",sans-serif;fill:$text}.name{font-weight:600}
.soft{fill:$soft}.end{text-anchor:end}.page{fill:$page}
.cpu{fill:$cpu}.gpu{fill:$gpu}.host{fill:$host}.idle{fill:$idle}
@media(prefers-color-scheme:dark){text{fill:$dark_text}.soft{fill:$dark_soft}.page{fill:$dark_page}
.cpu{fill:$dark_cpu}.gpu{fill:$dark_gpu}.idle{fill:$dark_idle}}
""")


@contextmanager
def shown(kind: str = "svg") -> Iterator[Path]:
    """A path to draw to; what was drawn appears below the cell. "png" for thousands of boxes."""
    from IPython.display import SVG, Image, display

    with TemporaryDirectory() as folder:
        path = Path(folder) / f"figure.{kind}"
        yield path
        picture: Any = SVG if kind == "svg" else Image
        display(picture(filename=str(path)))  # type: ignore[no-untyped-call]


def two_lanes(steps: Mapping[str, Sequence[TraceEvent]]) -> None:
    from IPython.display import SVG, display

    display(SVG(lanes_svg(steps)))  # type: ignore[no-untyped-call]


def lanes_svg(steps: Mapping[str, Sequence[TraceEvent]]) -> str:
    """The picture as a text. Kernels are thinner than a pixel: the GPU's lane has a stripe every
    STRIPE pixels, which are as wide together as the kernels are."""
    longest = max(event.end_us - events[0].start_us for events in steps.values()
                  for event in events)  # fmt: skip
    rows = [_row(ROW * i, name, events, longest) for i, (name, events) in enumerate(steps.items())]
    tall, places = ROW * len(rows) + 26, (8, 136, 222, 362)
    key = "".join(
        f'<rect class="{part}" x="{x}" y="{tall - 19}" width="11" height="11"/>'
        f'<text class="soft" x="{x + 16}" y="{tall - 9}">{name}</text>'
        for x, (part, name) in zip(places, KEY, strict=True)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {tall}" width="{WIDE}" '
        f'role="img" aria-label="Steps on the lanes of CPU and GPU"><style>{LOOK}</style>'
        f'<rect class="page" width="{WIDE}" height="{tall}"/>{"".join(rows)}{key}</svg>'
    )


def _row(top: int, name: str, events: Sequence[TraceEvent], longest: float) -> str:
    zero = min(event.start_us for event in events)
    itl_us = max(event.end_us for event in events) - zero

    def box(part: str, start_us: float, end_us: float, lane: int) -> str:
        x, wide = (us * (RIGHT - LEFT) / longest for us in (start_us, end_us - start_us))
        return (
            f'<rect class="{part}" x="{LEFT + x:.1f}" y="{top + 8 + 20 * lane}" '
            f'width="{max(wide, 1):.1f}" height="16"/>'
        )

    boxes = [box("idle", 0, itl_us, 0), box("idle", 0, itl_us, 1)]
    at_work = [event for event in events if event.lane == CPU and event.category in PARTS]
    for part, of in groupby(at_work, key=lambda event: PARTS[event.category]):
        together = list(of)
        boxes.append(box(part, together[0].start_us - zero, together[-1].end_us - zero, 0))
    kernels = [event for event in events if event.lane == GPU]
    first_us, last_us = kernels[0].start_us - zero, kernels[-1].end_us - zero
    busy = busy_us(kernels, GPU)
    count = max(4, round((last_us - first_us) * (RIGHT - LEFT) / longest / STRIPE))
    for i in range(count):
        start_us = first_us + i * (last_us - first_us) / count
        boxes.append(box("gpu", start_us, start_us + busy / count, 1))
    launches = sum(event.lane == CPU and PARTS.get(event.category) == "cpu" for event in events)
    return (
        f'<text class="name" x="8" y="{top + 20}">{escape(name)}</text>'
        f'<text class="soft" x="8" y="{top + 40}">{launches:,} launches</text>{"".join(boxes)}'
        f'<text class="name end" x="{WIDE - 8}" y="{top + 21}">{itl_us / 1e3:.2g} ms</text>'
        f'<text class="soft end" x="{WIDE - 8}" y="{top + 41}">busy {busy / itl_us:.0%}</text>'
    )
