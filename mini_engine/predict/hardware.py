"""What a device can do and what it charges: a JSON file for each, every figure with its source.

In:  the name of a device ("h200") or the path of a spec file.
Out: a frozen `DeviceSpec` of plain numbers, which can also say where each of them comes from.

    spec = load_spec("h200")
    spec.copy_bandwidth_gb_s               # 4300
    spec.source("copy_bandwidth_gb_s")     # "copy within the memory of one H200 SXM ..."

In the file a figure is an object: {"value": 4300, "kind": "measured", "source": "..."}. The kinds:

    datasheet   the vendor says so
    measured    somebody with this project measured it; the source says on what and when
    quoted      somebody else measured it on this device; the source says who
    borrowed    measured on another device, not yet on this one
    derived     computed from other figures; the source says how

No figure of any device is in the code. A figure that is missing, unknown, not positive or without a
source is refused, by the names of the file and the figure.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

SPEC_FOLDER = Path(__file__).parent.parent / "specs"
KINDS = ("datasheet", "measured", "quoted", "borrowed", "derived")


@dataclass(frozen=True)
class Figure:
    """One number of a spec file, with where it comes from."""

    value: float
    kind: str
    source: str


@dataclass(frozen=True)
class DeviceSpec:
    """One device and the CPU that feeds it. Times in µs unless the name says otherwise."""

    name: str
    vram_bytes: int
    bandwidth_gb_s: float  # of the device's memory, by the datasheet
    copy_bandwidth_gb_s: float  # what a copy reaches: kernels are timed with this one
    peak_tflops: float  # dense bf16, fp32 accumulate
    sm_count: int
    l2_bytes: int
    cpu_op_us: float  # CPU: issue one op from an eager framework, the launch included
    cpu_launch_us: float  # CPU: one raw kernel launch, no framework
    stream_gap_us: float  # GPU: end of a kernel to the start of the next one in a stream
    graph_gap_us: float  # GPU: the same between two nodes of a graph
    kernel_floor_us: float  # GPU: ramp-up and drain, added to every kernel
    graph_launch_us: float  # CPU: launch a graph of any size ...
    graph_node_ns: float  # ... and this much more for each of its nodes (ns)
    queue_depth: int  # launches that may be outstanding before the CPU blocks
    copy_us: float  # CPU: start one small copy from the host
    sync_us: float  # CPU: read a small result back once the GPU is done
    host_step_us: float  # CPU: an engine between two steps: schedule, prepare inputs, detokenise
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
            return "set by the program: not from a spec file"
        return f"{known.kind}: {known.source}"


_TYPES = {f.name: f.type for f in fields(DeviceSpec) if f.name not in ("name", "figures")}
FIGURE_NAMES = tuple(_TYPES)


def spec_names() -> list[str]:
    """Names of the devices that ship with the project."""
    return sorted(path.stem for path in SPEC_FOLDER.glob("*.json"))


def load_spec(name_or_path: str | Path) -> DeviceSpec:
    """The spec of a named device, or of any spec file.

    Raises ValueError for an unknown name or a bad file (with file and figure), OSError where the
    file cannot be read.
    """
    if str(name_or_path).lower() in spec_names():
        return _read(SPEC_FOLDER / f"{str(name_or_path).lower()}.json")
    path = Path(name_or_path)
    if path.suffix != ".json":
        names = ", ".join(spec_names())
        raise ValueError(f"no device {str(name_or_path)!r}: use {names}, or the path of a .json")
    return _read(path)


# ---------------------------------------------------------------- reading


def _read(path: Path) -> DeviceSpec:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not a JSON file: {error}") from None
    if not isinstance(data, dict):
        raise ValueError(f"{path}: holds {type(data).__name__}, expected an object of figures")
    unknown = sorted(set(data) - {"name", *FIGURE_NAMES})
    if unknown:
        raise ValueError(f"{path}: unknown figure {unknown[0]!r}: remove it or correct its name")
    name = data.get("name")
    if not isinstance(name, str) or not name:
        raise ValueError(f"{path}: 'name' is {name!r}, expected the device's name")
    figures = {figure: _figure(data, figure, path) for figure in FIGURE_NAMES}
    return DeviceSpec(name, **{k: f.value for k, f in figures.items()}, figures=figures)  # type: ignore[arg-type]


def _figure(data: Mapping[str, object], figure: str, path: Path) -> Figure:
    where = f"{path}: {figure}"
    if figure not in data:
        raise ValueError(f"{where} is missing: a spec gives every figure")
    given = data[figure]
    if not isinstance(given, dict) or set(given) != {"value", "kind", "source"}:
        raise ValueError(f'{where} must be {{"value": ..., "kind": ..., "source": ...}}')
    value, kind, source = given["value"], given["kind"], given["source"]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"{where} is {value!r}, expected a number above 0")
    if _TYPES[figure] == "int" and value != int(value):
        raise ValueError(f"{where} is {value!r}, expected a whole number")
    if kind not in KINDS:
        raise ValueError(f"{where} is of kind {kind!r}, expected one of {', '.join(KINDS)}")
    if not isinstance(source, str) or not source.strip():
        raise ValueError(f"{where} has no source: say where {value} comes from")
    return Figure(int(value) if _TYPES[figure] == "int" else float(value), kind, source)
