"""Which model decodes here: the Triton kernels, or plain PyTorch; and the line that says why.

In:  weights, a cache and a backend. Out: a `FusedModel` or a `Model`.

The kernels are the usual way: five a layer, with programmatic dependent launch where the card has
it. On a CPU they are their PyTorch references, or with TRITON_INTERPRET=1 themselves, in Triton's
interpreter. Where they cannot run, the plain model does the same, more slowly.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal

import torch

from mini_engine.cuda.graphs.backend import GraphBackend
from mini_engine.cuda.model import KVCache, Model
from mini_engine.cuda.weights import Weights
from mini_engine.dispatch.modes import CUDAGraphMode, parse
from mini_engine.engine.generation import Tell
from mini_engine.model.config import ModelConfig

Kernels = Literal[0, 5, 9]  # a layer; 0: the plain model
OLDEST = (8, 0)  # Triton's oldest GPU that is not a matter of luck; we compile for it, too


def decoding_model(
    weights: Weights, cache: KVCache, backend: GraphBackend, kernels: Kernels, tell: Tell
) -> Model:
    """The model with so many kernels a layer, or the plain one and a line why."""
    if kernels == 0:
        return Model(weights, cache)
    if reason := why_plain(weights.config, backend, kernels):
        tell(f"{reason}: the plain model runs")
        return Model(weights, cache)
    from mini_engine.cuda.fused import FusedModel

    return FusedModel(weights, cache, kernels_per_layer=kernels, pdl=no_pdl(backend) is None)


def why_plain(config: ModelConfig, backend: GraphBackend, kernels: Literal[5, 9]) -> str | None:
    """Why the kernels cannot run this model here, in one line; None where they can."""
    if reason := no_triton():
        return reason
    if not backend.emulated and (have := torch.cuda.get_device_capability()) < OLDEST:
        return f"{torch.cuda.get_device_name()} is sm_{have[0]}{have[1]}, and Triton needs sm_80"
    # `Heads.of` in kernels/paged.py, and half a head in kernels/fused_attention.py
    least, head_dim = 32 if kernels == 5 else 16, config.head_dim
    if head_dim < least or head_dim & (head_dim - 1):
        return f"head_dim {head_dim} is no power of two of {least} or more, which kernels need"
    return None


def kernels_of(model: Model, mode: str) -> Kernels:
    """Kernels a layer in a decode step of one request; 0 where plain PyTorch runs it.

    Pieces are cut at attention, in the middle of a fused kernel: there the kernels are nine.
    """
    count: Kernels = getattr(model, "kernels_per_layer", 0)
    pieces = parse(CUDAGraphMode, mode).decode_mode() is CUDAGraphMode.PIECEWISE
    return 9 if count and pieces else count


def no_triton() -> str | None:
    """Why the kernels cannot run here, in one line; None where they can."""
    if find_spec("triton") is None:
        return "the kernels are written in Triton, which is not installed: pip install triton"
    return None


def no_pdl(backend: GraphBackend) -> str | None:
    """Why programmatic dependent launch cannot run here, in one line; None where it can."""
    if reason := no_triton():
        return reason
    if backend.emulated:
        return "programmatic dependent launch is a GPU's: this variant needs sm_90 or newer"
    major, minor = torch.cuda.get_device_capability(backend.device)
    if major < 9:
        return f"sm_{major}{minor} has no programmatic dependent launch: this variant needs sm_90"
    return None


def interpreted() -> bool:
    """Whether Triton's interpreter is on in this process: the kernels then run on a CPU."""
    if find_spec("triton") is None:
        return False
    from mini_engine.cuda.interpreter import INTERPRETED

    return INTERPRETED
