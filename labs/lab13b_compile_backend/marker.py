"""Attention as one node of the graph: Dynamo writes it down and does not look into it.

In:  `Marker().begin(inputs)`, an `Attention` like any other. Out: `torch.ops.launch_bound.attend`,
     which says what shape comes out and computes nothing: whoever runs the graph puts the
     attention of the step in its place (backend.py).

K and V are only read here. They were written by `index_copy_` before, in the same graph, so the
order of nodes is part of its meaning.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mini_engine.cuda.attention import Attend
from mini_engine.cuda.inputs import StepInputs


@torch.library.custom_op("launch_bound::attend", mutates_args=())
def attend(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """q (T, heads, D) → (T, heads, D); the arguments of every `Attend`."""
    del q, keys, values
    raise RuntimeError("launch_bound::attend is a place in a graph: cut the graph there (split.py)")


@attend.register_fake
def _(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:  # noqa: ARG001
    return torch.empty_like(q)


ATTEND = torch.ops.launch_bound.attend.default


@dataclass(frozen=True)
class Marker:
    """The attention that a model is traced with."""

    def begin(self, inputs: StepInputs) -> Attend:  # noqa: ARG002 (an Attention)
        return attend
