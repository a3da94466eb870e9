"""What each kernel of a step is for, in the words of the chapters. Pure functions, no torch.

In:  the events of one step, with the names that a profiler gives: functions of Triton kernels on
     lane GPU ("linear_kernel"), ops on lane CPU ("launch_bound::linear_add"), a library's products.
Out: the same events; those of our kernels are called "O + residual (linear_kernel)".

One function serves several products of a layer, so its place tells them apart: they come in the
order QKV, O, gate/up, down.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from mini_engine.sim.trace import TraceEvent

PRODUCTS = ("QKV", "O", "gate/up", "down")
HEAD = "head"
# The beginning of a name, without "launch_bound::" -> what it is. "product": one of the four.
# The longest that fits counts.
KINDS = {
    "rms_norm": "norm",
    "add_rms_norm": "residual + norm",
    "linear": "product",
    "norm_linear": "product",
    "dot_product": "product",
    "gate_up": "gated",
    "norm_gate_up_silu_mul": "gated",
    "quantized_product": "product",
    "dequantize": "weights unpacked",
    "rope_kv_write": "RoPE + KV write",
    "rope_kv_write_attention": "RoPE + KV write + attention",
    "fused_attention": "RoPE + KV write + attention",
    "decode_split": "attention",
    "decode_attention": "attention",
    "prefill": "attention",
    "silu_mul": "SiLU·mul",
    "head": "norm + head",
    "norm_lm_head": "norm + head",
    "cutoff": "cutoffs of top-k, top-p, min-p",
    "draw": "draw",
    "pick": "pick",
}
# cuBLAS on a GPU, and the same products on a CPU
LIBRARY = re.compile(r"gemm|gemv|nvjet|cutlass|cublas|^aten::(mm|addmm|linear)$", re.IGNORECASE)


def with_purposes(events: Iterable[TraceEvent]) -> list[TraceEvent]:
    """The events of one step in order of time, each lane by itself."""
    ordered = sorted(events, key=lambda event: event.start_us)
    named: dict[int, str] = {}
    for lane in {event.lane for event in ordered}:
        at = [i for i, event in enumerate(ordered) if event.lane == lane]
        named |= dict(zip(at, purposes([ordered[i].name for i in at]), strict=True))
    return [
        replace(event, name=f"{named[i]} ({event.name})") if named[i] else event
        for i, event in enumerate(ordered)
    ]


def purposes(names: Sequence[str]) -> list[str]:
    """What each is for; "" for what is not ours, or for nothing in particular."""
    kinds = [_kind(name) for name in names]
    if not set(kinds) - {"", "library"}:
        return [""] * len(names)  # the plain model
    apart = "RoPE + KV write" in kinds  # nine kernels a layer
    found, product, norms = list[str](), 0, 0
    for kind in kinds:
        if kind == "norm":
            norms += 1
        if kind == "library" and norms == 2:  # the first norm of layer 0, and that of the head
            kind = HEAD
        elif kind == "gated":
            kind, product = "norm + gate/up + SiLU·mul", PRODUCTS.index("down")
        elif kind in ("product", "library"):
            kind = PRODUCTS[product] if apart else _fused(PRODUCTS[product])
            product = (product + 1) % len(PRODUCTS)
        found.append(kind)
    return found


def _fused(product: str) -> str:
    """A product of the layer of five, with what is fused in."""
    fused = {"QKV": "norm + QKV", "gate/up": "norm + gate/up + SiLU·mul"}
    return fused.get(product, f"{product} + residual")


def _kind(name: str) -> str:
    ours = name.removeprefix("launch_bound::")
    if fitting := [start for start in KINDS if ours.startswith(start)]:
        return KINDS[max(fitting, key=len)]
    return "library" if LIBRARY.search(name) else ""
