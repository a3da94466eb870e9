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

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mini_engine.files import did_you_mean, in_short, read_object
from mini_engine.step.oplists import STYLES

ROOM = Path(__file__).parent
KINDS = ("datasheet", "measured", "quoted", "borrowed", "derived", "assumed", "fitted")
FOLDERS = {"card": ROOM / "cards", "host": ROOM / "hosts", "engine": ROOM / "engines"}

# What each kind of file holds. Figures marked + must be above 0, the others may be 0.
TEXTS = {"card": ("family",), "host": ("says",), "engine": ("says", "host", "ops")}
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
EXTRAS = {
    "card": {"name", "engine"},
    "host": {"name", "sources"},
    "engine": {"name", "classes", "missed"},
}
MODES = ("NONE", "PIECEWISE", "FULL")  # how a step is launched
LONGEST_NAME = 255  # as of a file
LEAST, MOST = 1e-9, 1e15  # of a figure that is not 0: what is beyond has a wrong unit
MOST_MISSED = 10  # a prediction that is e^10 times off
_IN_JSON = {str: "words", list: "a list [...]", dict: "an object {...}"}


@dataclass(frozen=True)
class Figure:
    """One number of a file, with where it comes from."""

    value: float
    kind: str
    source: str


@dataclass(frozen=True)
class Sheet:
    """One file: its name, texts, figures, and what else its kind of file holds."""

    name: str
    texts: Mapping[str, str]
    figures: Mapping[str, Figure]
    extras: Mapping[str, Any] = field(default_factory=dict)

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


def _one(kind: str) -> str:
    return f"{'an' if kind == 'engine' else 'a'} {kind}"


def read_sheet(kind: str, path: Path) -> Sheet:
    """Read and check one file."""
    data = read_object(path)
    for name in sorted(set(data) - EXTRAS[kind] - set(TEXTS[kind]) - set(FIGURES[kind])):
        home = [other for other in FIGURES if name in {*FIGURES[other], *TEXTS[other]}]
        advice = f"it belongs to {_one(home[0])}" if home else "take it out or mend its name"
        raise ValueError(f"{path}: {name!r:.60} is no figure of {_one(kind)}: {advice}")
    texts = {name: _text(data, name, path) for name in ("name", *TEXTS[kind])}
    figures = {name: _figure(data, name, rule, path) for name, rule in FIGURES[kind].items()}
    extras = {name: _extra(data, name, path) for name in EXTRAS[kind] - {"name"}}
    return Sheet(texts.pop("name"), texts, figures, extras)


def _text(data: Mapping[str, object], name: str, path: Path) -> str:
    given = data.get(name)
    if not isinstance(given, str) or not given.strip():
        raise ValueError(f"{path}: {name!r} is {in_short(given)}, expected words")
    if name == "name" and not (given.isprintable() and len(given) <= LONGEST_NAME):
        raise ValueError(
            f"{path}: 'name' is {in_short(given)}, expected {LONGEST_NAME} letters at most, all of "
            "them printable"
        )
    if name == "ops" and given not in STYLES:
        raise ValueError(f"{path}: 'ops' is {in_short(given)}, expected {' or '.join(STYLES)}")
    return given


def _extra(data: Mapping[str, object], name: str, path: Path) -> Any:
    """What else a file may say; {} where it does not."""
    given = data.get(name, {})
    kind = {"engine": str, "sources": list}.get(name, dict)
    if given is None or given == {}:
        return {}
    if not isinstance(given, kind):
        raise ValueError(f"{path}: {name!r} is {given!r:.40}, expected {_IN_JSON[kind]}")
    if name == "missed":
        for mode, one in given.items():
            value = one.get("value") if isinstance(one, dict) else None
            if type(value) not in (int, float) or not 0 <= value <= MOST_MISSED:
                raise ValueError(
                    f'{path}: missed {mode!r} must be {{"value": ...}} with a number from 0 to '
                    f"{MOST_MISSED}"
                )
    elif any(not isinstance(word, str) for word in (given.values() if kind is dict else given)):
        raise ValueError(f"{path}: {name!r} is {given!r:.40}, expected words in it")
    for mode in given.values() if name == "classes" else given if name == "missed" else ():
        if mode not in MODES:
            raise ValueError(
                f"{path}: {name!r} has mode {in_short(mode)}, expected {' or '.join(MODES)}"
            )
    return given


def _figure(data: Mapping[str, object], name: str, rule: str, path: Path) -> Figure:
    where = f"{path}: {name}"
    if name not in data:
        raise ValueError(f"{where} is missing: a file gives every figure")
    given = data[name]
    if not isinstance(given, dict) or set(given) != {"value", "kind", "source"}:
        raise ValueError(f'{where} must be {{"value": ..., "kind": ..., "source": ...}}')
    value, kind, source = given["value"], given["kind"], given["source"]
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < math.inf:
        raise ValueError(f"{where} is {value!r}, expected a number")
    if value < 0 or (value == 0 and rule.startswith("+")):
        raise ValueError(f"{where} is {value!r}, expected a number above 0")
    if value and not LEAST <= value <= MOST:
        raise ValueError(f"{where} is {value!r:.40}, expected {LEAST:g} to {MOST:g}")
    if rule.endswith("share") and value > 1:
        raise ValueError(f"{where} is {value!r}, expected a share, at most 1")
    if rule.endswith(("bytes", "count")) and value != int(value):
        raise ValueError(f"{where} is {value!r}, expected a whole number")
    if kind not in KINDS:
        raise ValueError(f"{where} is of kind {kind!r:.40}, expected one of {', '.join(KINDS)}")
    if not isinstance(source, str) or not source.strip():
        raise ValueError(f"{where} has no source: say where {value} comes from")
    whole = rule.endswith(("bytes", "count"))
    return Figure(int(value) if whole else float(value), kind, source)
