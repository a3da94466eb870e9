"""What the demo predicts: a row for each engine, the table, and the measured pair beside it.

In:  predictions of one decode step, from `mini_engine.sim.predict` and `step_cost`.
Out: the rows of `demo --json`, and the same as lines of at most 80 columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE
from rich.table import Table

from mini_engine.dispatch.modes import CUDAGraphMode
from mini_engine.model.config import ModelConfig
from mini_engine.sim.predict import HF_EAGER, Prediction
from mini_engine.step.hardware import DeviceSpec
from mini_engine.step.oplists import StepShape, step_ops
from mini_engine.step.step_cost import LAUNCHED_AS, step_time
from mini_engine.validate.validate import nearest_pair

HOW = {"eager": "eager", "piecewise": "pieces", "full": "one graph"}
OURS = "launch-bound"  # the row of this engine: five kernels a layer, in one graph
LABELS = {HF_EAGER: "transformers", OURS: "this engine¹"}
HEADS = {
    "": "as",
    "ker-": "nels",
    "laun-": "ches",
    "CPU": "ms",
    "GPU": "ms",
    "ITL": "ms",
    "80%": "within",
    "GPU ": "busy",
    "cap-": "ture s",
    "pays": "after",
}


def as_table(rows: Sequence[dict[str, Any]], engine: str) -> Table:
    """Fits 80 columns."""
    table = Table(box=SIMPLE, padding=0)
    table.add_column("", no_wrap=True)
    for head, unit in HEADS.items():
        justify = "left" if unit == "as" else "right"
        table.add_column(f"{head}\n{unit}", justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for row in rows:
        after = row["pays_after_replays"]
        table.add_row(
            LABELS.get(row["mode"], engine),
            HOW[row["launched"]],
            f"{row['kernels']:,}",
            f"{row['launches']:,}",
            f"{row['cpu_us'] / 1e3:.1f}",
            f"{row['gpu_us'] / 1e3:.1f}",
            f"{row['itl_us'] / 1e3:.1f}",
            f"{row['low_us'] / 1e3:.1f}–{row['high_us'] / 1e3:.1f}",
            f"{row['gpu_utilisation']:.0%}",
            f"{row['capture_ms'] / 1e3:.1f}" if row["graphs"] else "–",
            f"{after:,}" if after else "–",
        )
    return table


def finding(rows: Sequence[dict[str, Any]]) -> str:
    """What one graph changes, in a line."""
    by_mode = {row["mode"]: row for row in rows}
    eager, full = by_mode["NONE"], by_mode["FULL"]
    return (
        f"   One graph: {full['launches']} launches for {eager['launches']}, the same "
        f"{full['gpu_us'] / 1e3:.1f} ms of kernels, {eager['itl_us'] / full['itl_us']:.1f} "
        "times as fast."
    )


def nearest(shape: ModelConfig, spec: DeviceSpec, batch: int) -> dict[str, Any] | None:
    """The measured pair, eager and one graph, that is most like this step; None where none is."""
    found = nearest_pair(shape, spec, batch)
    if found is None:
        return None
    slow, fast = found.slow.point, found.fast.point
    return {
        "eager": slow.cls,
        "graph": fast.cls,
        "shape": slow.model,
        "spec": slow.card,
        "batch": slow.batch,
        "eager_ms": slow.itl_ms,
        "graph_ms": fast.itl_ms,
        "times_as_fast": found.measured,
        "predicted_times_as_fast": found.predicted,
        "source": slow.source,
    }


def beside(pair: dict[str, Any]) -> str:
    """The measured pair, its source in a line of its own."""
    graph = pair["graph"].partition(" ")[2]  # of the same engine
    return (
        f"   Measured nearby: {pair['eager']} {pair['eager_ms']:.2f} ms, {graph} "
        f"{pair['graph_ms']:.2f} ms, {pair['times_as_fast']:.1f} times as fast\n"
        f"   (predicted {pair['predicted_times_as_fast']:.1f}): {pair['shape']} on one "
        f"{pair['spec']}, batch {pair['batch']},\n   {pair['source']}"
    )


def own_row(shape: ModelConfig, spec: DeviceSpec, batch: int, context: int) -> dict[str, Any]:
    """This engine's step: its own list of kernels, in one graph."""
    ops = step_ops(shape, StepShape.decode(batch, context), spec.ops)
    step = step_time(ops, spec, "full", batch)
    low, high = spec.interval(step.itl_us, "FULL")
    return {
        "mode": OURS,
        "launched": "full",
        "kernels": step.kernels,
        "launches": step.launches,
        "cpu_us": step.cpu_us,
        "gpu_us": step.gpu_busy_us,
        "itl_us": step.itl_us,
        "low_us": low,
        "high_us": high,
        "gpu_utilisation": step.utilisation,
        "graphs": 0,
        "pays_after_replays": None,
    }


def row_of(p: Prediction, eager: Prediction, spec: DeviceSpec) -> dict[str, Any]:
    """A step that the simulated device ran."""
    after = p.break_even(eager)
    mode = "NONE" if p.mode == HF_EAGER else p.mode
    low, high = spec.interval(p.itl_us, mode)
    return {
        "mode": p.mode,
        "launched": LAUNCHED_AS[CUDAGraphMode[mode]],
        "kernels": p.kernels,
        "launches": p.launches,
        "cpu_us": p.cpu_us,
        "gpu_us": p.gpu_us,
        "itl_us": p.itl_us,
        "low_us": low,
        "high_us": high,
        "itl_p50_ms": p.itl_p50_us / 1000,
        "itl_p99_ms": p.itl_p99_us / 1000,
        "gpu_utilisation": p.utilisation,
        "graphs": p.graphs,
        "capture_ms": p.capture_us / 1000,
        "graph_mb": p.graph_bytes / 1e6,
        "pays_after_replays": int(after) if p.graphs and after < float("inf") else None,
    }
