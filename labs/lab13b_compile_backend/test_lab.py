"""Lab 13b: a backend for torch.compile. Graphs are written here op by op, so it is known where
their parts begin, what they compute and what they depend on; one model is traced by Dynamo
itself."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Interpreter, Node, symbolic_trace
from torch.nn import functional

from labs.lab13b_compile_backend.backend import STEP, CompiledModel
from labs.lab13b_compile_backend.cache import Cache, piece_key
from labs.lab13b_compile_backend.guards import TOKENS, Signature, signature
from labs.lab13b_compile_backend.marker import ATTEND
from labs.lab13b_compile_backend.passes import ADD_RMS_NORM, add_rms_norm_pass
from labs.lab13b_compile_backend.pieces import Step
from labs.lab13b_compile_backend.split import parts_of, split
from labs.support.tiny import TINY
from mini_engine.cuda.attention import HostAttention
from mini_engine.cuda.inputs import StepInputs
from mini_engine.cuda.model import KVCache, Model
from mini_engine.cuda.weights import random_weights

EPS = 2e-2  # so large that a norm with another epsilon is seen to be another
CPU, ONE_LAYER, HIDDEN = torch.device("cpu"), replace(TINY, num_layers=1), TINY.hidden_size


def rows(seed: int, count: int = 3, width: int = HIDDEN) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


# ---------------------------------------------------------------- the cut


def program(kinds: str) -> GraphModule:
    """A graph on q and a cache: `.` writes q into the cache and changes q, `A` attends to it, `w`
    multiplies by a weight that the graph holds."""
    root, graph = torch.nn.Module(), Graph()
    root.weight = torch.nn.Parameter(rows(1, HIDDEN), requires_grad=False)
    q, cache = graph.placeholder("q"), graph.placeholder("cache")
    for kind in kinds:
        if kind == "A":
            q = graph.call_function(ATTEND, (q, cache, cache))
        elif kind == ".":
            graph.call_method("copy_", (cache, q))
            q = graph.call_function(torch.sin, (q,))
        else:
            q = graph.call_function(torch.matmul, (q, graph.get_attr("weight")))
    graph.output((q,))
    return GraphModule(root, graph)


def attend(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return q + 2 * keys - values.flip(0)


def run(graph: GraphModule, *inputs: Tensor) -> Any:
    """The graph as it would run live, and cut or not: the marker is replaced everywhere."""
    for module in graph.modules():
        if isinstance(module, GraphModule):
            for node in module.graph.nodes:
                if node.target is ATTEND:
                    node.target = attend
            module.recompile()
    return graph(*inputs)


def some_programs() -> list[str]:
    rng = random.Random(1)
    drawn = ["".join(rng.choices("..wA", k=rng.randint(1, 9))) for _ in range(9)]
    return ["A", "AA", ".A", "A.", ".A.", "..AA..A", "wAwwA.", *drawn]


def in_parts(kinds: str) -> list[str]:
    """The kinds of the nodes of each part of a program."""
    found: dict[int, str] = {}
    for node, part in parts_of(program(kinds)).items():
        if node.op not in ("placeholder", "output"):
            found[part] = found.get(part, "") + ("A" if node.target is ATTEND else ".")
    return list(found.values())


def test_every_node_that_computes_has_a_part_and_parts_are_numbered_from_0_without_gaps() -> None:
    for kinds in some_programs():
        graph = program(kinds)
        parts = parts_of(graph)
        ops = {node: node.op for node in graph.graph.nodes}
        computing = [node for node, op in ops.items() if op.startswith("call_")]
        numbered = [node for node in parts if ops[node] != "get_attr"]  # these may have one, too
        assert numbered == computing
        assert list(dict.fromkeys(parts.values())) == list(range(len(set(parts.values())))), kinds


@pytest.mark.catches("attention-in-a-piece")
def test_a_part_ends_before_each_attention() -> None:
    for kinds in some_programs():
        assert not any(".A" in part for part in in_parts(kinds)), kinds


@pytest.mark.catches("attention-joins-what-follows")
def test_a_part_that_begins_with_an_attention_ends_with_it() -> None:
    for kinds in some_programs():
        begun = [part for part in in_parts("." + kinds) if part.startswith("A")]
        assert set(begun) <= {"A"}, kinds


def test_what_lies_between_two_attentions_is_one_part() -> None:
    for kinds in some_programs():
        assert "".join(part[0] for part in in_parts(kinds)) == merged(kinds)


def merged(kinds: str) -> str:
    """The parts of a program as it was written: neighbours that are no attention are one."""
    plain = "".join("A" if kind == "A" else "." for kind in kinds)
    while ".." in plain:
        plain = plain.replace("..", ".")
    return plain


def test_a_graph_in_parts_computes_the_same_and_writes_the_cache_at_the_same_time() -> None:
    for kinds in some_programs():
        whole, (cut, attentions) = program(kinds), split(program(kinds))
        assert len(attentions) == kinds.count("A")
        ends = []
        for graph in (whole, cut):
            q, cache = rows(2, HIDDEN), rows(3, HIDDEN)
            ends += [(run(graph, q, cache), cache)]
        ((one, old), (other, new)) = ends
        assert torch.equal(one[0], other[0]), kinds
        assert torch.equal(old, new), kinds


# ---------------------------------------------------------------- the pass


def norm(x: Tensor, weight: Tensor, eps: float = EPS) -> Tensor:
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale).to(DTYPE[0]) * weight


DTYPE = [torch.float32]  # of the model; a graph holds it as a literal


def seen(function: Callable[..., Any], *inputs: Any) -> GraphModule:
    """The graph of a function, every node with the tensor that it gives, as Dynamo leaves it."""
    graph = symbolic_trace(function)

    class Noting(Interpreter):
        def run_node(self, n: Node) -> Any:
            n.meta["example_value"] = super().run_node(n)
            return n.meta["example_value"]

    Noting(graph).run(*[x.clone() for x in inputs])
    return graph


def fusions(graph: GraphModule) -> int:
    return sum(node.target is ADD_RMS_NORM for node in graph.graph.nodes)


def decoder(layers: int) -> Callable[..., Any]:
    def body(x: Tensor, gain: Tensor, other: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        residual = x.sin()
        for _ in range(layers):
            residual = residual + functional.linear(norm(residual, gain), weight)
            residual = residual + functional.linear(norm(residual, other).cos(), weight)
        return (residual, norm(residual, other))

    return body


def last_sum(x: Tensor, gain: Tensor, weight: Tensor) -> Tensor:
    return norm(x.sin() + functional.linear(x, weight), gain)


def sum_and_norm(x: Tensor, gain: Tensor, weight: Tensor) -> Any:
    total = x.sin() + functional.linear(x, weight)
    return norm(total, gain), total


@pytest.mark.catches("sum-is-lost")
def test_a_sum_that_is_read_comes_out_beside_the_norm() -> None:
    inputs = rows(3), rows(1, 1)[0], rows(2, HIDDEN)
    alone, both = (seen(function, *inputs) for function in (last_sum, sum_and_norm))
    found, found_both = (add_rms_norm_pass(graph, EPS, torch.float32) for graph in (alone, both))
    if not found or not torch.allclose(alone(*inputs), last_sum(*inputs), rtol=1e-5, atol=1e-5):
        return  # the norm itself is wrong: another test's business
    assert found_both == 1
    assert torch.allclose(both(*inputs)[1], sum_and_norm(*inputs)[1], rtol=1e-5, atol=1e-5)


@pytest.mark.catches("a-copy-is-safe")
def test_the_sum_stands_where_the_product_stood_and_nothing_is_copied() -> None:
    """A copy would be one more launch in each of the places where the pass saves some."""
    inputs = rows(3), rows(1, 1)[0], rows(2, HIDDEN)
    graph = seen(sum_and_norm, *inputs)
    if not add_rms_norm_pass(graph, EPS, torch.float32):
        return  # it finds nothing: another test's business
    places: dict[Any, int] = {}

    class Placing(Interpreter):
        def run_node(self, n: Node) -> Any:
            value = super().run_node(n)
            if isinstance(value, Tensor):
                places[n.target] = value.data_ptr()
            return value

    _, total = Placing(graph).run(*inputs)
    if torch.allclose(total, sum_and_norm(*inputs)[1], rtol=1e-5, atol=1e-5):
        copied = total.data_ptr() != places[functional.linear]
        assert not copied, "the sum is right, and in other memory than x"


def test_sum_and_norm_come_out_as_before_in_as_many_places_as_there_are() -> None:
    for layers in (1, 2, 4):
        inputs = [rows(layers, 5), rows(5, 1)[0], rows(6, 1)[0], rows(7, HIDDEN)]
        wanted = decoder(layers)(*inputs)
        graph = seen(decoder(layers), *inputs)
        before = [x.clone() for x in inputs]
        assert add_rms_norm_pass(graph, EPS, torch.float32) == fusions(graph) == 2 * layers
        for one, other in zip(wanted, graph(*inputs), strict=True):
            # the same sums in the same order, but a learner's op may add in another one
            assert torch.allclose(one, other, rtol=1e-5, atol=1e-5)
        assert all(map(torch.equal, before, inputs)), "an input was written over"


def test_in_bf16_the_pattern_is_found_and_rounds_no_more_than_once_more() -> None:
    DTYPE[0] = torch.bfloat16
    try:
        inputs = [t.bfloat16() for t in (rows(1), rows(2, 1)[0], rows(3, 1)[0], rows(4, HIDDEN))]
        wanted = decoder(1)(*inputs)
        graph = seen(decoder(1), *inputs)
        assert add_rms_norm_pass(graph, EPS, torch.float32) == 0
        assert add_rms_norm_pass(graph, EPS, torch.bfloat16) == 2
    finally:
        DTYPE[0] = torch.float32
    # 8 bits of mantissa, numbers up to 16, a few roundings on the way
    assert torch.allclose(wanted[0].float(), graph(*inputs)[0].float(), rtol=0.05, atol=0.2)


def test_what_only_looks_alike_is_left_alone() -> None:
    gain, weight, x = rows(1, 1)[0], rows(2, HIDDEN), rows(3)

    def other_eps(x: Tensor, gain: Tensor, weight: Tensor) -> Tensor:
        return norm(x + functional.linear(x, weight), gain, 1e-6)

    def wide_is_read(x: Tensor, gain: Tensor, weight: Tensor) -> Any:
        total = x + functional.linear(x, weight)
        wide = total.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)
        return (wide * scale).to(torch.float32) * gain, scale

    def over_columns(x: Tensor, gain: Tensor, weight: Tensor) -> Tensor:
        wide = (x + functional.linear(x, weight)).float()
        scale = torch.rsqrt(wide.square().mean(0, keepdim=True) + EPS)
        return (wide * scale).to(torch.float32) * gain

    def written_between(x: Tensor, gain: Tensor, weight: Tensor) -> Tensor:
        residual = x.sin()
        wide = (residual + functional.linear(x, weight)).float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)
        residual.mul_(2)
        return (wide * scale).to(torch.float32) * gain

    def a_literal(x: Tensor, gain: Tensor, weight: Tensor) -> Tensor:
        return norm(functional.linear(x, weight) + 1.0, gain)

    for function in (other_eps, wide_is_read, over_columns, written_between, a_literal):
        wanted, graph = function(x, gain, weight), seen(function, x, gain, weight)
        assert add_rms_norm_pass(graph, EPS, torch.float32) == fusions(graph) == 0
        for one, other in zip(wanted, graph(x, gain, weight), strict=True):
            assert torch.equal(one, other)


# The residual, the rows that are multiplied and the gains. All three are made before the addition:
# what stands between is another filter's business.
UNLIKE: dict[str, Callable[..., tuple[Any, Tensor, Any]]] = {
    "one row": lambda x, gain: (x, x[:1], gain),
    "one residual": lambda x, gain: (x[:1], x, gain),
    "three dimensions": lambda x, gain: (y := x[None], y, gain),
    "gains in three dimensions": lambda x, gain: (y := x[None], y, gain * x),
    "a gain a row": lambda x, gain: (x, x, gain * x),
    "one gain": lambda x, gain: (x, x, gain[:1]),
    "one row of one": lambda x, gain: (y := x[0], y, gain),
    "a column of gains": lambda x, gain: (x, x, (gain * x)[:, :1]),
    "a wide residual": lambda x, gain: (x.double(), x, gain),
    "a wide gain": lambda x, gain: (x, x, gain.double()),
    "a number": lambda x, gain: (x.size(1), x, gain),  # a node, but no tensor
    "a number last": lambda x, gain: (x, x, gain.size(0)),
}


@pytest.mark.parametrize("unlike", UNLIKE.values(), ids=UNLIKE)
def test_what_is_broadcast_or_of_two_dtypes_is_not_fused(unlike: Callable[..., Any]) -> None:
    def function(x: Tensor, gain: Tensor, weight: Tensor) -> Tensor:
        residual, multiplied, gains = unlike(x, gain)
        return norm(residual + functional.linear(multiplied, weight), gains)

    for count in (3, HIDDEN):  # fewer rows than columns, and as many
        inputs = rows(3, count), rows(1, 1)[0], rows(2, HIDDEN)
        wanted, graph = function(*inputs), seen(function, *inputs)
        assert add_rms_norm_pass(graph, EPS, torch.float32) == fusions(graph) == 0
        assert torch.equal(graph(*inputs), wanted)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_norm_that_is_rounded_to_another_dtype_is_not_fused(dtype: torch.dtype) -> None:
    def function(x: Tensor, gain: Tensor, weight: Tensor) -> Tensor:
        wide = (x + functional.linear(x, weight)).float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)
        return (wide * scale).to(dtype) * gain

    graph = seen(function, rows(3), rows(1, 1)[0], rows(2, HIDDEN))
    assert add_rms_norm_pass(graph, EPS, dtype) == fusions(graph) == 0


@pytest.mark.parametrize("unknown", ["sin", "linear", "gain"])
def test_what_is_not_known_to_be_a_tensor_is_not_fused(unknown: str) -> None:
    graph = seen(last_sum, rows(3), rows(1, 1)[0], rows(2, HIDDEN))
    for node in graph.graph.nodes:
        if node.name == unknown:
            del node.meta["example_value"]  # as where nobody noted a shape
    assert add_rms_norm_pass(graph, EPS, torch.float32) == fusions(graph) == 0


def read_again(x: Tensor, gain: Tensor, weight: Tensor) -> Any:
    product = functional.linear(x, weight)
    return norm(x + product, gain), product.cos()


def read_before(x: Tensor, gain: Tensor, weight: Tensor) -> Any:
    product = functional.linear(x, weight)
    view = product.view(-1)
    return norm(x + product, gain), view


def an_input(x: Tensor, gain: Tensor, weight: Tensor) -> Any:
    return norm(weight.sin() + x, gain), x


def the_residual(x: Tensor, gain: Tensor, weight: Tensor) -> Any:
    return norm(x + functional.linear(x, weight), gain), x.cos()


def added(same: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    """The product, read again, and what is added: the same memory under another name."""

    def function(x: Tensor, gain: Tensor, weight: Tensor) -> Any:
        product = functional.linear(x, weight)
        return norm(x + same(product), gain), product

    return function


READ = {
    "read again": read_again,
    "read before": read_before,
    "an input": an_input,
    "a view": added(lambda product: product.view(-1, HIDDEN)),
    "a view by a function": added(lambda product: torch.reshape(product, (-1, HIDDEN))),
    "a slice": added(lambda product: product[:]),
    "turned": added(lambda product: product.T),
    "written in place": added(lambda product: product.mul_(2.0)),
    "as it was": added(lambda product: product.contiguous()),  # no copy of what is contiguous
    "the residual": the_residual,
}


@pytest.mark.catches("nobody-else-reads-it")
@pytest.mark.parametrize("function", READ.values(), ids=READ)
def test_memory_that_somebody_else_reads_is_not_written_over(function: Callable[..., Any]) -> None:
    inputs = rows(3, HIDDEN), rows(1, 1)[0], rows(2, HIDDEN)
    wanted, kept = function(*inputs)[1].clone(), inputs[0].clone()
    graph = seen(function, *inputs)
    add_rms_norm_pass(graph, EPS, torch.float32)
    assert torch.equal(graph(*inputs)[1], wanted)
    assert torch.equal(kept, inputs[0])


# ---------------------------------------------------------------- one dynamic dimension


def alike(found: Mapping[str, object]) -> list[list[str]]:
    """The names of those that came out equal."""
    names: dict[object, list[str]] = {}
    for name, value in found.items():
        names.setdefault(value, []).append(name)
    return [several for several in names.values() if len(several) > 1]


def step(count: int, **others: Tensor) -> dict[str, Tensor]:
    return {name: torch.ones(count, dtype=torch.int32) for name in STEP} | others


@pytest.mark.catches("every-size-is-a-trace")
def test_all_sizes_from_two_up_are_one_class() -> None:
    classes = {signature(step(count)) for count in (2, 3, 8, 511)}
    assert len(classes) == 1
    assert classes.pop().tokens == TOKENS


@pytest.mark.catches("one-is-like-many")
def test_one_token_is_a_class_of_its_own() -> None:
    assert signature(step(1)) == signature(step(1)) != signature(step(2))
    assert signature(step(1)).tokens == "1"


def test_a_step_of_none_and_one_that_disagrees_with_itself_are_refused() -> None:
    short = torch.ones(2, dtype=torch.int32)
    for wrong in (step(0), step(3, positions=short), step(1, positions=short),
                  step(2, slot_mapping=short[:1]), step(2, slot_mapping=short[:0])):  # fmt: skip
        with pytest.raises(ValueError):
            signature(wrong)


def test_whatever_else_code_takes_for_granted_makes_another_class() -> None:
    wide = torch.ones(4, 2, dtype=torch.int32)
    others = {
        "as it is": step(4),
        "positions of int64": step(4, positions=torch.ones(4, dtype=torch.int64)),
        "slots of int64": step(4, slot_mapping=torch.ones(4, dtype=torch.int64)),
        "positions with a stride of 2": step(4, positions=wide[:, 0]),
        "positions in two columns": step(4, positions=wide),
        "positions in three columns": step(4, positions=torch.ones(4, 3, dtype=torch.int32)),
        "two of three columns": step(4, positions=torch.ones(4, 3, dtype=torch.int32)[:, :2]),
        "on another device": step(4, positions=torch.ones(4, dtype=torch.int32, device="meta")),
    }
    shared = alike({name: signature(one) for name, one in others.items()})
    assert shared == [], "these are one class"


def test_which_tensor_is_which_counts() -> None:
    narrow, wide = torch.ones(4, dtype=torch.int32), torch.ones(4, dtype=torch.int64)
    one = signature({"positions": narrow, "slot_mapping": wide})
    assert signature({"slot_mapping": narrow, "positions": wide}) != one


# ---------------------------------------------------------------- keys


def piece(
    shape: tuple[int, ...] = (3, 4),
    *,
    dtype: torch.dtype = torch.float32,
    names: str = "xyz",
    constant: float = 2.0,
    literal: float = 1.5,
    first: Callable[..., Any] = torch.add,
    swapped: bool = False,
    method: str = "cos",
    which: int = 0,
    dim: int = -1,
    held: torch.dtype = torch.float32,
    symbols: tuple[str, str] = ("s44", "s9"),
) -> GraphModule:
    root, graph = torch.nn.Module(), Graph()
    root.register_buffer("held" + names, torch.tensor([1.0, constant], dtype=held))
    x, y, z = (graph.create_node("placeholder", f"arg_{n}", name=f"n_{n}") for n in names)
    for node in (x, y):
        node.meta["example_value"] = torch.empty(shape, dtype=dtype)
    z.meta["example_value"] = torch.empty(4, 3).t()
    for i, symbol in enumerate(symbols):  # numbers, as Dynamo hands them in: named, without a value
        graph.placeholder(symbol + "_" * i).meta["example_value"] = symbol
    one = graph.call_function(first, (y, x) if swapped else (x, y))
    two = graph.call_function(torch.mul, (one, literal))
    three = graph.call_method(method, (two,))
    total = graph.call_function(torch.sum, (graph.get_attr("held" + names),))
    four = graph.call_function(torch.cat, ((three, z),), {"dim": dim})
    graph.output((four, (one, two, three)[which], total))
    return GraphModule(root, graph)


HERE = ("torch 1", "triton 1")


@pytest.mark.catches("every-layer-is-another")
def test_names_of_nodes_and_of_constants_do_not_count() -> None:
    assert piece_key(piece(names="xyz"), "eager", HERE) == piece_key(
        piece(names="abc"), "eager", HERE
    )


def its_own_double() -> Callable[..., Any]:
    def doubled(x: Tensor, y: Tensor) -> Tensor:
        return 2 * (x + y)

    return doubled


def test_where_a_function_lies_in_memory_does_not_count() -> None:
    every = [piece(first=its_own_double()) for _ in range(2)]  # as in two processes
    assert len({piece_key(one, "eager", HERE) for one in every}) == 1


def test_a_number_is_not_the_node_of_that_number() -> None:
    keys = set()
    for other in (True, False):
        graph = Graph()
        x = graph.placeholder("x")
        x.meta["example_value"] = torch.empty(3, 4)
        graph.output(graph.call_function(torch.add, (x, x if other else 0)))
        keys.add(piece_key(GraphModule(torch.nn.Module(), graph), "eager", HERE))
    assert len(keys) == 2, "x + x, x + 0"


@pytest.mark.catches("order-does-not-matter")
def test_the_order_of_the_nodes_counts() -> None:
    keys = set()
    for methods in (("sin", "cos"), ("cos", "sin")):
        graph = Graph()
        x = graph.placeholder("x")
        x.meta["example_value"] = torch.empty(3, 4)
        graph.output(tuple(graph.call_method(method, (x,)) for method in methods))
        keys.add(piece_key(GraphModule(torch.nn.Module(), graph), "eager", HERE))
    assert len(keys) == 2, "sine and cosine, cosine and sine"


def test_which_symbols_are_the_same_counts_and_not_what_they_are_called() -> None:
    key = piece_key(piece(), "eager", HERE)
    assert piece_key(piece(symbols=("s7", "s44")), "eager", HERE) == key
    assert piece_key(piece(symbols=("s44", "s44")), "eager", HERE) != key


@pytest.mark.catches("a-graph-is-its-text")
def test_shapes_and_dtypes_of_inputs_count() -> None:
    kinds = [piece(), piece((5, 4)), piece((3, 4, 1)), piece(dtype=torch.bfloat16)]
    assert len({piece_key(one, "eager", HERE) for one in kinds}) == len(kinds)
    turned = piece()
    next(iter(turned.graph.nodes)).meta["example_value"] = torch.empty(4, 3).t()
    assert piece_key(turned, "eager", HERE) != piece_key(piece(), "eager", HERE)


@pytest.mark.catches("versions-do-not-matter")
def test_versions_count() -> None:
    every = [HERE, ("torch 2", "triton 1"), ("torch 1", "triton 2"), ("torch 1",)]
    assert len({piece_key(piece(), "eager", one) for one in every}) == len(every)


def holding(values: list[Any]) -> GraphModule:
    """The piece with another constant; a long one is not printed in full."""
    graph = piece()
    graph.register_buffer("heldxyz", torch.tensor(values))
    return graph


@pytest.mark.catches("constants-are-weights")
def test_values_that_stand_in_the_graph_count() -> None:
    kinds = {
        "1, 2": piece(),
        "1, 3": piece(constant=3.0),
        "1, 2.0000002": piece(constant=2.0000002),
        "1, 2.0000005": piece(constant=2.0000005),
        "1, 2 in float64": piece(held=torch.float64),
        "2, 1": holding([2.0, 1.0]),
        "1, 2, 0": holding([1.0, 2.0, 0.0]),
        "1, 2 as a row": holding([[1.0, 2.0]]),
        "1, 2 as a column": holding([[1.0], [2.0]]),
        "2,000 zeros": holding([0.0] * 2000),
        "a one among 1,999 zeros": holding([0.0] * 999 + [1.0] + [0.0] * 1000),
    }
    shared = alike({name: piece_key(one, "eager", HERE) for name, one in kinds.items()})
    assert shared == [], "these have one key"


def test_everything_that_a_graph_does_counts_and_so_does_who_compiles_it() -> None:
    kinds = {
        "as it is": piece(),
        "times 1.25": piece(literal=1.25),
        "times 1.0": piece(literal=1.0),
        "times 1": piece(literal=1),  # an integer keeps an integer's dtype, and a float does not
        "times True": piece(literal=True),
        "x - y": piece(first=torch.sub),
        "y + x": piece(swapped=True),
        "the sine": piece(method="sin"),
        "the second result": piece(which=1),
        "the third result": piece(which=2),
        "another dim": piece(dim=0),
    }
    keys = {name: piece_key(one, "eager", HERE) for name, one in kinds.items()}
    shared = alike(keys | {"compiled by inductor": piece_key(piece(), "inductor", HERE)})
    assert shared == [], "these have one key"
    assert piece_key(piece(), "eager", HERE) == keys["as it is"]


# ---------------------------------------------------------------- files


def test_what_was_written_is_read_and_what_was_not_is_none_without_a_word(tmp_path: Path) -> None:
    lines = list[str]()
    cache, rng = Cache(tmp_path / "new", lines.append), random.Random(2)
    contents = [b"", b"\n", b"one\n\ntwo\n", rng.randbytes(1000)]
    assert cache.read("none") is None
    for number, content in enumerate(contents):
        cache.write(str(number), content)
    for number, content in enumerate(contents):
        assert Cache(tmp_path / "new", lines.append).read(str(number)) == content
        assert cache.read(str(number)) == content
    cache.write("0", b"anew")
    assert cache.read("0") == b"anew"
    assert lines == []
    assert all(path.suffix == ".compiled" for path in (tmp_path / "new").iterdir())


HARMS = ["cut", "flipped", "longer", "head", "foreign", "empty", "moved", "json", "older", "folder"]


def harmed(folder: Path, harm: str, tell: Callable[[str], object]) -> Cache:
    """A cache of two files, "a" and "b", the first of them harmed."""
    cache = Cache(folder, tell)
    cache.write("a", b"one\ntwo")
    cache.write("b", b"three")
    path, other = folder / "a.compiled", folder / "b.compiled"
    whole = path.read_bytes()
    head, _, content = whole.partition(b"\n")
    older = json.dumps(json.loads(head) | {"what": "launch-bound compile cache, version 0"})
    made = {
        "cut": whole[:-1],
        "flipped": whole[:-1] + bytes([whole[-1] ^ 1]),
        "longer": whole + b"x",
        "head": b"x" + whole,
        "foreign": b"print('hello')\n",
        "empty": b"",
        "moved": other.read_bytes(),
        "json": b"{}\n" + content,
        "older": older.encode() + b"\n" + content,  # whole, but of another layout
    }
    path.unlink()
    path.mkdir() if harm == "folder" else path.write_bytes(made[harm])
    return cache


def test_a_file_that_is_not_what_it_should_be_is_none_with_a_word(tmp_path: Path) -> None:
    for harm in HARMS:
        lines = list[str]()
        cache = harmed(tmp_path, harm, lines.append)
        assert cache.read("a") is None
        assert len(lines) == 1
        assert "a.compiled" in lines[0]
        assert cache.read("b") == b"three"


# ---------------------------------------------------------------- a step


class Counting(CompiledModel):
    """The model with a trace and a cache of our own making: a step that tells what it was given."""

    def __init__(self, in_cache: bool) -> None:
        weights = random_weights(ONE_LAYER, CPU, torch.float32, seed=1)
        cache = KVCache.allocate(ONE_LAYER, 4, 8, CPU, torch.float32)
        super().__init__(weights, cache, passes=False)
        self.in_cache, self.did = in_cache, list[str]()

    def made(self) -> Step:
        def graph(positions: Tensor, tokens: int, gain: Tensor, ids: Tensor) -> tuple[Tensor]:
            assert one.attend
            live = one.attend(ids[:, None] + 0.0, gain, gain)
            return (live + positions[:, None] * 10 + tokens * 100,)

        names = ("positions", TOKENS, "layers.0.post_norm", "input_ids")
        one = Step(names, graph, {}, 0)  # type: ignore[arg-type]
        return one

    def _from_cache(self, kind: Signature) -> Step | None:
        self.did.append(f"look {kind.tokens}")
        return self.made() if self.in_cache else None

    def _trace(self, kind: Signature, step: Any, inputs: Any, attend: Any) -> Tensor:
        self.did.append(f"trace {kind.tokens}")
        assert set(step) == set(STEP)
        self._steps[kind] = self.made()
        return attend(inputs.input_ids[:, None] + 0.0, None, None) - 1


class Adding:
    """An attention that adds its number; it begins once a step."""

    def __init__(self, number: float) -> None:
        self.number, self.begun = number, list[StepInputs]()

    def begin(self, inputs: StepInputs) -> Any:
        self.begun.append(inputs)
        return lambda q, _keys, _values: q + self.number


def called(model: CompiledModel, ids: list[int], positions: list[int], number: float) -> Tensor:
    def ints(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32)

    one = ints([1])
    inputs = StepInputs(ints(ids), ints(positions), ints(ids), one, one, one, one[None])
    attention = Adding(number)
    hidden = model.body(inputs, attention)
    assert len(attention.begun) == 1
    assert attention.begun[0] is inputs
    return hidden


CALLS = [([1, 2], [5, 6], 0.5), ([3, 4, 5], [7, 8, 9], 0.25), ([9, 9], [0, 0], 0.0)]


def wanted(ids: list[int], positions: list[int], number: float) -> list[float]:
    return [i + number + 10 * p + 100 * len(ids) for i, p in zip(ids, positions, strict=True)]


def test_a_step_that_is_ready_gets_the_inputs_and_the_attention_of_its_call() -> None:
    for call in CALLS:
        assert called(Counting(in_cache=True), *call)[:, 0].tolist() == wanted(*call)


@pytest.mark.catches("the-first-call-stays")
@pytest.mark.parametrize("second", CALLS[1:], ids=["longer", "as long"])
def test_a_second_call_gets_its_own_inputs_and_attention(second: Any) -> None:
    model, first = Counting(in_cache=True), None
    with contextlib.suppress(Exception):
        first = called(model, *CALLS[0])[:, 0].tolist()
    if first == wanted(*CALLS[0]):  # else it is not the first call that stays: the test before
        assert called(model, *second)[:, 0].tolist() == wanted(*second)


@pytest.mark.parametrize("in_cache", [False, True])
def test_a_kind_of_step_is_looked_up_once_and_traced_at_most_once(in_cache: bool) -> None:
    model = Counting(in_cache)
    for counts, kind in (((4, 2, 7, 4), TOKENS), ((1, 1), "1")):
        model.did.clear()
        for count in counts:
            called(model, [1] * count, [2] * count, 0.0)
        assert model.did == [f"look {kind}", f"trace {kind}"][: 2 - in_cache]


@pytest.mark.parametrize("in_cache", [False, True])
def test_a_step_of_another_kind_is_looked_up_though_it_has_as_many_tokens(in_cache: bool) -> None:
    model, one = Counting(in_cache), torch.ones(1, dtype=torch.int32)
    ids = torch.ones(4, dtype=torch.int32)
    for positions in (ids, ids.long(), ids):
        model.body(StepInputs(ids, positions, ids, one, one, one, one[None]), Adding(0.0))
    assert model.did == [f"look {TOKENS}", f"trace {TOKENS}"][: 2 - in_cache] * 2


def test_a_new_trace_has_run_the_step_and_one_from_the_cache_has_not() -> None:
    traced, found = Counting(in_cache=False), Counting(in_cache=True)
    assert called(traced, [3, 4], [0, 1], 0.5)[:, 0].tolist() == [2.5, 3.5]
    assert called(found, [3, 4], [0, 1], 0.5)[:, 0].tolist() == [203.5, 214.5]
    assert found.did == [f"look {TOKENS}"]


# ---------------------------------------------------------------- all of it


@torch.inference_mode()
def test_a_model_that_dynamo_traced_computes_what_the_plain_one_does(tmp_path: Path) -> None:
    """Two starts over one cache, each with a prompt of its own; the same ops on the same rows."""
    weights = random_weights(ONE_LAYER, CPU, torch.float32, seed=3)

    def fresh() -> KVCache:
        return KVCache.allocate(ONE_LAYER, 4, 8, CPU, torch.float32)

    def inputs(begin: int, count: int) -> StepInputs:
        at = torch.arange(begin, begin + count, dtype=torch.int32)
        one = torch.ones(1, dtype=torch.int32)
        table = torch.tensor([[1, 2, 3]], dtype=torch.int32)
        return StepInputs(at * 3 % 37, at, at + 8, one * count, one * (begin + count), one, table)

    lines = list[str]()
    for from_cache, prompt in ((False, 5), (True, 4)):
        plain = Model(weights, fresh())
        model = CompiledModel(weights, fresh(), store=Cache(tmp_path, lines.append))
        for begin, count in ((0, prompt), (prompt, 2)):
            attention = HostAttention((count,), (begin + count,), 8)
            wanted = plain.body(inputs(begin, count), attention)
            assert torch.allclose(model.body(inputs(begin, count), attention), wanted, atol=1e-5)
        (start,) = model.starts
        assert (start.tokens, start.from_cache) == (TOKENS, from_cache)
        assert (start.pieces, start.distinct, start.attentions, start.matches) == (2, 2, 1, 1)
    assert lines == []
