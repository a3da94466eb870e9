"""The benchmark's variants: ways to run the same decode step, behind one small protocol.

In:  a `DecodeSetup`. Out: a `Variant` (`decode_setup.py`): prepare, place, step, release.

    variant = VARIANTS["ours-graph"].make(setup)
    variant.prepare()
    variant.rewind()
    for _ in range(32):
        variant.step()                  # the sampled token is fed back on the device

A new variant is one class and one entry in `VARIANTS`. The classes are in `our_variants.py` and
`hf_variants.py`. The variants that a run was asked to time are its arms; ours-graph-cublas and
-cublaslt differ in the library that their graph was captured under (blas.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from mini_engine.bench.blas import LIBRARIES, OursGraphUnder, no_blas
from mini_engine.bench.decode_setup import DecodeSetup, Variant
from mini_engine.bench.few_bits import FEW_BITS
from mini_engine.bench.hf_variants import HuggingFaceEager, HuggingFaceStatic, no_transformers
from mini_engine.bench.our_variants import (
    Compiler,
    OursCompiled,
    OursEager,
    OursGraph,
    OursPiecewise,
    fused,
)
from mini_engine.cuda.graphs.backend import GraphBackend
from mini_engine.cuda.path import no_pdl, no_triton
from mini_engine.step.step_cost import Mode

ANCHOR = "ours-graph"  # every variant is timed in turns with this one


def _runs_anywhere(backend: GraphBackend) -> str | None:  # noqa: ARG001 (as every `why_not`)
    return None


def _needs_a_gpu(backend: GraphBackend) -> str | None:
    if backend.emulated:
        return "torch.compile for a CPU is another thing: this variant needs an NVIDIA GPU"
    return None


# What predicts a variant: our plain model's ops are PyTorch's own kernels, the fused ones are ours.
PLAIN, COMPILED, OURS = "pytorch-loop", "torch-compile", "launch-bound"


@dataclass(frozen=True)
class VariantKind:
    """An entry of the registry."""

    make: Callable[[DecodeSetup], Variant]
    mode: Mode  # how its ops are launched, for the simulator
    engine: str = (
        PLAIN  # whose CPU time and kernels predict it: a file of `mini_engine/step/engines`
    )
    why_not: Callable[[GraphBackend], str | None] = _runs_anywhere  # one line if it cannot run here
    gated: bool = True  # ours: not timed unless it passes the gate. A baseline is only marked.
    few_bits: str | None = None  # its format (few_bits.py), whose quality the gate asks for, too
    pdl: bool = False  # the nodes of its graph overlap, for the simulator


def _inductor(mode: str, fullgraph: bool) -> Compiler:
    return lambda step: torch.compile(step, mode=mode, fullgraph=fullgraph, dynamic=False)


def _ours_compiled(torch_mode: str, mode: Mode) -> VariantKind:
    compiler = _inductor(torch_mode, fullgraph=True)
    return VariantKind(
        lambda setup: OursCompiled(setup, compiler), mode, COMPILED, _needs_a_gpu,
        gated=False,
    )  # fmt: skip


def _under(library: str) -> VariantKind:
    return VariantKind(lambda setup: OursGraphUnder(setup, library), "full", why_not=no_blas)


def _with_pdl(steps_a_call: int = 1) -> VariantKind:
    make = fused(5, pdl=True, steps_a_call=steps_a_call)
    return VariantKind(make, "full", OURS, no_pdl, pdl=True)


def _in_few_bits(name: str, *, pdl: bool = False) -> VariantKind:
    make = fused(5, pdl=pdl, few_bits=name)
    return VariantKind(make, "full", OURS, no_pdl if pdl else no_triton, few_bits=name, pdl=pdl)


VARIANTS: dict[str, VariantKind] = {
    "null": VariantKind(OursGraph, "full"),  # the anchor against itself: any difference is noise
    # transformers: eager with a DynamicCache; torch.compile with a StaticCache
    "hf-eager": VariantKind(
        HuggingFaceEager, "eager", "transformers", no_transformers, gated=False
    ),
    "hf-compile": VariantKind(
        lambda setup: HuggingFaceStatic(setup, _inductor("reduce-overhead", fullgraph=False)),
        "full",
        COMPILED,
        lambda backend: no_transformers(backend) or _needs_a_gpu(backend),
        gated=False,
    ),
    # our plain model: eager, graphs around live attention, one graph, eight steps in one graph
    "ours-eager": VariantKind(OursEager, "eager"),
    "ours-piecewise": VariantKind(OursPiecewise, "piecewise"),
    "ours-graph": VariantKind(OursGraph, "full"),
    "ours-graph-k8": VariantKind(lambda setup: OursGraph(setup, steps_a_call=8), "full"),
    # one graph of Triton kernels, nine or five a layer; with PDL each starts while the last drains
    "graph-9": VariantKind(fused(9), "full", OURS, no_triton),
    "graph-5": VariantKind(fused(5), "full", OURS, no_triton),
    "graph-5-pdl": _with_pdl(),
    "graph-5-pdl-k8": _with_pdl(steps_a_call=8),
    # the five on weights or a cache in few bits, judged against these in float32 and by quality.py
    **{f"graph-5-{name}": _in_few_bits(name) for name in FEW_BITS},
    **{f"graph-5-pdl-{name}": _in_few_bits(name, pdl=True) for name in FEW_BITS},
    # one graph of PyTorch's kernels again, captured under each library of matrix products
    **{f"ours-graph-{library}": _under(library) for library in LIBRARIES},
    # torch.compile of our plain model; the last two modes put CUDA graphs around it
    "compile-default": _ours_compiled("default", "eager"),
    "compile-reduce-overhead": _ours_compiled("reduce-overhead", "full"),
    "compile-max-autotune": _ours_compiled("max-autotune", "full"),
}

# Run where they are asked for.
BLAS_ARMS = tuple(f"ours-graph-{library}" for library in LIBRARIES)
