"""Files of figures: a card, a host or an engine, every number with its kind and its source.

In:  a JSON file. Out: `Sheet`: its texts and its figures.

    sheet = read_sheet("card", path)
    sheet.figures["copy_bandwidth_gb_s"].source     # "between what BabelStream reaches ..."

A figure is an object: {"value": 4800, "kind": "datasheet", "source": "..."}. The kinds:

    datasheet   the vendor says so
    measured    this project measured it; the source names the file in course/measurements/
    quoted      somebody else measured it on this device; the source says who
    borrowed    measured on another device, and not yet on this one
    derived     computed from other figures; the source says how
    assumed     nobody has published just it; the source says what was assumed, and from what
    fitted      `validate --fit` found it from published measurements; the source says from which

Three things cost time, so there are three kinds of file, and a figure has one home: bytes, flops
and boundaries belong to the card, CPU time to the host, and how much CPU work a step takes to the
engine. A file with a figure missing, without a source, out of range, unknown, or at home in another
kind of file is refused by file and field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from mini_engine.files import did_you_mean, read_object, typed

Kind = Literal["datasheet", "measured", "quoted", "borrowed", "derived", "assumed", "fitted"]
Launched = Literal["NONE", "PIECEWISE", "FULL"]
LONGEST_NAME = 255  # as of a file
KINDS: tuple[Kind, ...] = get_args(Kind)
FOLDERS = {kind: Path(__file__).parent / f"{kind}s" for kind in ("card", "host", "engine")}

# What each kind of file holds. Figures marked + must be above 0, the others may be 0.
FIGURES = {
    "card": {
        "vram_bytes": "+bytes", "reserved_bytes": "+bytes", "graph_node_bytes": "+bytes",
        "bandwidth_gb_s": "+", "copy_bandwidth_gb_s": "+", "link_gb_s": "+",
        "product_share": "+share",
        "peak_tflops": "+", "peak_share": "+share", "sm_count": "+count", "queue_depth": "+count",
        "stream_gap_us": "+", "graph_gap_us": "+", "pdl_saves_us": "",
    },
    "host": {
        "op_us": "+", "launch_us": "+", "graph_launch_us": "+", "graph_node_ns": "+",
        "copy_us": "+", "sync_us": "+", "capture_node_us": "+", "instantiate_node_us": "+",
    },
    "engine": {
        "kernel_ops": "+", "live_ops": "+", "step_ops": "", "ahead_ops": "", "request_ops": "",
        "kernel_floor_us": "", "attention_share": "+share",
    },
}  # fmt: skip


@dataclass(frozen=True)
class Figure:
    """One number of a file, with where it comes from."""

    value: float
    kind: Kind
    source: str

    def __post_init__(self) -> None:
        if not self.source.strip():
            raise ValueError(f"no source: say where {self.value} comes from")


@dataclass(frozen=True)
class CardWords:
    """What the file of a card says beside its figures."""

    name: str
    family: str  # cards of one family are fitted together
    engine: str = ""  # what runs on it, where nobody names one


@dataclass(frozen=True)
class HostWords:
    """What the file of a host says beside its figures."""

    name: str
    says: str
    sources: list[str] = field(default_factory=list)  # of published points measured on it


@dataclass(frozen=True)
class EngineWords:
    """What the file of an engine says beside its figures."""

    name: str
    says: str
    host: str  # what it usually runs on
    ops: str  # how it cuts a step into kernels: a style of `oplists`
    classes: dict[str, Launched] = field(default_factory=dict)  # of published points
    missed: dict[str, Figure] = field(default_factory=dict)  # of a mode: half an interval, as a log


WORDS: dict[str, Any] = {"card": CardWords, "host": HostWords, "engine": EngineWords}


@dataclass(frozen=True)
class Sheet:
    """One file: its name, figures, and what else its kind of file says."""

    name: str
    figures: Mapping[str, Figure]
    words: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, figure: str) -> float:
        return self.figures[figure].value


def names(kind: str) -> list[str]:
    """The cards, hosts or engines that ship with the project."""
    return sorted(path.stem for path in FOLDERS[kind].glob("*.json"))


def load_sheet(kind: str, name_or_path: str | Path) -> Sheet:
    """A named card, host or engine (case does not matter), or any file of that kind.

    Raises ValueError for an unknown name or a bad file, OSError where it cannot be read.
    """
    word = str(name_or_path)
    if word.lower() in names(kind):
        return read_sheet(kind, FOLDERS[kind] / f"{word.lower()}.json")
    if Path(word).suffix.lower() != ".json":
        near, known = did_you_mean(word, names(kind)), ", ".join(names(kind))
        raise ValueError(f"no {kind} {word!r}: use {known}, or the path of a .json{near}")
    return read_sheet(kind, Path(word))


def read_sheet(kind: str, path: Path) -> Sheet:
    """Read and check one file."""
    data = read_object(path)
    for home, figures in FIGURES.items():
        for name in figures if home != kind else ():
            if name in data:
                raise ValueError(f"{path}: {name} is no figure of a {kind}: it belongs to a {home}")
    missing = [name for name in FIGURES[kind] if name not in data]
    if missing:
        raise ValueError(f"{path}: {missing[0]} is missing: a file gives every figure")
    rules = FIGURES[kind].items()
    found = {name: _figure(data.pop(name), name, rule, path) for name, rule in rules}
    words = typed(WORDS[kind], data, str(path))
    if not words.name.strip() or not words.name.isprintable() or len(words.name) > LONGEST_NAME:
        raise ValueError(
            f"{path}: name is {words.name!r:.60}, expected up to {LONGEST_NAME} letters that print"
        )
    return Sheet(words.name, found, vars(words))


def _figure(data: object, name: str, rule: str, path: Path) -> Figure:
    where = f"{path}: {name}"
    figure = typed(Figure, data, where)
    value = figure.value
    if value < 0 or (value == 0 and rule.startswith("+")):
        raise ValueError(f"{where} is {value:g}, expected a number above 0")
    if rule.endswith("share") and value > 1:
        raise ValueError(f"{where} is {value:g}, expected a share, at most 1")
    if rule.endswith(("bytes", "count")):
        if value != int(value):
            raise ValueError(f"{where} is {value:g}, expected a whole number")
        return Figure(int(value), figure.kind, figure.source)
    return figure
