"""Lab 15: torch.compile, with a counting backend. What it reports is held against random programs
whose ops, products and breaks are known because the test wrote them."""

from __future__ import annotations

import linecache
import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from labs.lab15_torch_compile.compile_report import (
    PRODUCTS,
    Call,
    Watch,
    graph_breaks,
    kernels,
    launches,
    ops_of,
    over_calls,
)

# A line of a program on x and w, (8, 8) each, and the ops that it launches eagerly. Views: none.
LINES = [
    ("x = x + 1.0", ["add"]),
    ("x = x * 0.5", ["mul"]),
    ("x = torch.sin(x)", ["sin"]),
    ("x = x - x.mean()", ["mean", "sub"]),
    ("x = x.t()", []),
    ("x = x @ w", ["mm"]),
    ("x = w @ x", ["mm"]),
]
BREAKS = [
    ("print(end='')", []),
    ("torch._dynamo.graph_break()", []),
    ("n = x.sum().item()", ["sum"]),
]
Segments = list[list[str]]  # ops between breaks
Function = Callable[[Tensor, Tensor], Tensor]


def program(seed: int, breaks: int) -> tuple[Function, Segments]:
    """A function of straight lines, and what each of its graphs must run."""
    rng = random.Random(seed)
    lines, segments = [], []
    for segment in range(breaks + 1):
        picked = [LINES[rng.randrange(4)], *rng.choices(LINES, k=rng.randint(1, 5))]
        picked += [BREAKS[segment % len(BREAKS)]] if segment < breaks else []
        lines += [line for line, _ in picked]
        segments.append([op for _, ops in picked for op in ops])
    source = "\n    ".join(["def function(x, w):", *lines, "return x"]) + "\n"
    file = f"program_{seed}_{breaks}.py"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    names: dict[str, Function] = {"torch": torch}  # type: ignore[dict-item]
    exec(compile(source, file, "exec"), names)
    return names["function"], segments


def inputs(seed: int, rows: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(rows, 8, generator=generator), torch.rand(8, 8, generator=generator))


def tiny(x: Tensor) -> Tensor:
    return torch.sin(x * 2) + 1


def hows(calls: list[Call]) -> list[str]:
    return [call.how for call in calls]


# ---------------------------------------------------------------- the backend


@pytest.mark.catches("backend-is-called-to-compute")
def test_a_compiled_function_still_computes_what_it_did_for_every_new_value() -> None:
    function, segments = program(1, breaks=1)
    torch.compiler.reset()
    watch = Watch()
    compiled = torch.compile(function, backend=watch)
    for seed in range(4):
        x, w = inputs(seed)
        assert torch.equal(compiled(x, w), function(x, w))
    assert len(watch.graphs) == len(segments)
    assert len(watch.ran) == 4 * len(segments)


@pytest.mark.catches("backend-is-called-to-compute")
def test_each_run_of_a_graph_is_noted_with_the_ops_that_it_launched() -> None:
    for seed in range(3):
        function, segments = program(seed, breaks=seed)
        (first, again) = over_calls(function, [inputs(1), inputs(2)])
        assert first.ran == again.ran == tuple(map(tuple, segments))


# ---------------------------------------------------------------- how calls are served


def test_graphs_are_of_the_call_that_made_them_and_earlier_functions_are_forgotten() -> None:
    for _ in range(2):  # the second time nothing may be left of the first
        first, second = over_calls(tiny, [(torch.ones(4),), (torch.zeros(4),)])
        assert (len(first.graphs), len(first.ran)) == (1, 1)
        assert (len(second.graphs), len(second.ran)) == (0, 1)
        assert hows([first, second]) == ["compiled", "reused"]


def test_options_reach_torch_compile() -> None:
    sizes = [(torch.ones(n),) for n in (2, 3, 4, 5, 3)]
    often = ["compiled", "compiled", "compiled", "compiled", "reused"]
    twice = ["compiled", "compiled", "reused", "reused", "reused"]
    assert hows(over_calls(tiny, sizes, dynamic=False)) == often
    assert hows(over_calls(tiny, sizes)) == twice  # the second size makes the size a symbol
    with pytest.raises(torch._dynamo.exc.Unsupported):
        over_calls(asks_the_data, [(torch.ones(4),)], fullgraph=True)


