"""A step is card x host x engine: three files of figures, put together for one prediction.

    spec = load_spec("h200", host="desktop-2025", engine="transformers")
    spec.cpu_op_us                    # the engine's work for one kernel, at the speed of this host
    spec.source("cpu_op_us")          # "derived: kernel_ops of transformers, ... x op_us of ..."

A figure is an object: {"value": 4800, "kind": "datasheet", "source": "..."}. The kinds:

    datasheet   the vendor says so
    measured    this project measured it; the source names the file in course/measurements/
    quoted      somebody else measured it on this device; the source says who
    borrowed    measured on another device, and not yet on this one
    derived     computed from other figures; the source says how
    assumed     nobody has published just it; the source says what was assumed, and from what
    fitted      `validate --fit` found it from published measurements; the source says from which

A figure has one home: bytes, flops and boundaries belong to the card, CPU time to the host, and how
much CPU work a step takes to the engine, counted in ops of the host."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast

from mini_engine.dispatch.default_ladder import BatchDefaults, batch_defaults
from mini_engine.files import did_you_mean, read_json, read_object, typed

Kind = Literal["datasheet", "measured", "quoted", "borrowed", "derived", "assumed", "fitted"]
Launched = Literal["NONE", "PIECEWISE", "FULL"]
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
    value: float
    kind: Kind
    source: str


@dataclass(frozen=True)
class CardWords:
    """What the file of a card says beside its figures; those below, of a host and of an engine."""

    name: str
    family: str  # cards of one family are fitted together
    engine: str = ""  # what runs on it, where nobody names one
    gpu: str = ""  # how the driver's name begins, without makers, where it is not the card's own


@dataclass(frozen=True)
class HostWords:
    name: str
    says: str
    sources: list[str] = field(default_factory=list)  # of published points measured on it


@dataclass(frozen=True)
class EngineWords:
    name: str
    says: str
    host: str  # what it usually runs on
    ops: str  # how it cuts a step into kernels: a style of `kernels`
    classes: dict[str, Launched] = field(default_factory=dict)  # of published points
    pdl: bool = False  # were these points measured with PDL, which the figures are without


WORDS: dict[str, Any] = {"card": CardWords, "host": HostWords, "engine": EngineWords}


@dataclass(frozen=True)
class Sheet:
    name: str
    figures: Mapping[str, Figure]
    words: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, figure: str) -> float:
        return self.figures[figure].value

    def with_figure(self, name: str, **changes: Any) -> Sheet:
        return replace(self, figures={**self.figures, name: replace(self.figures[name], **changes)})


@cache
def names(kind: str) -> Sequence[str]:
    return tuple(sorted(path.stem for path in FOLDERS[kind].glob("*.json")))


def load_sheet(kind: str, name_or_path: str | Path) -> Sheet:
    """A named card, host or engine (case does not matter), or any file of that kind. Raises
    ValueError for an unknown name or a bad file, OSError where it cannot be read."""
    word = str(name_or_path)
    if word.lower() in names(kind):
        return shipped_sheet(kind, word.lower())
    if Path(word).suffix.lower() != ".json":
        near, known = did_you_mean(word, names(kind)), ", ".join(names(kind))
        raise ValueError(f"no {kind} {word!r}: use {known}, or the path of a .json{near}")
    return _read(kind, Path(word))


@cache
def shipped_sheet(kind: str, name: str) -> Sheet:
    return _read(kind, FOLDERS[kind] / f"{name}.json")


def _read(kind: str, path: Path) -> Sheet:
    data, found = read_object(path), {}
    for name, rule in FIGURES[kind].items():
        figure = typed(Figure, data.pop(name, None), f"{path}: {name}")
        value, whole = figure.value, rule.endswith(("bytes", "count"))
        wrong = {
            "a number above 0": value < 0 or (value == 0 and rule.startswith("+")),
            "a share, at most 1": rule.endswith("share") and value > 1,
            "a whole number": whole and value != int(value),
        }
        for expected in (words for words, is_so in wrong.items() if is_so):
            raise ValueError(f"{path}: {name} is {value:g}, expected {expected}")
        found[name] = replace(figure, value=int(value) if whole else value)
    words = vars(typed(WORDS[kind], data, str(path)))
    if not words["name"].strip() or not words["name"].isprintable():  # it may come to a terminal
        raise ValueError(f"{path}: name is {words['name']!r:.60}, expected letters that print")
    return Sheet(words["name"], found, words)


@dataclass(frozen=True)
class DeviceSpec:
    """One card, the host that feeds it, and the engine that runs on both. Times are in µs."""

    name: str  # of the card
    host: str
    engine: str
    ops: str  # how the engine cuts a step into kernels: a style of `kernels`
    vram_bytes: int
    bandwidth_gb_s: float  # of the card's memory, by the datasheet
    copy_bandwidth_gb_s: float  # what a copy reaches
    link_gb_s: float  # what a copy between pinned host memory and the card reaches, each way
    product_gb_s: float  # what a matrix product of few rows reaches
    attention_gb_s: float  # what attention reaches when it reads the KV cache
    peak_tflops: float  # dense bf16, fp32 accumulate, by the datasheet
    product_tflops: float  # what a large matrix product reaches
    sm_count: int
    cpu_op_us: float  # CPU: issue one kernel from the engine's Python, the launch included
    live_op_us: float  # CPU: the same for an op between two pieces, its metadata included
    torch_op_us: float  # CPU: the same for a bare op of PyTorch, beside the model
    cpu_launch_us: float  # CPU: one raw kernel launch, no framework
    stream_gap_us: float  # GPU: from kernel to kernel in a stream; an empty one takes no more
    graph_gap_us: float  # GPU: the same between two nodes of a graph
    pdl_saves_us: float  # GPU: what PDL takes off that; 0 on a card without PDL
    kernel_floor_us: float  # GPU: ramp-up and drain of a kernel that moves anything
    graph_launch_us: float  # CPU: launch a graph of any size ...
    graph_node_ns: float  # ... and this much more for each of its nodes (ns)
    queue_depth: int  # launches that may be outstanding before the CPU blocks
    copy_us: float  # CPU: start one small copy from the host
    sync_us: float  # CPU: read a small result back once the GPU is done
    host_step_us: float  # CPU: an engine between two steps, while the GPU waits
    ahead_us: float  # CPU: an engine between two steps, beside the GPU (scheduling ahead)
    request_us: float  # CPU: what each request of the batch adds to it
    capture_node_us: float  # CPU: record one node, on top of issuing the op
    instantiate_node_us: float  # CPU: make one recorded node ready to launch
    graph_node_bytes: int  # driver memory that one node holds
    reserved_bytes: int  # taken before the first tensor: CUDA context, libraries
    sheets: Mapping[str, Sheet] = field(default_factory=dict, compare=False, repr=False)

    def interval(
        self, itl: float, mode: str, batch: int = 1, floor: float = 0.0
    ) -> tuple[float, float] | None:
        """The 80% interval of a predicted ITL, for a step that is launched as `mode`: NONE,
        PIECEWISE or FULL. Not centred, where steps are usually slower than predicted; not below
        `floor`; None where too few have measured such steps."""
        for one in intervals():
            if one.mode == mode and one.least <= batch <= one.most and one.low and one.high:
                return max(itl * one.low, floor), itl * one.high
        return None

    def on_host(self, factor: float) -> DeviceSpec:
        times = {n: getattr(self, n) * factor for n, parts in FACTORS.items() if "op_us" in parts}
        return replace(self, **times)

    @property
    def batch_defaults(self) -> BatchDefaults:
        return batch_defaults(self.name, self.vram_bytes)

    def source(self, figure: str) -> str:
        """Kind and source of one figure, or that the program has set it (`dataclasses.replace`)."""
        sheets = {name: self.sheets[HOME[name]] for name in FACTORS[figure] if self.sheets}
        figures = {name: sheet.figures[name] for name, sheet in sheets.items()}
        if not figures or math.prod(f.value for f in figures.values()) != getattr(self, figure):
            return "set by the program: not from a file"
        said = (
            f"{name} of {sheets[name].name}, {one.value:g} ({one.kind}: {one.source})"
            for name, one in figures.items()
        )
        only = next(iter(figures.values()))
        return f"derived: {' x '.join(said)}" if len(figures) > 1 else f"{only.kind}: {only.source}"


HOME = {figure: kind for kind, rules in FIGURES.items() for figure in rules}
# Each figure of a spec, and the figures of the files that it is, or whose product it is.
FACTORS: Mapping[str, tuple[str, ...]] = {
    **{name: (name,) for name in HOME if name in DeviceSpec.__annotations__},
    "product_gb_s": ("bandwidth_gb_s", "product_share"),
    "attention_gb_s": ("bandwidth_gb_s", "attention_share"),
    "product_tflops": ("peak_tflops", "peak_share"),
    "cpu_launch_us": ("launch_us",), "torch_op_us": ("op_us",),
    "cpu_op_us": ("kernel_ops", "op_us"), "live_op_us": ("live_ops", "op_us"),
    "host_step_us": ("step_ops", "op_us"), "ahead_us": ("ahead_ops", "op_us"),
    "request_us": ("request_ops", "op_us"),
}  # fmt: skip


def load_spec(
    card: str | Path, host: str | Path | None = None, engine: str | Path | None = None
) -> DeviceSpec:
    """The engine defaults to what the card's file names, else to vLLM, and the host to the one that
    the engine usually runs on. Raises as `load_sheet` does."""
    feeds = load_sheet("card", card)
    runs = load_sheet("engine", engine or feeds.words["engine"] or "vllm")
    return put_together(feeds, load_sheet("host", host or runs.words["host"]), runs)


def put_together(card: Sheet, host: Sheet, engine: Sheet) -> DeviceSpec:
    sheets = {"card": card, "host": host, "engine": engine}
    values: dict[str, Any] = {
        name: math.prod(sheets[HOME[figure]][figure] for figure in factors)
        for name, factors in FACTORS.items()
    }
    texts = (card.name, host.name, engine.name, engine.words["ops"])
    return DeviceSpec(*texts, **values, sheets=sheets)


@dataclass(frozen=True)
class Interval:
    """How sure a prediction is: how measured steps of one kind lay to the predictions of fits that
    had not seen their source. `validate --fit` writes these."""

    mode: Launched
    least: int  # of the batch
    most: int
    points: int
    sources: int
    median: float  # error, of the absolute values
    bias: float  # the median of predicted over measured, less one
    low: float | None = None  # 80% were measured between low and high times the prediction;
    high: float | None = None  # None where fewer than three sources tell
    inside: float | None = None  # share in the interval that the other sources make


INTERVALS = Path(__file__).with_name("intervals.json")


@cache
def intervals() -> tuple[Interval, ...]:
    rows = cast(list[object], read_json(INTERVALS))
    return tuple(typed(Interval, row, f"{INTERVALS}: {n}") for n, row in enumerate(rows, start=1))
