"""What the cutter shows: the kernels of a layer, where vLLM cuts, and which graph runs a batch.

In:  nothing. Out: the names of a step as chapter 9 cuts it, and for each mode and some batches what
the dispatcher finds. Cutting is done in JavaScript, as in `mini_engine.dispatch.pieces`.
"""

from __future__ import annotations

from typing import Any

from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.model.config import named_shape
from mini_engine.step.kernels import StepShape, step_parts

SHAPE, SEQS, TOKENS = "qwen3-0.6b", 256, 8192
MODES = ("NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")
BATCHES = {  # name: requests, tokens, new tokens of each where they are equal
    "one reader": (1, 1, 1),
    "33 readers": (33, 33, 1),
    "32 readers and a prompt of 100": (33, 132, None),
    "a prompt of 600": (1, 600, None),
}


def cutter() -> dict[str, Any]:
    """The state of the widget."""
    parts = step_parts(named_shape(SHAPE), StepShape.decode(1, 512), "fused9")
    return {
        "before": [op.name for op in parts.head], "layer": [op.name for op in parts.layer],
        "layers": parts.num_layers, "live": [op.name for op in parts.tail],
        "batches": list(BATCHES), "modes": list(MODES),
        "runs": {mode: runs(mode) for mode in MODES}, "cuts": ["attention"], "mode": 4, "batch": 2,
    }  # fmt: skip


def runs(mode: str) -> list[tuple[str, int]]:
    """How each batch runs in a mode, and at how many rows."""
    dispatcher = GraphDispatcher(mode, default_capture_sizes(SEQS, TOKENS), SEQS)
    found = [dispatcher.dispatch(*batch) for batch in BATCHES.values()]
    return [(ran.mode.name, ran.num_tokens) for ran in found]