@pytest.mark.catches("no-error-means-compiled")
def test_above_the_limit_of_recompilations_a_call_is_eager_and_not_reused() -> None:
    sizes = [(torch.ones(n),) for n in (2, 3, 4, 5, 6, 2)]
    with torch._dynamo.config.patch(recompile_limit=3):
        served = hows(over_calls(tiny, sizes, dynamic=False))
    # the last size has been compiled before the limit was reached: its code is still there
    assert served == ["compiled", "compiled", "compiled", "eager", "eager", "reused"]


@pytest.mark.catches("no-error-means-compiled")
def test_a_call_in_which_no_graph_ran_was_eager() -> None:
    graph = torch.fx.symbolic_trace(tiny)
    assert Call((), ()).how == "eager"
    assert Call((), (("mul",),)).how == "reused"
    assert Call((graph,), (("mul",),)).how == "compiled"
    assert Call((graph,), (("mul",), ("sin",))).how == "compiled"


# ---------------------------------------------------------------- breaks


def reads_a_number_back(x: Tensor) -> Tensor:
    x = x * 2
    largest = x.max().item()
    return x / largest


def asks_the_data(x: Tensor) -> Tensor:
    x = x * 2
    if x.sum() > 0:
        x = x + 1
    return x * 3


def selects(x: Tensor) -> Tensor:
    x = x * 2
    return torch.where(x.sum() > 0, x + 1, x) * 3


def talks_at_the_end(x: Tensor) -> Tensor:
    x = x * 2
    print(end="")
    return x


def talks_in_a_helper(x: Tensor) -> Tensor:
    return talks_at_the_end(x + 1) + 1


@pytest.mark.catches("item-is-traced")
def test_reading_a_number_back_breaks_the_graph() -> None:
    calls = over_calls(reads_a_number_back, [(torch.ones(4),)])
    assert len(calls[0].graphs) == 2
    (found,) = graph_breaks(calls)
    assert "item" in found.reason
    assert found.place == f"test_lab.py:{reads_a_number_back.__code__.co_firstlineno + 2}"


def test_a_branch_on_data_breaks_and_a_selection_does_not() -> None:
    assert len(graph_breaks(over_calls(asks_the_data, [(torch.ones(4),)]))) == 1
    assert graph_breaks(over_calls(selects, [(torch.ones(4),)])) == []


@pytest.mark.catches("a-recompile-is-a-break")
def test_a_new_shape_is_no_break_and_a_break_traced_again_is_the_same_break() -> None:
    shapes = [(torch.ones(n),) for n in (2, 3, 4)]
    clean = over_calls(selects, shapes, dynamic=False)
    assert sum(len(call.graphs) for call in clean) == 3
    assert graph_breaks(clean) == []
    broken = over_calls(asks_the_data, shapes, dynamic=False)
    assert sum(len(call.graphs) for call in broken) == 6
    assert len(graph_breaks(broken)) == 1


@pytest.mark.catches("a-recompile-is-a-break")
def test_breaks_are_places_in_the_code_and_not_graphs_less_one() -> None:
    at_the_end = over_calls(talks_at_the_end, [(torch.ones(4),)])
    assert len(at_the_end[0].graphs) == 1
    assert len(graph_breaks(at_the_end)) == 1
    in_a_helper = over_calls(talks_in_a_helper, [(torch.ones(4),)])
    assert len(in_a_helper[0].graphs) == 3
    assert [found.place for found in graph_breaks(in_a_helper)] == [
        found.place for found in graph_breaks(at_the_end)
    ]


def test_every_break_of_a_random_program_is_found_in_its_order() -> None:
    for breaks in (0, 1, 3):
        function, _ = program(10 + breaks, breaks)
        calls = over_calls(function, [inputs(1), inputs(2)])
        file = f"program_{10 + breaks}_{breaks}.py"
        lines = [(i, text.strip()) for i, text in enumerate(linecache.getlines(file), 1)]
        wanted = [f"{file}:{i}" for i, text in lines if text in dict(BREAKS)]
        assert [found.place for found in graph_breaks(calls)] == wanted


