"""The figure of chapter 0: where the time of a recorded token went, eagerly and in a graph."""

from __future__ import annotations

from pathlib import Path

from mini_engine.plots.figures import LAUNCHES, OTHER_WORK, RUNS, step_bars
from mini_engine.sim.recorded import Anatomy, anatomy, load_recording

RECORDED = {
    "ordered one by one": "sglang-qwen3-0.6b-h100-eager",
    "as one recording": "sglang-qwen3-0.6b-h100-graph",
}


def recorded(way: str) -> Anatomy:
    """One token of it, taken apart."""
    return anatomy(load_recording(RECORDED[way]))


def one_token(path: Path) -> None:
    """Both ways as bars: a kernel runs, a launch call, other work of the CPU."""
    steps = {way: recorded(way) for way in RECORDED}
    eager = steps["ordered one by one"]
    waits = eager.gpu_us - eager.busy_us
    step_bars(
        {
            f"{way}: {step.kernels:,.0f} kernels, {step.launches:,.0f} launches": {
                RUNS: step.busy_us,
                LAUNCHES: step.idle_in_launch_us or 0.0,
                OTHER_WORK: step.idle_us or 0.0,
            }
            for way, step in steps.items()
        },
        path,
        title=f"Of {waits / 1e3:.0f} idle ms, {eager.idle_us / waits:.0%} pass outside of launches",
        caption="Recorded by others (YiconRain/profiling at 311296ef): SGLang, Qwen3-0.6B, one "
        "request, an H100 under nsys, which slows the CPU.",
    )


FIGURES = {"00-one-token.svg": one_token}
