"""A graph as JSON, and back: what a piece is, for a file that can be read and cannot run anything.

In:  a `GraphModule` of placeholders, calls and an output. Out: a list of nodes, each an op, a
     target, and arguments in which nodes are numbers. Names of nodes are not kept: two layers that
     do the same to other weights read the same.

A pickle, or the Python that FX prints, would run whatever stands in the file. Here a file can name
the functions of `FUNCTIONS` and tensors' methods, and nothing else. Raises ValueError for what it
cannot write or will not read.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.nn import functional

FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{f.__name__: f for f in (operator.add, operator.sub, operator.mul, operator.truediv)},
    **{f.__name__: f for f in (operator.getitem, torch.rsqrt, torch.cat, torch.empty_like)},
    **{f.__name__: f for f in (functional.embedding, functional.linear, functional.silu)},
    "split": torch.functional.split,
}
NAMES: dict[Any, str] = {function: name for name, function in FUNCTIONS.items()}
OURS = "launch_bound::"
WITHOUT = "compile it without a cache"
MADE: dict[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "slice": lambda ends: slice(*ends),
}


def written(graph: GraphModule) -> list[list[Any]]:
    """The nodes in order: [op, target, arguments, named arguments]."""
    numbers = {node: i for i, node in enumerate(graph.graph.nodes)}

    def plain(value: Any) -> Any:
        if isinstance(value, Node):
            return {"node": numbers[value]}
        if isinstance(value, list | tuple):
            kind = "list" if isinstance(value, list) else "tuple"
            return {kind: [plain(one) for one in value]}
        if isinstance(value, slice):
            return {"slice": [plain(one) for one in (value.start, value.stop, value.step)]}
        if isinstance(value, torch.dtype):
            return {"dtype": str(value).removeprefix("torch.")}
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise ValueError(f"a graph with {value!r} in it cannot be written: {WITHOUT}")

    return [
        [
            node.op,
            _name(node, numbers),
            [plain(one) for one in node.args],
            {name: plain(one) for name, one in node.kwargs.items()},
        ]
        for node in graph.graph.nodes
    ]


def read(nodes: list[list[Any]], root: torch.nn.Module | None = None) -> GraphModule:
    """The graph again. `root` has the parts that `call_module` names."""
    graph, made = Graph(), list[Node]()

    def value(plain: Any) -> Any:
        if not isinstance(plain, dict):
            return plain
        ((kind, content),) = plain.items()
        if kind == "node":
            return made[content]
        if kind == "dtype":
            return getattr(torch, content)
        items = [value(one) for one in content]
        return MADE[kind](items)

    for op, name, arguments, named in nodes:
        args = tuple(value(one) for one in arguments)
        kwargs = {key: value(one) for key, one in named.items()}
        made.append(graph.create_node(op, _target(op, name), args, kwargs))
    return GraphModule(root or torch.nn.Module(), graph)


def _name(node: Node, numbers: dict[Node, int]) -> str:
    """What a file calls the target of a node."""
    target = str(node.target)
    if node.op == "call_function" and target.startswith("launch_bound."):
        return OURS + target.split(".")[1]  # "launch_bound.add_rms_norm.default"
    if node.op == "call_function" and node.target in NAMES:
        return NAMES[node.target]
    if node.op in ("call_function", "get_attr"):
        raise ValueError(
            f"a graph with {node.op} {target} in it cannot be written: a file holds methods, ops "
            f"of {OURS} and calls of {', '.join(FUNCTIONS)}; {WITHOUT}"
        )
    return f"x{numbers[node]}" if node.op == "placeholder" else target


def _target(op: str, name: str) -> Any:
    if op == "call_function" and name.startswith(OURS):
        return getattr(torch.ops.launch_bound, name.removeprefix(OURS)).default
    if op == "call_function":
        if name not in FUNCTIONS:
            raise ValueError(f"a file that calls {name!r}: expected one of {', '.join(FUNCTIONS)}")
        return FUNCTIONS[name]
    if op not in ("placeholder", "call_method", "call_module", "output") or name.startswith("_"):
        raise ValueError(f"a file with {op} {name!r} in it is not of ours")
    return name