# ---------------------------------------------------------------- what is counted


@pytest.mark.catches("nodes-are-ops")
def test_ops_are_the_nodes_that_compute_and_not_what_comes_in_or_goes_out() -> None:
    rng = random.Random(3)
    for _ in range(20):
        root = torch.nn.Module()
        root.linear, root.gain = torch.nn.Linear(4, 4), torch.nn.Parameter(torch.ones(4))
        graph = torch.fx.Graph()
        values = [graph.placeholder(f"x{i}") for i in range(rng.randint(1, 4))]
        wanted = []
        for _ in range(rng.randint(0, 12)):
            x, kind = rng.choice(values), rng.randrange(4)
            if kind == 0:
                values.append(graph.get_attr("gain"))
                continue
            if kind == 1:
                function = rng.choice([torch.add, torch.mul])
                values.append(graph.call_function(function, (x, x)))
                wanted.append(function.__name__)
            elif kind == 2:
                values.append(graph.call_method("relu", (x,)))
                wanted.append("relu")
            else:
                values.append(graph.call_module("linear", (x,)))
                wanted.append("linear")
        graph.output(values[-1])
        assert ops_of(torch.fx.GraphModule(root, graph)) == wanted


def played(ops: list[str]) -> int:
    """Kernels, op by op: one is open until a product comes."""
    count, is_open = 0, False
    for name in ops:
        if name in PRODUCTS:
            count, is_open = count + 1, False
        elif not is_open:
            count, is_open = count + 1, True
    return count


def some_ops(rng: random.Random, least: int = 1) -> tuple[str, ...]:
    return tuple(rng.choices([*PRODUCTS, "add", "mul", "mean", "silu"], k=rng.randint(least, 12)))


@pytest.mark.catches("fusion-crosses-products")
def test_between_two_products_one_kernel_is_left_and_a_product_stays_alone() -> None:
    assert kernels(["mul", "mean", "mul", "mm", "silu", "mul", "mm", "add"], fused=True) == 5
    assert kernels(["mm", "mm"], fused=True) == 2
    assert kernels([], fused=True) == kernels([], fused=False) == 0
    rng = random.Random(4)
    for _ in range(200):
        ops = list(some_ops(rng, least=0))
        assert kernels(ops, fused=True) == played(ops), ops
        assert kernels(ops, fused=False) == len(ops)


def some_calls() -> list[Call]:
    rng = random.Random(5)
    return [Call((), tuple(some_ops(rng) for _ in range(rng.randint(1, 5)))) for _ in range(60)]


def test_eagerly_every_op_of_every_graph_is_launched() -> None:
    for call in some_calls():
        assert launches(call, "eager") == sum(len(ops) for ops in call.ran)


@pytest.mark.catches("default-has-cuda-graphs", "fusion-crosses-breaks")
def test_the_default_mode_launches_every_kernel_and_fuses_within_a_graph_only() -> None:
    for call in some_calls():
        wanted = sum(played(list(ops)) for ops in call.ran)
        assert launches(call, "default") == wanted
        assert launches(call, "max-autotune-no-cudagraphs") == wanted


@pytest.mark.catches("fusion-crosses-breaks")
def test_with_cuda_graphs_each_graph_between_breaks_is_a_launch_of_its_own() -> None:
    for call in some_calls():
        for mode in ("reduce-overhead", "max-autotune"):
            assert launches(call, mode) == len(call.ran)


def test_an_unknown_mode_and_a_call_that_was_not_seen_are_refused() -> None:
    with pytest.raises(ValueError, match="fastest"):
        launches(Call((), (("add",),)), "fastest")
    with pytest.raises(ValueError, match="no graph ran"):
        launches(Call((), ()), "default")


def test_a_break_costs_launches_in_a_real_function_too() -> None:
    function, segments = program(20, breaks=2)
    whole, _ = program(20, breaks=0)
    (broken,), (one,) = over_calls(function, [inputs(1)]), over_calls(whole, [inputs(1)])
    assert launches(broken, "eager") == sum(map(len, segments))
    assert launches(broken, "default") == sum(map(played, segments))
    assert launches(broken, "reduce-overhead") == 3
    assert launches(one, "reduce-overhead") == 1
