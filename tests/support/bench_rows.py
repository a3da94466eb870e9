"""Made-up rows as a benchmark writes them: the simulator's times with seeded noise on top."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from mini_engine.bench.evidence import EMULATED_GPU, Measurement, as_written
from mini_engine.bench.intervals import median_interval
from mini_engine.bench.rows import MEASURED, Row
from mini_engine.model.config import ModelConfig, named_shape
from mini_engine.step.cards import DeviceSpec, load_spec
from mini_engine.step.kernels import StepShape, step_ops
from mini_engine.step.run import step_time
from mini_engine.step.storage import stored_as

COPY_GB_S = 4300.0
InFile = dict[str, Any]  # a row as the file has it
# variant -> op list, mode, and how many times the simulator's µs it "takes"; all as plain PyTorch
LAWS: dict[str, tuple[str, Any, float]] = {
    "null": ("fused9", "full", 1.3),
    "hf-eager": ("hf56", "eager", 1.05),
    "ours-eager": ("fused9", "eager", 1.1),
    "ours-graph": ("fused9", "full", 1.3),
    "ours-graph-k8": ("fused9", "full", 1.28),
    "graph-9": ("fused9", "full", 1.02),
    "graph-5": ("fused5", "full", 1.05),
    "graph-5-pdl": ("fused5", "full", 0.85),
    "graph-5-pdl-k8": ("fused5", "full", 0.82),
    "compile-reduce-overhead": ("fused9", "full", 1.2),
}
PASSED = {"passed": True, "reason": "", "forced": None, "produced": None}


@cache
def on(shape: str) -> tuple[ModelConfig, DeviceSpec]:
    return named_shape(shape), load_spec("h200", "desktop-2025", "pytorch-loop")


def made_up_row(
    variant: str, batch: int, context: int = 512, shape: str = "qwen3-0.6b", *,
    us: float | None = None,
) -> InFile:  # fmt: skip
    """A measured row of a file; `us` instead of the law's own time."""
    config, spec = on(shape)
    style, mode, factor = LAWS[variant]
    on_device = replace(spec, host_step_us=0.0, request_us=0.0, copy_us=0.0, sync_us=0.0)
    ops = step_ops(config, StepShape.decode(batch, context), style)
    predicted = step_time(ops, on_device, mode).itl_us
    centre_us = us or predicted * factor
    if variant == "ours-eager" and us is None:  # the same kernels as ours-graph: no faster than it
        same = step_time(ops, on_device, "full").itl_us
        centre_us = max(centre_us, 1.005 * same * LAWS["ours-graph"][2])
    moved = stored_as(config).read + batch * context * stored_as(config).kv_bytes_per_token
    rng = np.random.default_rng([batch, context, sorted(LAWS).index(variant)])
    centre = centre_us * (1 + 0.002 * rng.standard_normal())
    laps = tuple((centre * (1 + 0.004 * rng.standard_normal(8))).tolist())
    itl, gb_s = median_interval(laps), moved / centre / 1e3
    row = Row(
        shape, batch, context, variant, MEASURED, gate=PASSED,
        bytes_to_move=moved, predicted_us=predicted, itl_laps_us=laps,
        anchor_laps_us=(centre,) * 8, itl=itl, wall=itl, achieved_gb_s=gb_s,
        percent_of_copy=100 * gb_s / COPY_GB_S,
    )  # fmt: skip
    found: InFile = as_written(row.as_json())
    return found


@cache
def made_up_rows() -> list[InFile]:
    """Every variant at every batch up to 256. All callers share them: change none."""
    return [made_up_row(variant, 2**i) for i in range(9) for variant in LAWS]


def made_up(
    rows: list[InFile],
    *,
    emulated: bool = True,
    gpu: str = "NVIDIA H200",
    spec: str = "h200",
    host: str = "server",
) -> Measurement:
    """A file of them. It says that it is emulated, for they are no evidence of anything."""
    figures = {"copy_bandwidth_gb_s": {"median": COPY_GB_S}, "spec": spec, "host": host,
               "rounds": 8, "steps": 32, "anchor": "ours-graph", "rows": rows}  # fmt: skip
    return Measurement("bench", emulated, EMULATED_GPU if emulated else gpu, "d", "t", "tr",
                       "2026-11-21", "abc", "a line", figures)  # fmt: skip
