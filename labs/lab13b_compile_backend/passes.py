"""One pass of our own: an addition and the RMSNorm after it become one op, `add_rms_norm`.

In:  the FX graph of a step, as Dynamo wrote it. Out: how many places were rewritten; two a layer,
     less the first norm of the step, which has no addition before it: 2 · layers - 1.

    nodes before    add  float  square  mean  add  rsqrt  mul  to  mul      two results: sum, norm
    nodes after     empty_like  add_rms_norm                                the same two

Of the nine nodes, all but `float` and `to` are kernels in float32, and these two as well in bf16.
The sum has to come out beside the norm: it is the residual that the next addition reads.

The op is the kernel of `kernels/norm.py`, which writes the sum over its second argument. We give it
x there, not the residual: what a product has just written, and nobody but this addition reads. That
is what `may_fuse` asks. The sum of two numbers does not depend on their order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.passes.utils.matcher_utils import InternalMatch
from torch.fx.subgraph_rewriter import replace_pattern_with_filters
from torch.nn import functional

import mini_engine.cuda.kernels.norm  # noqa: F401  (defines the op)

ADD_RMS_NORM = torch.ops.launch_bound.add_rms_norm.default
FRESH = {functional.linear}  # their result is new memory, which nothing else is a view of
Rewrite = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def add_rms_norm_pass(graph: GraphModule, eps: float, dtype: torch.dtype) -> int:
    """Rewrite `graph` in place; returns the number of places."""
    done = replace_pattern_with_filters(
        graph, written_out(eps, dtype), fused(eps), match_filters=[nothing_between, may_fuse]
    )
    graph.recompile()
    return len(done)


def written_out(eps: float, dtype: torch.dtype) -> Rewrite:
    """What to look for: the ops as `Model.body` and `rms_norm` call them, (total, normed)."""

    def pattern(residual: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        total = residual + x
        wide = total.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        return total, (wide * scale).to(dtype) * weight

    return pattern


def fused(eps: float) -> Rewrite:
    """What to put there, (total, normed): the total in x's memory, without a copy. A cache keeps
    only the functions that `written` names."""

    def replacement(residual: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        out = torch.empty_like(x)
        torch.ops.launch_bound.add_rms_norm.default(out, x, residual, weight, eps)
        return x, out

    return replacement


def nothing_between(match: InternalMatch, graph: Graph, pattern: Graph) -> bool:  # noqa: ARG001
    """Whether the nodes stand in a row. Written as one op they are moved together, and what stands
    between could write to what they read."""
    found = set(match.nodes_map.values()) - set(match.placeholder_nodes)
    inside = [node in found for node in graph.nodes]
    first = inside.index(True)
    return all(inside[first : first + sum(inside)])


def may_fuse(match: InternalMatch, graph: Graph, pattern: Graph) -> bool:  # noqa: ARG001 (a filter)
    """Whether the op computes the same here: x is fresh memory that nobody else reads, and x and
    residual are rows of one shape and dtype, so that nothing is broadcast; weight has a number of
    that dtype for each column, and to that dtype the norm is rounded. False, too, where one of the
    three is no tensor, or not known to be one."""
    given: list[Any] = match.placeholder_nodes
    residual, x, weight = given
    if not all(isinstance(node, Node) for node in given):
        return False  # `total = residual + 1`
    values = [node.meta.get("example_value") for node in (residual, x, weight)]
    if not all(isinstance(value, Tensor) for value in values):
        return False
    one, other, gain = values
    same = one.shape == other.shape and one.dtype == other.dtype == gain.dtype
    cast = next(found for wanted, found in match.nodes_map.items() if wanted.target == "to")
    same = same and cast.args[1] == other.dtype
    rows = other.dim() == 2 and gain.shape == other.shape[1:]
    return same and rows and x.target in FRESH and len(x.users) == 1
