"""The Triton step as a variant: one graph, nine kernels a layer or five, with and without PDL.

In: a `DecodeSetup`. Out: variants like `OursGraph`, with a `FusedModel` on its weights and cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from typing import Literal

import torch

from mini_engine.cuda.graphs.backend import GraphBackend
from mini_engine.cuda.measure.decode_setup import DecodeSetup, Variant
from mini_engine.cuda.measure.plain_variants import OursGraph
from mini_engine.predict.oplists import OpCost, StepShape, step_ops


class FusedGraph(OursGraph):
    """`OursGraph` with the layer in Triton kernels."""

    def __init__(
        self, setup: DecodeSetup, kernels_per_layer: Literal[9, 5], pdl: bool, steps_a_call: int
    ) -> None:
        from mini_engine.cuda.fused import FusedModel  # imports Triton, which not every system has

        plain = setup.model
        model = FusedModel(plain.weights, plain.cache, kernels_per_layer=kernels_per_layer, pdl=pdl)
        super().__init__(replace(setup, model=model), steps_a_call)
        self.style = f"fused{kernels_per_layer}"

    def ops(self) -> list[OpCost]:
        """The op list that the kernels were written to."""
        shape = StepShape.decode(self.setup.batch, self.setup.context)
        return step_ops(self.model.config, shape, self.style) * self.steps_a_call


def fused(
    kernels_per_layer: Literal[9, 5], *, pdl: bool = False, steps_a_call: int = 1
) -> Callable[[DecodeSetup], Variant]:
    """What `VariantKind.make` takes."""
    return lambda setup: FusedGraph(setup, kernels_per_layer, pdl, steps_a_call)


def no_triton(backend: GraphBackend) -> str | None:  # noqa: ARG001 (a `why_not`)
    """Why the kernels cannot run here, in one line; None where they can."""
    if find_spec("triton") is None:
        return "the kernels are written in Triton, which is not installed: pip install triton"
    return None


def no_pdl(backend: GraphBackend) -> str | None:
    """Why programmatic dependent launch cannot run here, in one line; None where it can."""
    if reason := no_triton(backend):
        return reason
    if backend.emulated:
        return "programmatic dependent launch is a GPU's: this variant needs sm_90 or newer"
    major, minor = torch.cuda.get_device_capability(backend.device)
    if major < 9:
        return f"sm_{major}{minor} has no programmatic dependent launch: this variant needs sm_90"
    return None
