"""What torch.compile makes of a function: graphs, breaks, compilations, launches. Nothing is timed.

In:  a function and the calls to make of it.
Out: how each call was served, where Python had to step in, what a call would launch.

    calls = over_calls(step, [(x,), (y,)], dynamic=False)
    [call.how for call in calls]                   # ["compiled", "reused"]
    graph_breaks(calls)                            # places where Python had to step in
    launches(calls[-1], "reduce-overhead")         # what the CPU launches for such a call

Dynamo does the tracing, as always. In the place of Inductor stands a *counting backend*, `Watch`:
it takes the graph, runs it as it is and notes what ran. So no compiler is needed, neither for C++
nor for a GPU, and what is counted is a bound: the best that fusing between products can do. What a
version of Inductor really makes, only Inductor can tell (`bench` counts kernels by the profiler).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch.fx import GraphModule

from mini_engine.bench.op_record import OpRecorder

# Products are calls into a library, into which nothing is fused by default.
PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm"})
EAGER = "eager"  # the mode of a function that is not compiled

Run = Callable[..., Any]
Ops = tuple[str, ...]  # names of what launches a kernel eagerly, in order; views launch nothing


@dataclass(frozen=True)
class Break:
    """A place where a graph had to end because Python must run."""

    place: str  # "model.py:31"
    reason: str  # Dynamo's own words, one line


@dataclass(frozen=True)
class Call:
    """One call of a compiled function."""

    graphs: tuple[GraphModule, ...]  # handed to the backend during this call, in order
    ran: tuple[Ops, ...]  # of each graph that ran during this call, what it ran

    @property
    def how(self) -> str:
        """How the call was served: "compiled" (again), "reused" or "eager".

        "compiled": at least one graph was handed over during it. "reused": none was, and a graph
        from before ran. "eager": no graph ran at all, because Dynamo has given up on the function:
        after `torch._dynamo.config.recompile_limit` compilations, or at a break inside a loop.
        """
        if self.graphs:
            return "compiled"
        return "reused" if self.ran else "eager"


class Watch:
    """A backend of torch.compile that compiles nothing: it keeps the graphs, and notes their runs.

    `graphs`: all that were handed over, in order. `ran`: one entry for each run of one of them.
    """

    def __init__(self) -> None:
        self.graphs: list[GraphModule] = []
        self.ran: list[Ops] = []

    def __call__(self, graph: GraphModule, example_inputs: Sequence[Any]) -> Run:  # noqa: ARG002
        """Dynamo calls this once for each graph that it has traced, and never to compute.

        Keeps the graph in `graphs` and returns what Dynamo is to call instead of it: a function
        that is given the inputs and returns what `graph.forward(*inputs)` returns, and that appends
        to `ran` the names of the ops that this run launched. `OpRecorder` collects them:
        `with recorder: …`, then `op.name for op in recorder.ops`.
        """
        self.graphs.append(graph)

        def run(*inputs: Any) -> Any:
            recorder = OpRecorder()
            with recorder:
                results = graph.forward(*inputs)
            self.ran.append(tuple(op.name for op in recorder.ops))
            return results

        return run


def over_calls(
    function: Callable[..., Any], calls: Sequence[Sequence[Any]], **options: Any
) -> list[Call]:
    """Compile `function` afresh and call it with each of `calls` (tuples of arguments) in turn.

    `options` are those of torch.compile: dynamic=False, fullgraph=True. What earlier functions left
    in Dynamo's caches is forgotten first (`torch.compiler.reset()`). Returns a `Call` for each: the
    graphs that were handed over during that very call, and what ran during it.
    """
    torch.compiler.reset()
    watch = Watch()
    compiled = torch.compile(function, backend=watch, **options)
    served = []
    for arguments in calls:
        graphs, ran = len(watch.graphs), len(watch.ran)
        compiled(*arguments)
        served.append(Call(tuple(watch.graphs[graphs:]), tuple(watch.ran[ran:])))
    return served


def graph_breaks(calls: Sequence[Call]) -> list[Break]:
    """The places in the code at which graphs of these calls broke off, in the order met.

    `break_of` tells of one graph whether it broke off, and where. A place counts once, however
    often it was traced: for each new shape, say. A break before the first op of a function ends no
    graph and is not seen from here.
    """
    found: dict[str, Break] = {}
    for call in calls:
        for graph in call.graphs:
            broke = break_of(graph)
            if broke is not None:
                found.setdefault(broke.place, broke)
    return list(found.values())


def launches(call: Call, mode: str) -> int:
    """What the CPU launches for a call that runs as this one did, in this mode of torch.compile.

    "eager": every op on its own. A mode whose options (`torch._inductor.list_mode_options()[mode]`)
    switch "triton.cudagraphs" on: one launch for each graph that ran (`call.ran`; not each that was
    handed over), since each becomes a CUDA graph of its own. Any other mode: the kernels of every
    graph that ran, as few as fusing can make them: a product with weights (a name in PRODUCTS) is a
    call into a library and stays alone; every stretch of other ops between two products of a graph,
    before its first or after its last is one kernel, however long. Raises ValueError for a mode
    that torch.compile does not have, and for a call in which no graph ran: of that one nothing was
    seen.
    """
    if not call.ran:
        raise ValueError("no graph ran in this call: what it launched was not seen")
    modes = torch._inductor.list_mode_options()
    if mode == EAGER:
        return sum(len(ops) for ops in call.ran)
    if mode not in modes:
        raise ValueError(f"mode {mode!r}: expected {EAGER} or one of {', '.join(modes)}")
    if modes[mode].get("triton.cudagraphs"):
        return len(call.ran)
    kernels = 0
    for ops in call.ran:
        for is_product, stretch in groupby(ops, key=PRODUCTS.__contains__):
            kernels += len(list(stretch)) if is_product else 1
    return kernels


# ---------------------------------------------------------------- parts


def ops_of(graph: GraphModule) -> list[str]:
    """What the graph computes, as Dynamo wrote it down: a name for each op, in order.

    Of the kinds of nodes (`node.op`) these compute: "call_function" (name: `node.target.__name__`),
    "call_method" and "call_module" (name: `node.target`, a string). What comes in ("placeholder"),
    what is looked up ("get_attr") and what is returned ("output") are nodes, but no ops.
    """
    names = []
    for node in graph.graph.nodes:
        if node.op == "call_function":
            names.append(node.target.__name__)
        elif node.op in ("call_method", "call_module"):
            names.append(node.target)
    return names


def break_of(graph: GraphModule) -> Break | None:
    """Why a graph broke off, or None where it goes on to the function's return.

    Dynamo notes that on every graph, `compile_subgraph_reason` (torch/_dynamo/output_graph.py);
    `torch._dynamo.explain` reads it there, too.
    """
    reason: Any = getattr(graph, "compile_subgraph_reason", None)
    if reason is None or not reason.graph_break:
        return None
    line = reason.user_stack[-1]  # the innermost
    place = f"{line.filename.replace(chr(92), '/').rpartition('/')[2]}:{line.lineno}"
    return Break(place, reason.reason.strip().splitlines()[0])
