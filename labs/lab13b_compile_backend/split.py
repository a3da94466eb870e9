"""Cut a graph at its attentions: pieces that can be captured, and one part for each attention.

In:  the FX graph of a whole step. Out: a graph that only calls parts, `submod_0`, `submod_1`, …

    embed norm qkv rope write │ attend │ o add norm gate_up … rope write │ attend │ o add … add
    submod_0                    1        2                                 3        4

What flows over a cut (q, the residual, the number of tokens) becomes the output of one part and the
input of another. Nothing is moved: a write into the cache stays before the attention that reads it.
"""

from __future__ import annotations

from collections.abc import Callable

from torch.fx import GraphModule, Node
from torch.fx.passes.split_module import split_module

from labs.lab13b_compile_backend.marker import ATTEND


def is_attention(node: Node) -> bool:
    return node.op == "call_function" and node.target is ATTEND


def parts_of(graph: GraphModule) -> dict[Node, int]:
    """The part of every node that computes, in the order in which parts run, from 0 without gaps.

    An attention is alone in its part; all nodes between two attentions are one part. What
    only looks a tensor up (`get_attr`) may have a number or none: it goes to where it is read.
    """
    parts: dict[Node, int] = {}
    part, before = -1, None
    for node in graph.graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        here = is_attention(node)
        if here or before in (None, True):
            part += 1
        parts[node] = part
        before = here
    return parts


def split(graph: GraphModule) -> tuple[GraphModule, set[str]]:
    """The graph of parts, and the names of those that are attentions."""
    parts = parts_of(graph)
    number: Callable[[Node], int] = parts.__getitem__
    cut = split_module(graph, None, number, keep_original_order=True)  # type: ignore[arg-type]
    return cut, {f"submod_{part}" for node, part in parts.items() if is_attention(node)}
