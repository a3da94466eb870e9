"""What every figure is drawn on: one style, one palette, a title, a caption, a file.

In:  where the picture goes (.png, .svg or .pdf), its size, the finding (title), and what the
     numbers are (caption).
Out: a matplotlib `Figure` to draw into; the file is written when the `with` block ends.

    with canvas(Path("out/x.png"), (12, 7), title="Padding is 4%", caption="qwen3 on h200") as fig:
        axes = fig.subplots()

There is no pyplot: no window, no current figure, nothing left behind. The same data give the same
bytes: no date, no version, none of the reader's matplotlib settings (they are restored at the end).

The colours are those of Okabe and Ito, "Color Universal Design"
(https://jfly.uni-koeln.de/color/), which people with any common kind of colour blindness can tell
apart.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from PIL import Image

from mini_engine.files import check_out, write_whole

BLACK, GREY, PALE = "#000000", "#7F7F7F", "#D9D9D9"
ORANGE, VERMILION, YELLOW = "#E69F00", "#D55E00", "#F0E442"
BLUE, SKY, GREEN, PURPLE = "#0072B2", "#56B4E9", "#009E73", "#CC79A7"

MODE_COLOURS = {"eager": VERMILION, "piecewise": GREEN, "full": BLUE}
PREDICTED = "Predicted by the launch model, not measured"

# What a picture may be, and what its format would say of the day and the machine.
UNDATED = {".png": ("Software",), ".svg": ("Date",), ".pdf": ("CreationDate", "Producer")}
PICTURES = tuple(UNDATED)

# Sizes in points at 100 dots an inch: read on a screen, and still read at half of it.
STYLE: dict[Any, Any] = {  # keys of matplotlib's rcParams
    "figure.dpi": 100,
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 15,
    "axes.labelsize": 16,
    "axes.titlesize": 16,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E8E8E8",
    "legend.frameon": False,
    "legend.fontsize": 15,
    "lines.linewidth": 2.5,
    "svg.hashsalt": "launch bound",  # of the names in an SVG, which are random otherwise
}
COLOURS = 128  # of a PNG
NARROW_INCHES = 10.0  # a picture of less is for a phone, whose dots are finer
LINE_INCHES = 0.36  # of the title; a line of the caption takes 0.7 of it


@contextmanager
def canvas(
    path: Path | str, size_inches: tuple[float, float], *, title: str, caption: str
) -> Iterator[Figure]:
    """A blank figure in the house style; title and caption are broken into lines that fit. Raises
    ValueError for another ending than those of `PICTURES`, OSError for a file that cannot be
    written."""
    path = check_out(Path(path), PICTURES)
    width, height = size_inches
    head = textwrap.wrap(title, int(width * 5.9))  # characters an inch at that size
    foot = textwrap.wrap(caption, int(width * 9.2))
    top = 1 - (len(head) * LINE_INCHES + 0.2) / height
    bottom = (len(foot) * LINE_INCHES * 0.7 + 0.15) / height
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # not the reader's own settings
        matplotlib.rcParams.update(STYLE)
        dots = (1.6 if width < NARROW_INCHES else 1) * STYLE["figure.dpi"]
        figure = Figure(figsize=size_inches, dpi=dots, layout="constrained")
        FigureCanvasAgg(figure)
        engine = figure.get_layout_engine()
        if engine is not None:
            engine.set(rect=(0.005, bottom, 0.985, top - bottom))  # type: ignore[call-arg]
        margin, edge = 0.15 / width, 0.12 / height
        words: dict[str, Any] = {"parse_math": False}  # a name may have dollars
        figure.text(margin, 1 - edge, "\n".join(head), size=20, weight="bold", va="top", **words)
        figure.text(margin, edge, "\n".join(foot), size=14, color="#404040", **words)
        yield figure
        file, ending = io.BytesIO(), path.suffix.lower()
        undated = dict.fromkeys(UNDATED[ending])
        figure.savefig(file, format=ending.removeprefix("."), metadata=undated, dpi="figure")
        write_whole(path, in_few_colours(file) if ending == ".png" else file.getvalue())


def in_few_colours(file: io.BytesIO) -> bytes:
    """The PNG with a palette: a third of the bytes, and no eye sees it."""
    image, out = Image.open(file).convert("RGB"), io.BytesIO()
    few = image.quantize(COLOURS, dither=Image.Dither.NONE)
    few.save(out, "PNG", optimize=True)
    return out.getvalue()


def doubling_ticks(axes: Axes, first: int, last: int, label: str = "") -> None:
    """Ticks of a logarithmic x axis at `first`, twice that, ... up to `last`; with a `label`, the
    axis is made one."""
    if label:
        axes.set_xscale("log", base=2)
        axes.set_xlabel(label)
    ticks = [first << i for i in range((last // first).bit_length())]
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.set_xticks([], minor=True)


def log_ticks(axes: Axes, label: str) -> None:
    """A logarithmic y axis; between tens, 2 and 5 have a number, too."""
    axes.set(yscale="log", ylabel=label)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.yaxis.set_minor_formatter(
        FuncFormatter(lambda value, _: f"{value:,g}" if f"{value:e}"[0] in "25" else "")
    )


def percent_ticks(axes: Axes, label: str = "") -> None:
    """Ticks of the y axis as percentages, with decimals only where they are needed."""
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.3g}%"))
    axes.set_ylabel(label or axes.get_ylabel())
