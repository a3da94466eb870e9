"""The arms of the benchmark: ways to run the same decode step, behind one small protocol.

In:  a `Stage`. Out: an `Arm` (`stage.py`): prepare, place, step, release.

    arm = ARMS["ours-graph"].make(stage)
    arm.prepare()
    arm.place(stage.first_tokens, stage.context)
    for _ in range(32):
        arm.step()                      # the sampled token is fed back on the device

A new arm is one class and one entry in `ARMS`. The classes: `plain_arms.py` runs our plain model,
`fused_arms.py` the Triton kernels, `hf_arms.py` transformers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from mini_engine.cuda.graphs.backend import GraphBackend
from mini_engine.cuda.measure.fused_arms import fused, no_pdl, no_triton
from mini_engine.cuda.measure.hf_arms import HuggingFaceEager, HuggingFaceStatic, no_transformers
from mini_engine.cuda.measure.plain_arms import (
    Compiler,
    OursCompiled,
    OursEager,
    OursGraph,
    OursPiecewise,
)
from mini_engine.cuda.measure.stage import Arm, Stage
from mini_engine.predict.step_cost import Mode

ANCHOR = "ours-graph"  # every arm is timed in turns with this one


@dataclass(frozen=True)
class ArmKind:
    """An entry of the registry."""

    about: str
    mode: Mode  # how the simulator is told that its ops are launched
    make: Callable[[Stage], Arm]
    why_not: Callable[[GraphBackend], str | None]  # one line when it cannot run here
    gated: bool  # ours: no speed without passing the gate. A baseline's verdict is only reported.


def _anywhere(backend: GraphBackend) -> str | None:  # noqa: ARG001 (a `why_not`)
    return None


def _needs_a_gpu(backend: GraphBackend) -> str | None:
    if backend.emulated:
        return "torch.compile for a CPU is another thing: this arm needs an NVIDIA GPU"
    return None


def _hugging_face_compiled(backend: GraphBackend) -> str | None:
    return no_transformers(backend) or _needs_a_gpu(backend)


def _inductor(mode: str, fullgraph: bool) -> Compiler:
    return lambda step: torch.compile(step, mode=mode, fullgraph=fullgraph, dynamic=False)


def _ours_compiled(mode: str) -> ArmKind:
    return ArmKind(
        f"our plain model under torch.compile, mode {mode}",
        "eager" if mode == "default" else "full",  # the other two put CUDA graphs around it
        lambda stage: OursCompiled(stage, _inductor(mode, fullgraph=True)),
        _needs_a_gpu,
        gated=False,
    )


ARMS: dict[str, ArmKind] = {
    "null": ArmKind(
        "the anchor against itself: what differs is noise", "full", OursGraph, _anywhere, True
    ),
    "hf-eager": ArmKind(
        "transformers, DynamicCache, eager", "eager", HuggingFaceEager, no_transformers, False
    ),
    "hf-compile": ArmKind(
        "transformers, StaticCache, torch.compile reduce-overhead",
        "full",
        lambda stage: HuggingFaceStatic(stage, _inductor("reduce-overhead", fullgraph=False)),
        _hugging_face_compiled,
        False,
    ),
    "ours-eager": ArmKind("our plain model, eager", "eager", OursEager, _anywhere, True),
    "ours-piecewise": ArmKind(
        "our plain model, graphs around live attention", "piecewise", OursPiecewise, _anywhere, True
    ),
    "ours-graph": ArmKind("our plain model, one graph", "full", OursGraph, _anywhere, True),
    "ours-graph-k8": ArmKind(
        "our plain model, eight steps in one graph",
        "full",
        lambda stage: OursGraph(stage, steps_a_call=8),
        _anywhere,
        True,
    ),
    "graph-9": ArmKind("nine Triton kernels a layer, one graph", "full", fused(9), no_triton, True),
    "graph-5": ArmKind("five Triton kernels a layer, one graph", "full", fused(5), no_triton, True),
    "graph-5-pdl": ArmKind(
        "five a layer, each starting while the last drains",
        "full",
        fused(5, pdl=True),
        no_pdl,
        True,
    ),
    "graph-5-pdl-k8": ArmKind(
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
