"""A step is card x host x engine: three files of figures, put together for one prediction.

In:  the names of a card ("h200"), a host ("server") and an engine ("vllm"), or paths of their files.
Out: a frozen `DeviceSpec` of bare numbers, which can also say where each of them comes from.

    spec = load_spec("h200", host="desktop-2025", engine="transformers")
    spec.cpu_op_us                    # the engine's work for one kernel, at the speed of this host
    spec.source("cpu_op_us")          # "engine transformers, kernel_ops: ... x host ..."

`specs/` holds the cards, `hosts/` and `engines/` the other two; `figures.py` says what stands where.
An engine's CPU work is counted in ops of the host, so that the same engine takes longer on a slower
host, as it does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from mini_engine.predict.figures import Figure, Sheet, load_sheet, names

DEFAULT_ENGINE = "vllm"


@dataclass(frozen=True)
class DeviceSpec:
    """One card, the host that feeds it and the engine that runs on them. Times in µs unless the
    name says otherwise."""

    name: str  # of the card
    host: str
    engine: str
    ops: str  # how the engine cuts a step into kernels: a style of `oplists`
    vram_bytes: int
    bandwidth_gb_s: float  # of the card's memory, by the datasheet
    copy_bandwidth_gb_s: float  # what a copy reaches
    product_gb_s: float  # what a matrix product of few rows reaches
    attention_gb_s: float  # what attention reaches when it reads the KV cache
    peak_tflops: float  # dense bf16, fp32 accumulate, by the datasheet
    product_tflops: float  # what a large matrix product reaches
    sm_count: int
    cpu_op_us: float  # CPU: issue one kernel from the engine's Python, the launch included
    live_op_us: float  # CPU: the same for an op between two pieces, its metadata included
    cpu_launch_us: float  # CPU: one raw kernel launch, no framework
    stream_gap_us: float  # GPU: from kernel to kernel in a stream; an empty one takes no more
    graph_gap_us: float  # GPU: the same between two nodes of a graph
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
    figures: Mapping[str, Figure] = field(default_factory=dict, compare=False, repr=False)

    def source(self, figure: str) -> str:
        """Kind and source of one figure, or that the program has set it (`dataclasses.replace`).

        Raises ValueError for a name that is not a figure.
        """
        if figure not in FIGURE_NAMES:
            raise ValueError(f"no figure {figure!r}: use one of {', '.join(FIGURE_NAMES)}")
        known = self.figures.get(figure)
        if known is None or known.value != getattr(self, figure):
            return "set by the program: not from a file"
        return f"{known.kind}: {known.source}"


TEXTS = ("name", "host", "engine", "ops", "figures")
FIGURE_NAMES = tuple(f.name for f in fields(DeviceSpec) if f.name not in TEXTS)


def spec_names() -> list[str]:
    """Names of the cards that ship with the project."""
    return names("card")


def load_spec(
    card: str | Path, host: str | Path | None = None, engine: str | Path = DEFAULT_ENGINE
) -> DeviceSpec:
    """A card, a host and an engine, each by name or by the path of a file.

    Without a host it is the one that the engine usually runs on (its file names it). Raises
    ValueError for an unknown name or a bad file (with file and figure), OSError where a file cannot
    be read.
    """
    runs = load_sheet("engine", engine)
    return put_together(
        load_sheet("card", card), load_sheet("host", host or runs.texts["host"]), runs
    )


def put_together(card: Sheet, host: Sheet, engine: Sheet) -> DeviceSpec:
    """The figures of one prediction."""
    figures = {
        name: sheet.figures[name]
        for sheet, wanted in ((card, _OF_CARD), (host, _OF_HOST), (engine, ("kernel_floor_us",)))
        for name in wanted
    }
    figures["cpu_launch_us"] = host.figures["launch_us"]
    for name, (one, other) in _PRODUCTS.items():
        sheets = {"card": card, "host": host, "engine": engine}
        (a, left), (b, right) = ((sheets[kind].figures[f], (kind, f)) for kind, f in (one, other))
        said = (f"{sheets[k].name} {f} {x.value:g}" for x, (k, f) in ((a, left), (b, right)))
        source = f"{' x '.join(said)} ({a.kind}: {a.source}; {b.kind}: {b.source})"
        figures[name] = Figure(a.value * b.value, "derived", source)
    values = {name: figure.value for name, figure in figures.items()}
    return DeviceSpec(
        card.name, host.name, engine.name, engine.texts["ops"], **values, figures=figures
    )  # type: ignore[arg-type]


_OF_CARD = (
    "vram_bytes", "bandwidth_gb_s", "copy_bandwidth_gb_s", "peak_tflops", "sm_count",
    "stream_gap_us", "graph_gap_us", "queue_depth", "graph_node_bytes", "reserved_bytes",
)  # fmt: skip
_OF_HOST = (
    "graph_launch_us", "graph_node_ns", "copy_us", "sync_us",
    "capture_node_us", "instantiate_node_us",
)  # fmt: skip
_PRODUCTS = {
    "product_gb_s": (("card", "bandwidth_gb_s"), ("card", "product_share")),
    "attention_gb_s": (("card", "bandwidth_gb_s"), ("engine", "attention_share")),
    "product_tflops": (("card", "peak_tflops"), ("card", "peak_share")),
    "cpu_op_us": (("engine", "kernel_ops"), ("host", "op_us")),
    "live_op_us": (("engine", "live_ops"), ("host", "op_us")),
    "host_step_us": (("engine", "step_ops"), ("host", "op_us")),
    "ahead_us": (("engine", "ahead_ops"), ("host", "op_us")),
    "request_us": (("engine", "request_ops"), ("host", "op_us")),
}


def with_figures(spec: DeviceSpec, **values: float) -> DeviceSpec:
    """`spec` with other values. Raises ValueError for a name that is not a figure."""
    unknown = sorted(set(values) - set(FIGURE_NAMES))
    if unknown:
        raise ValueError(f"no figure {unknown[0]!r}: use one of {', '.join(FIGURE_NAMES)}")
    return replace(spec, **values)  # type: ignore[arg-type]
