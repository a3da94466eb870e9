"""The colours of all figures, by what they mean. Nowhere else stands the code of a colour.

The hues are those of Okabe and Ito, "Color Universal Design" (https://jfly.uni-koeln.de/color/),
which people with any common kind of colour blindness can tell apart. Orange is the CPU, blue the
GPU, grey what is neither; a hue that two meanings share never has both in one figure.
"""

from __future__ import annotations

from string import Template

_GREY, _PALE = "#7F7F7F", "#D9D9D9"
_ORANGE, _VERMILION, _YELLOW = "#E69F00", "#D55E00", "#F0E442"
_BLUE, _SKY, _GREEN, _PURPLE = "#0072B2", "#56B4E9", "#009E73", "#CC79A7"

# What everything stands on and is written in.
PAPER, INK, SOFT = "#FFFFFF", "#000000", "#505050"
RULE, PANEL, TINTED = "#E8E8E8", "#F2F2F2", "#E8F1F8"  # grid, an area, an area of the GPU
ON_LIGHT = "#101010"  # ink on a light hue, in the dark as well

# A step, on its two lanes.
ENGINE, WAIT, COPY = _GREY, _PALE, _PURPLE
LAUNCH, CALL = _ORANGE, _VERMILION  # work for one launch; the call itself, or that of a graph
KERNEL, NODE = _BLUE, _SKY  # launched alone; in a graph
PRODUCT, ATTENTION, SMALL = _BLUE, _GREEN, _SKY  # kinds of kernels

# What its time goes to.
BYTES, STARTS = _BLUE, _SKY

# Ways to do it.
EAGER, PIECEWISE, FULL = _VERMILION, _GREEN, _BLUE
WITHOUT, WITH = _VERMILION, _BLUE  # the cure that a figure is about
OWN, COMPILED = _PURPLE, _GREEN  # this engine's, torch.compile's
MODE_COLOURS = {"eager": EAGER, "piecewise": PIECEWISE, "full": FULL}

# Tokens, rows and slots.
PREFILL, DECODE = _YELLOW, _SKY
USED, PADDING, EMPTY, GONE = _GREEN, _ORANGE, _PALE, _GREY

# What a figure points at; parts of it that stand back; things that have no colour of their own.
MARK, OTHER, PART = _VERMILION, _GREY, _PALE
SERIES = (_BLUE, _ORANGE, _GREEN, _PURPLE, _SKY, _VERMILION, _YELLOW, _GREY)

_DEEP = (_BLUE, _GREY)
DARK = {  # each colour, where a reader prefers the dark
    PAPER: "#101318", INK: "#e6e8eb", SOFT: "#a8adb5", RULE: "#2a303a", PANEL: "#1b2028",
    TINTED: "#162633", ON_LIGHT: ON_LIGHT, _GREY: "#8b919c", _PALE: "#39414d",
    _ORANGE: "#f0b429", _VERMILION: "#f08a4b", _YELLOW: "#e6dc55", _BLUE: "#4aa8e8",
    _SKY: "#b3e0fa", _GREEN: "#35c39b", _PURPLE: "#dd9dbf",
}  # fmt: skip

# Two lanes on a page of the site, in a cell of a notebook and in the README: light, then dark.
LANES = {
    "text": ("#1f2328", "#f0f6fc"), "soft": ("#59636e", "#9198a1"), "page": ("#fff", "#101318"),
    "cpu": ("#e69f00", "#f0b429"), "gpu": ("#0072b2", "#4aa8e8"), "host": ("#8b8f98", "#7b8290"),
    "idle": ("#e6e4de", "#2a303a"),
}  # fmt: skip


def lanes_look(css: str) -> str:
    """CSS with the colours of `LANES` for `$cpu` and, in the dark, `$dark_cpu`."""
    values = {name: light for name, (light, _) in LANES.items()}
    return Template(css).substitute(values | {f"dark_{name}": of[1] for name, of in LANES.items()})


def ink_on(fill: str) -> str:
    """What can be read on a box of this colour, by day and in the dark."""
    fill = fill.upper()
    if fill in (PAPER, PANEL, TINTED, _PALE):
        return INK
    return PAPER if fill in _DEEP else ON_LIGHT
