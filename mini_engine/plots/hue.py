"""The colours of all figures, widgets and pages, by what they mean. Nowhere else stands the code of
a colour.

What a step does has the hues of Okabe and Ito, "Color Universal Design"
(https://jfly.uni-koeln.de/color/), which people with any common kind of colour blindness can tell
apart: orange is the CPU, blue the GPU. Things that have no colour of their own take those of
`SERIES` in their order. No two colours are alike, by day or in the dark."""

from string import Template

DARK: dict[str, str] = {}  # each colour, where a reader prefers the dark


def _colour(light: str, dark: str) -> str:
    DARK[light] = dark
    return light


# What everything stands on and is written in; no data has them.
PAPER, INK = _colour("#FFFFFF", "#101318"), _colour("#000000", "#e6e8eb")
SOFT, RULE = _colour("#505050", "#a8adb5"), _colour("#E8E8E8", "#2a303a")
PANEL = _colour("#E3E9ED", "#252e38")  # an area behind others
ON_LIGHT = "#101010"  # ink on a light hue, in the dark as well
DARK[ON_LIGHT] = ON_LIGHT

# A step, on its two lanes.
ENGINE = _colour("#8B8F98", "#8b919c")  # the CPU's work around a step
LAUNCH = _colour("#E69F00", "#f0b429")  # the CPU's work for a launch
CALL = _colour("#D55E00", "#f08a4b")  # the call of the driver, for a kernel or a graph
COPY = _colour("#CC79A7", "#dd9dbf")  # between host and device
KERNEL = _colour("#0072B2", "#4aa8e8")  # runs, launched alone
NODE = _colour("#56B4E9", "#b3e0fa")  # a kernel that runs in a graph
IDLE = _colour("#D9D9D9", "#39414d")  # nothing: it waits, or is empty

# Kernels by their kind.
PRODUCT = _colour("#4A63C9", "#7388f0")  # of a matrix
ATTENTION = _colour("#009E73", "#35c39b")
SMALL = _colour("#AEB7BE", "#c8d0d6")  # all others

# What the time of a kernel goes to.
BYTES = _colour("#173F7A", "#5580d8")
STARTS = _colour("#A9D6F2", "#8fb7d6")

# Ways to launch a step.
EAGER = _colour("#A50F3C", "#ff7f9b")
PIECEWISE = _colour("#7A8B00", "#bccb4f")
FULL = _colour("#006D77", "#4fd0d6")
MODE_COLOURS = {"eager": EAGER, "piecewise": PIECEWISE, "full": FULL}

# Rows of a batch.
PREFILL = _colour("#8C5A2B", "#a8713a")  # tokens of a prompt
DECODE = _colour("#93C22E", "#86b83a")  # the next token of a request
PADDING = _colour("#F0E442", "#e6dc55")  # computed for nobody

# What a figure is about or points at, and what that is held against.
MARK = _colour("#E3127E", "#ff5fae")
OTHER = _colour("#A8A08F", "#7a7468")

SERIES = (
    _colour("#93A0DE", "#b3b8f2"), _colour("#F29E74", "#f0a986"), _colour("#7FA893", "#8fbfa6"),
    _colour("#A06A94", "#b77fc0"), _colour("#4F6B73", "#5f8590"),
)  # fmt: skip

# Two lanes on a page of the site, in a cell of a notebook and in the README: light, then dark.
LANES = {
    "text": ("#1f2328", "#f0f6fc"), "soft": ("#59636e", "#9198a1"), "page": ("#fff", "#101318"),
    "cpu": (LAUNCH, DARK[LAUNCH]), "gpu": (KERNEL, DARK[KERNEL]), "host": (ENGINE, DARK[ENGINE]),
    "idle": (IDLE, DARK[IDLE]),
}  # fmt: skip


def lanes_look(css: str) -> str:
    """CSS with the colours of `LANES` for `$cpu` and, in the dark, `$dark_cpu`."""
    values = {name: light for name, (light, _) in LANES.items()}
    return Template(css).substitute(values | {f"dark_{name}": of[1] for name, of in LANES.items()})


def meanings() -> dict[str, str]:
    """Each name of a colour in capitals, and its code by day; those of `SERIES` are numbered."""
    named = {n: code for n, code in globals().items() if n.isupper() and isinstance(code, str)}
    return named | {f"SERIES_{number}": code for number, code in enumerate(SERIES)}


def contrast(one: str, other: str) -> float:
    """WCAG 2's, of two codes of six digits."""
    lights = []
    for code in (one, other):
        parts = (int(code[at : at + 2], 16) / 255 for at in (1, 3, 5))
        linear = [v / 12.92 if v <= 0.04 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
        lights.append(0.05 + 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return max(lights) / min(lights)


def ink_on(fill: str) -> str:
    """What can be read on a box of this colour, by day and in the dark."""
    known = {light.lower(): light for light in DARK}
    light = known.get(fill.lower(), fill)
    inks = [INK] if light in (PAPER, PANEL, IDLE) else [PAPER, ON_LIGHT]
    return max(inks, key=lambda ink: min(contrast(light, ink), contrast(DARK[light], DARK[ink])))
