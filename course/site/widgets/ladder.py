"""What the ladder widget computes with: how long a batch takes at each rung, and how often it came.

In:  nothing. Out: µs of a decode step of vLLM on an H200 for each (rung, batch) up to TOP, and
without a graph; two workloads, vLLM's own rungs, and the best ladders of few rungs for each load.
"""

from __future__ import annotations

from typing import Any

from course.draw.ch08 import histogram, served
from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.dispatch.ladder import optimal_ladder
from mini_engine.model.config import named_shape
from mini_engine.step.cards import load_spec
from mini_engine.step.kernels import StepShape
from mini_engine.step.step_model import StepModel

TOP, CONTEXT = 64, 512
RUNGS = range(1, 9)  # of the best ladders


def ladder() -> dict[str, Any]:
    """The state of the widget."""
    spec = load_spec("h200")
    model, batches = StepModel(named_shape("qwen3-0.6b"), spec), range(1, TOP + 1)
    graphs = [
        (rung, batch, StepShape(rung, rung, batch * CONTEXT, batch * CONTEXT, batch))
        for rung in batches
        for batch in range(1, rung + 1)
    ]
    full = model.steps("full", [shape for *_, shape in graphs])
    eager = model.steps("eager", [StepShape.decode(batch, CONTEXT) for batch in batches])
    loads = {
        "every batch equally often": dict.fromkeys(batches, 1),
        "the shipped trace of a small server": histogram(served(), TOP),
    }
    return {
        "top": TOP,
        "graph_us": [
            [round(step.itl_us) for (at, *_), step in zip(graphs, full, strict=True) if at == rung]
            for rung in batches
        ],  # [rung - 1][batch - 1]
        "eager_us": [round(step.itl_us) for step in eager],
        "own": [s for s in default_capture_sizes(256, 8192) if s <= TOP],
        "loads": [
            {
                "name": name,
                "steps": [steps.get(batch, 0) for batch in batches],
                "best": [list(optimal_ladder(steps, n, top=TOP)) for n in RUNGS],
            }
            for name, steps in loads.items()
        ],
        "load": 0,
        "rungs": [8, 32],
        "batch": 33,
    }
