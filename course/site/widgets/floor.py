"""What the widget of the floor shows: a token's time in four parts, for every set of levers.

In:  nothing. Out: µs of each part of the ledger (course/draw/ledger.py) for the kernels of three
engines, launched or in a graph, with early starts, one token a replay or eight, 16 or 4 bits.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from course.draw.ledger import CONFIG, DECODE, PARTS, TOLD, floor_us, parts_us
from mini_engine.step.cards import load_spec
from mini_engine.step.kernels import step_ops
from mini_engine.step.run import with_pdl
from mini_engine.step.storage import stored_as

ENGINES = {"transformers": "56 a layer", "vllm": "13 a layer", "launch-bound": "five a layer"}
TOKENS, QUANTS = (1, 8), {16: "bf16", 4: "int4"}


def floor() -> dict[str, Any]:
    """The state of the widget. A key of `us` says engine, graph, early, tokens and bits."""
    us = {}
    for (number, engine), (bits, quant) in product(enumerate(ENGINES), QUANTS.items()):
        spec = load_spec("h200", engine=engine)
        us[f"{number} 0 0 1 {bits}"] = told(parts_us(spec, "eager", quant=quant))
        for early, tokens in product((0, 1), TOKENS):
            on = with_pdl(spec) if early else spec
            parts = parts_us(on, "full", tokens, quant=quant)
            us[f"{number} 1 {early} {tokens} {bits}"] = told(parts)
    return {
        "us": us, "engines": list(ENGINES.values()), "tokens": list(TOKENS),
        "parts": [TOLD[part] for part in PARTS],
        "floor_us": {bits: round(floor_of(quant), 1) for bits, quant in QUANTS.items()},
        "engine": 0, "graph": 0, "early": 0, "many": 1, "bits": 16,
    }  # fmt: skip


def told(parts: dict[str, float]) -> list[float]:
    return [round(parts[part], 1) for part in PARTS]


def floor_of(quant: str) -> float:
    """The bytes of a step at the speed of a copy, in µs."""
    if quant == "bf16":
        return floor_us()
    spec = load_spec("h200", engine="launch-bound")
    moved = sum(op.bytes for op in step_ops(CONFIG, DECODE, spec.ops, stored_as(CONFIG, quant)))
    return moved / spec.copy_bandwidth_gb_s / 1e3
