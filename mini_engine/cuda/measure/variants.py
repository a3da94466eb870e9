"""The variants of the benchmark: ways to run the same decode step, behind one small protocol.

In:  a `DecodeSetup`. Out: a `Variant` (`decode_setup.py`): prepare, place, step, release.

    variant = VARIANTS["ours-graph"].make(setup)
    variant.prepare()
    variant.place(setup.first_tokens, setup.context)
    for _ in range(32):
        variant.step()                      # the sampled token is fed back on the device

A new variant is one class and one entry in `VARIANTS`. The classes: `plain_variants.py` runs our
plain model, `fused_variants.py` the Triton kernels, `hf_variants.py` transformers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from mini_engine.cuda.graphs.backend import GraphBackend
from mini_engine.cuda.measure.decode_setup import DecodeSetup, Variant
from mini_engine.cuda.measure.fused_variants import fused, no_pdl, no_triton
from mini_engine.cuda.measure.hf_variants import (
    HuggingFaceEager,
    HuggingFaceStatic,
    no_transformers,
)
from mini_engine.cuda.measure.plain_variants import (
    Compiler,
    OursCompiled,
    OursEager,
    OursGraph,
    OursPiecewise,
)
from mini_engine.predict.step_cost import Mode

ANCHOR = "ours-graph"  # every variant is timed in turns with this one


@dataclass(frozen=True)
class VariantKind:
    """An entry of the registry."""

    about: str
    mode: Mode  # how the simulator is told that its ops are launched
    make: Callable[[DecodeSetup], Variant]
    why_not: Callable[[GraphBackend], str | None]  # one line when it cannot run here
    gated: bool  # ours: no speed without passing the gate. A baseline's verdict is only reported.


def _anywhere(backend: GraphBackend) -> str | None:  # noqa: ARG001 (a `why_not`)
    return None


def _needs_a_gpu(backend: GraphBackend) -> str | None:
    if backend.emulated:
        return "torch.compile for a CPU is another thing: this variant needs an NVIDIA GPU"
    return None


def _hugging_face_compiled(backend: GraphBackend) -> str | None:
    return no_transformers(backend) or _needs_a_gpu(backend)


def _inductor(mode: str, fullgraph: bool) -> Compiler:
    return lambda step: torch.compile(step, mode=mode, fullgraph=fullgraph, dynamic=False)


def _ours_compiled(mode: str) -> VariantKind:
    return VariantKind(
        f"our plain model under torch.compile, mode {mode}",
        "eager" if mode == "default" else "full",  # the other two put CUDA graphs around it
        lambda setup: OursCompiled(setup, _inductor(mode, fullgraph=True)),
        _needs_a_gpu,
        gated=False,
    )


VARIANTS: dict[str, VariantKind] = {
    "null": VariantKind(
        "the anchor against itself: what differs is noise", "full", OursGraph, _anywhere, True
    ),
    "hf-eager": VariantKind(
        "transformers, DynamicCache, eager", "eager", HuggingFaceEager, no_transformers, False
    ),
    "hf-compile": VariantKind(
        "transformers, StaticCache, torch.compile reduce-overhead",
        "full",
        lambda setup: HuggingFaceStatic(setup, _inductor("reduce-overhead", fullgraph=False)),
        _hugging_face_compiled,
        False,
    ),
    "ours-eager": VariantKind("our plain model, eager", "eager", OursEager, _anywhere, True),
    "ours-piecewise": VariantKind(
        "our plain model, graphs around live attention", "piecewise", OursPiecewise, _anywhere, True
    ),
    "ours-graph": VariantKind("our plain model, one graph", "full", OursGraph, _anywhere, True),
    "ours-graph-k8": VariantKind(
        "our plain model, eight steps in one graph",
        "full",
        lambda setup: OursGraph(setup, steps_a_call=8),
        _anywhere,
        True,
    ),
    "graph-9": VariantKind(
        "nine Triton kernels a layer, one graph", "full", fused(9), no_triton, True
    ),
    "graph-5": VariantKind(
        "five Triton kernels a layer, one graph", "full", fused(5), no_triton, True
    ),
    "graph-5-pdl": VariantKind(
        "five a layer, each starting while the last drains",
        "full",
        fused(5, pdl=True),
        no_pdl,
        True,
    ),
    "graph-5-pdl-k8": VariantKind(
        "the same, eight steps in one graph",
        "full",
        fused(5, pdl=True, steps_a_call=8),
        no_pdl,
        True,
    ),
    "compile-default": _ours_compiled("default"),
    "compile-reduce-overhead": _ours_compiled("reduce-overhead"),
    "compile-max-autotune": _ours_compiled("max-autotune"),
}
