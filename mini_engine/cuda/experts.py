"""A mixture of experts with static shapes, as a graph needs them: which experts a router chooses is
known on the device alone, so neither the launches nor their sizes may depend on it. Two ways:

    grouped   the T * k pairs of a token and an expert, sorted by expert, in one product, which is
              told on the device where each expert's rows end: reads the experts that are touched
    masked    all tokens through all experts, and weights of zero where one was not chosen

PyTorch's grouped product runs in bf16 on sm_90 and newer. Elsewhere it asks the host for the ends,
which no capture allows, so there the masked way runs.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from mini_engine.model.config import Experts


def route(x: Tensor, router: Tensor, experts: Experts) -> tuple[Tensor, Tensor]:
    """The weights (T, k) of the experts that each token of x (T, H) goes to, and who they are."""
    shares = functional.linear(x, router).float().softmax(dim=-1)
    weights, ids = shares.topk(experts.active, dim=-1)
    if experts.normalized:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return weights.to(x.dtype), ids


def can_group(x: Tensor) -> bool:
    """Whether a captured grouped product runs on the device of x, in its dtype."""
    bf16 = x.dtype == torch.bfloat16 and x.device.type == "cuda"
    return bf16 and torch.cuda.get_device_capability(x.device) >= (9, 0)


def grouped(x: Tensor, gate_up: Tensor, down: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
    """x (T, H); gate_up (E, 2I, H), down (E, H, I). The sum of what its experts say, (T, H)."""
    k = ids.shape[1]
    chosen, order = ids.flatten().sort(stable=True)
    every = torch.arange(len(gate_up), device=x.device)
    ends = torch.searchsorted(chosen, every, right=True).to(torch.int32)
    both = functional.grouped_mm(x[order // k], gate_up.transpose(1, 2), offs=ends)
    gate, up = both.chunk(2, dim=-1)
    parts = functional.grouped_mm(functional.silu(gate) * up, down.transpose(1, 2), offs=ends)
    back = torch.empty_like(parts).index_copy_(0, order, parts)
    return (back.view(len(x), k, -1) * weights[..., None]).sum(dim=1)


def masked(x: Tensor, gate_up: Tensor, down: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
    """The same, by all experts."""
    every = weights.new_zeros(len(x), len(gate_up)).scatter(1, ids, weights)
    gate, up = torch.matmul(x, gate_up.transpose(1, 2)).chunk(2, dim=-1)  # (E, T, I)
    parts = torch.matmul(functional.silu(gate) * up, down.transpose(1, 2))
    return (parts * every.t()[..., None]).sum(dim=0)
