"""What every figure is drawn on: one style, one palette, a title, a caption, a file.

    with canvas(Path("out/x.png"), (12, 7), title="Padding is 4%", caption="qwen3 on h200") as fig:
        axes = fig.subplots()

The file is written when the `with` block ends. The same data give the same bytes: no date, no
version, none of the reader's matplotlib settings (they are restored at the end).

An SVG keeps its text as text and its colours as variables, which have other values where a reader
prefers the dark (mini_engine/plots/hue.py). Title and caption stand in it as `<title>` and `<desc>`
too, and as groups of those names, so that a page can write them itself: `data-drawn` says between
which two heights the rest stands."""

import io
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb, to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, PathPatch
from matplotlib.path import Path as Outline
from matplotlib.text import Text
from PIL import Image

from mini_engine.files import check_out, write_whole
from mini_engine.plots import hue

PREDICTED = "Predicted by the launch model, not measured"

# What a picture may be, and what its format would say of the day and the machine.
UNDATED = {".svg": ("Date",), ".pdf": ("CreationDate", "Producer")}
PICTURES = (".png", *UNDATED)

# Sizes in points at 100 dots an inch: read on a screen, and still read at half of it.
STYLE: dict[Any, Any] = {  # keys of matplotlib's rcParams
    "figure.dpi": 100, "font.family": "DejaVu Sans", "font.size": 15,  # comes with matplotlib
    "axes.labelsize": 16, "axes.titlesize": 16, "axes.titlelocation": "left",
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "axes.axisbelow": True, "grid.color": hue.RULE, "legend.frameon": False,
    "legend.fontsize": 15, "lines.linewidth": 2.5, "svg.fonttype": "none",
    "svg.hashsalt": "launch bound",  # of the names in an SVG, which are random otherwise
}  # fmt: skip
LETTERS = "'DejaVu Sans', Verdana, sans-serif"  # of an SVG; those after the first are as wide
MONOSPACE = "'DejaVu Sans Mono', Menlo, Consolas, monospace"
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
        bold: dict[str, Any] = {"size": 20, "weight": "bold", "va": "top", "gid": "title"}
        figure.text(margin, 1 - edge, "\n".join(head), **bold, **words)
        figure.text(margin, edge, "\n".join(foot), size=14, color=hue.SOFT, gid="desc", **words)
        yield figure
        write_legibly(figure)
        file, ending = io.BytesIO(), path.suffix.lower()
        kind = "rgba" if ending == ".png" else ending.removeprefix(".")
        undated = dict.fromkeys(UNDATED[ending]) if ending in UNDATED else None
        figure.savefig(file, format=kind, metadata=undated, dpi="figure")
        picture = file.getvalue()
        if ending == ".png":
            size, file = figure.canvas.get_width_height(), io.BytesIO()
            image = Image.frombytes("RGBA", size, picture).convert("RGB")
            image.quantize(COLOURS, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
            picture = file.getvalue()
        if ending == ".svg":
            drawn = 72 * height * (1 - top), 72 * (height - lowest(figure) / figure.dpi)
            picture = themed(picture.decode(), title, caption, drawn).encode()
        write_whole(path, picture)


def lowest(figure: Figure) -> float:
    """Where panels and legends end, in dots from the lower edge."""
    legends = [axes.get_legend() for axes in figure.axes]
    boxes = [axes.get_tightbbox() for axes in figure.axes]
    boxes += [legend.get_window_extent() for legend in (*legends, *figure.legends) if legend]
    return min((box.y0 for box in boxes if box is not None), default=0.0)


def draw_boxes(
    axes: Axes, corners: Iterable[Sequence[tuple[float, float]]], colour: str, edge: float = 0.0
) -> None:
    """Many polygons of one colour as one shape; `edge` points of paper between them. They are not
    snapped to pixels, so that boxes thinner than one add up to the right shade."""
    paths = [Outline([*of, of[0]], closed=True) for of in corners]
    if paths:
        whole = Outline.make_compound_path(*paths)
        axes.add_patch(
            PathPatch(whole, facecolor=colour, edgecolor=hue.PAPER, linewidth=edge, snap=False)
        )


def write_legibly(figure: Figure) -> None:
    """Ink that stands on a box takes the colour that can be read there, and words in a light colour
    that stand on paper become grey."""
    figure.draw_without_rendering()
    for text in figure.findobj(Text):
        colour = to_hex(text.get_color()).upper()
        if colour in hue.DARK and colour not in (hue.INK, hue.PAPER):
            both = (colour, hue.PAPER), (hue.DARK[colour], hue.DARK[hue.PAPER])
            if min(hue.contrast(*pair) for pair in both) < 3:
                text.set_color(hue.SOFT)
    inks = {to_rgb(hue.INK), to_rgb(hue.PAPER)}
    for axes in figure.axes:
        filled = (b for b in axes.patches if b.get_fill() and not isinstance(b, FancyArrowPatch))
        boxes = sorted(filled, key=lambda box: box.zorder)
        for text in axes.texts:
            if text.get_text() and not text.get_bbox_patch() and to_rgb(text.get_color()) in inks:
                extent = text.get_window_extent()
                centre = (extent.x0 + extent.x1) / 2, (extent.y0 + extent.y1) / 2
                below = [box for box in boxes if box.contains_point(centre)]
                fill = to_rgba(below[-1].get_facecolor()) if below else to_rgba(hue.PAPER)
                text.set_color(hue.ink_on(to_hex(fill)) if fill[3] > 0.6 else hue.INK)


def themed(svg: str, title: str, caption: str, drawn: tuple[float, float]) -> str:
    """An SVG of matplotlib with variables for colours, rounded to a hundredth of a point."""
    body = svg[svg.index("<svg ") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r"(\d\.\d\d)\d+", r"\1", body)
    body = re.sub(r"#([0-9a-f]{6})\b", r"var(--x\1)", body)
    body = body.replace("'DejaVu Sans'", LETTERS)
    body = re.sub(r"'DejaVu Sans Mono'[^;]*monospace", MONOSPACE, body)
    body = re.sub(r"\s*\n\s*([A-Zz])?\s*", lambda found: found[1] or "\n", body)  # in paths
    body = re.sub(r"<style.*?</style>", "", body)
    indent = re.compile(r"(<text[^>]*>)( +)")  # which an SVG would leave out
    body = indent.sub(lambda found: found[1] + len(found[2]) * "\N{NO-BREAK SPACE}", body)
    for number, name in enumerate(dict.fromkeys(re.findall(r'id="(\w*[0-9a-f]{10})"', body))):
        body = body.replace(name, f"i{number}")  # a hash of numbers whose last digits may differ
    values = ["".join(f"--x{light[1:].lower()}:{theme[light]};" for light in hue.DARK)
              for theme in ({light: light for light in hue.DARK}, hue.DARK)]  # fmt: skip
    look = f"svg{{{values[0]}}}@media(prefers-color-scheme:dark){{svg{{{values[1]}}}}}"
    look += "text{fill:var(--x000000)}svg *{stroke-linejoin:round;stroke-linecap:butt}"
    told = f"<title>{escape(title)}</title><desc>{escape(caption)}</desc><style>{look}</style>"
    head, _, rest = body.partition(">")
    return f'{head} data-drawn="{drawn[0]:.0f} {drawn[1]:.0f}">\n{told}{rest}'


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
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.yaxis.set_minor_formatter(lambda v, _: f"{v:,g}" if f"{v:e}"[0] in "25" else "")


def percent_ticks(axes: Axes, label: str = "") -> None:
    """Ticks of the y axis as percentages, with decimals only where they are needed."""
    axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.3g}%")
    axes.set_ylabel(label or axes.get_ylabel())
