"""Lab 13: torch.compile, with a counting backend. What it reports is held against random programs
whose ops, products and breaks are known because the test wrote them. The repaired step is held
against the careless one, token by token, and a backend of the tests counts its graphs."""

from __future__ import annotations

import contextlib
import inspect
import io
import linecache
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from labs.lab13_torch_compile.compile_report import (
    PRODUCTS,
    Call,
    Watch,
    break_of,
    graph_breaks,
    launches,
    over_calls,
)
from labs.lab13_torch_compile.decode_step import (
    PAD,
    Batch,
    careless_step,
    compiled_step,
    draw,
    repaired_step,
    started,
)
from mini_engine.cuda.inputs import StepInputs
from mini_engine.cuda.model import KVCache, Model
from mini_engine.cuda.weights import load_weights, random_weights
from mini_engine.engine.generation import SHIPPED
from mini_engine.model.config import ModelConfig, named_shape
from mini_engine.model.tokenizer import Tokenizer

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
    function, segments = program(2, breaks=2)
    (first, again) = over_calls(function, [inputs(1), inputs(2)])
    assert first.ran == again.ran == tuple(map(tuple, segments))


def test_a_graph_runs_when_it_is_called_and_not_when_it_is_handed_over() -> None:
    written, watch = torch.zeros(4), Watch()
    torch.compiler.reset()
    run = torch.compile(lambda x: x.add_(1), backend=watch)
    for calls in (1, 2):
        run(written)
        assert written.tolist() == [calls] * 4, f"{calls} calls, each adds 1"
        assert len(watch.ran) == calls


def test_what_ran_in_the_place_of_a_function_can_be_differentiated_as_the_function_can() -> None:
    function, _ = program(1, breaks=1)
    torch.compiler.reset()
    compiled = torch.compile(function, backend=Watch())
    gradients = []
    for run in (function, compiled):
        x, w = (tensor.requires_grad_() for tensor in inputs(1))
        result = run(x, w).sum()
        assert result.requires_grad, "a result without a gradient, of inputs that have one"
        result.backward()
        gradients.append(x.grad)
    plain, watched = gradients
    assert torch.equal(watched, plain)


# ---------------------------------------------------------------- how calls are served


def test_graphs_are_of_the_call_that_made_them_and_earlier_functions_are_forgotten() -> None:
    for _ in range(2):  # the second time nothing may be left of the first
        first, second = over_calls(tiny, [(torch.ones(4),), (torch.zeros(4),)])
        assert (len(first.graphs), len(first.ran)) == (1, 1)
        assert (len(second.graphs), len(second.ran)) == (0, 1)
        assert hows([first, second]) == ["compiled", "reused"]


def test_options_reach_torch_compile() -> None:
    sizes = [(torch.ones(n),) for n in (2, 3, 4, 3)]
    often = ["compiled", "compiled", "compiled", "reused"]
    twice = ["compiled", "compiled", "reused", "reused"]
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
    assert Call((), ((),)).how == "reused", "a graph that launches nothing, such as a view, has run"
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


@pytest.mark.catches("a-recompile-is-a-break")
def test_a_new_shape_is_no_break_and_a_break_traced_again_is_the_same_break() -> None:
    shapes = [(torch.ones(n),) for n in (2, 3)]
    clean = over_calls(selects, shapes, dynamic=False)
    assert sum(len(call.graphs) for call in clean) == 2
    assert graph_breaks(clean) == []
    broken = over_calls(asks_the_data, shapes, dynamic=False)
    assert sum(len(call.graphs) for call in broken) == 4
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


def talks_twice(x: Tensor) -> Tensor:
    x = x + 1
    print(end="")
    x = x * 2
    print(end="")
    return x - 1


def test_a_place_counts_once_with_others_between_and_two_places_of_one_reason_are_two() -> None:
    calls = over_calls(talks_twice, [(torch.ones(n),) for n in (2, 3)], dynamic=False)
    first = talks_twice.__code__.co_firstlineno
    print_lines = [f"test_lab.py:{first + 2}", f"test_lab.py:{first + 4}"]
    assert [found.place for found in graph_breaks(calls)] == print_lines


def test_one_place_that_breaks_for_two_reasons_is_one_place() -> None:
    def broken(reason: str, line: int) -> Any:
        where = [SimpleNamespace(filename="model.py", lineno=line)]
        told = SimpleNamespace(graph_break=True, user_stack=where, reason=reason)
        return SimpleNamespace(compile_subgraph_reason=told)

    first, again = broken("Tensor.item()", 7), broken("Data-dependent branching", 7)
    calls = [Call((first, broken("print", 3)), ()), Call((again,), ())]
    assert [found.place for found in graph_breaks(calls)] == ["model.py:7", "model.py:3"]


def goes_two_ways(x: Tensor, doubled: bool) -> Tensor:
    x = x + 1
    if doubled:
        print(end="")
        x = x * 2
    return x - 1


@pytest.mark.catches("only-the-first-call-breaks")
def test_a_break_that_only_a_later_call_meets_is_found() -> None:
    x = torch.ones(4)
    calls = over_calls(goes_two_ways, [(x, False), (x, True)])
    print_line = goes_two_ways.__code__.co_firstlineno + 3
    places = [found.place for found in graph_breaks(calls)]
    assert places == [f"test_lab.py:{print_line}"]


def test_every_break_of_a_random_program_is_found_in_its_order() -> None:
    function, _ = program(13, breaks=3)
    calls = over_calls(function, [inputs(1), inputs(2)])
    file = function.__code__.co_filename
    lines = [(i, text.strip()) for i, text in enumerate(linecache.getlines(file), 1)]
    wanted = [f"{file}:{i}" for i, text in lines if text in dict(BREAKS)]
    assert [found.place for found in graph_breaks(calls)] == wanted


# ---------------------------------------------------------------- what is launched


def played(ops: Sequence[str]) -> int:
    """Kernels, op by op: one is open until a product comes."""
    count, is_open = 0, False
    for name in ops:
        if name in PRODUCTS:
            count, is_open = count + 1, False
        elif not is_open:
            count, is_open = count + 1, True
    return count


def some_ops(rng: random.Random) -> tuple[str, ...]:
    return tuple(rng.choices([*PRODUCTS, "add", "mul", "mean", "silu"], k=rng.randint(0, 12)))


def some_calls() -> list[Call]:
    """Calls that ran up to five graphs, of which none, some or more were handed over anew."""
    rng = random.Random(5)
    graph = torch.fx.symbolic_trace(tiny)
    return [
        Call((graph,) * rng.randint(0, 3), tuple(some_ops(rng) for _ in range(rng.randint(1, 5))))
        for _ in range(60)
    ]


def test_eagerly_every_op_of_every_graph_is_launched() -> None:
    for call in some_calls():
        wanted = sum(len(ops) for ops in call.ran)
        assert launches(call, "eager") == wanted


@pytest.mark.catches("fusion-crosses-products")
def test_between_two_products_one_kernel_is_left_and_a_product_stays_alone() -> None:
    rms_norm_between_products = Call(
        (), (("mul", "mean", "mul", "mm", "silu", "mul", "mm", "add"),)
    )
    assert launches(rms_norm_between_products, "default") == 5
    two_products = Call((), (("mm", "mm"),))
    assert launches(two_products, "default") == 2
    three_ops = Call((), (("add", "mul", "sin"),))
    assert launches(three_ops, "default") == 1
    only_views = Call((), ((),))
    assert launches(only_views, "default") == 0


@pytest.mark.catches("default-has-cuda-graphs", "fusion-crosses-breaks")
def test_the_default_mode_launches_every_kernel_and_fuses_within_a_graph_only() -> None:
    for call in some_calls():
        wanted = sum(played(ops) for ops in call.ran)
        assert launches(call, "default") == wanted
        assert launches(call, "max-autotune-no-cudagraphs") == wanted


@pytest.mark.catches("fusion-crosses-breaks", "a-graph-is-launched-when-it-is-made")
def test_with_cuda_graphs_each_graph_that_ran_is_a_launch_of_its_own() -> None:
    for call in some_calls():
        graphs_that_ran = len(call.ran)
        assert launches(call, "reduce-overhead") == graphs_that_ran
        assert launches(call, "max-autotune") == graphs_that_ran


def test_an_unknown_mode_and_a_call_that_was_not_seen_are_refused() -> None:
    with pytest.raises(ValueError):
        launches(Call((), (("add",),)), "fastest")
    for mode in ("eager", "default", "reduce-overhead"):
        with pytest.raises(ValueError):
            launches(Call((), ()), mode)


# ---------------------------------------------------------------- a step as one graph

TINY = replace(
    named_shape("qwen3-0.6b"),
    name="tiny", hidden_size=24, intermediate_size=40, num_layers=1, num_heads=6, num_kv_heads=3,
    head_dim=8, vocab_size=53, max_position_embeddings=64, eos_token_ids=(),
)  # fmt: skip
CPU = torch.device("cpu")
BLOCKS, BLOCK_SIZE = 9, 4  # a request's
STOPS = (7, 11)


class Bare(Model):
    """For what is claimed of the step around the layers, which are most of what a trace costs."""

    def body(self, inputs: StepInputs, attention: Any) -> Tensor:  # noqa: ARG002
        return self.weights.embed[inputs.input_ids]


def tiny_model(kind: type[Model] = Model, most: int = 8) -> Model:
    weights = random_weights(TINY, CPU, torch.float32, seed=1)
    cache = KVCache.allocate(TINY, 1 + most * BLOCKS, BLOCK_SIZE, CPU, torch.float32)
    return kind(weights, cache)


def prompts_of(count: int, seed: int = 1) -> list[list[int]]:
    """Prompts of 1 to 14 tokens: contexts of one block to four."""
    rng = random.Random(seed)
    return [rng.choices(range(1, 53), k=rng.randint(1, 14)) for _ in range(count)]


def batch_of(
    model: Model, count: int, warm: Sequence[float] = (), stop_ids: tuple[int, ...] = STOPS
) -> Batch:
    temperatures = [*warm, *[0.0] * count][:count]
    return started(model, prompts_of(count), temperatures, stop_ids, BLOCKS)


WARM = {"nobody samples": (), "everybody samples": (0.7,) * 8, "some sample": (0.0, 1.5, 0.0, 0.7)}


def carelessly(
    count: int, warm: Sequence[float], steps: int = 12
) -> tuple[list[list[int]], list[int]]:
    """Tokens of each step, and how many requests go on after it."""
    model = tiny_model()
    batch, tokens, running = batch_of(model, count, warm), [], []
    for number in range(steps):
        draw(batch, seed=number)
        with contextlib.redirect_stdout(io.StringIO()) as said:
            tokens.append(careless_step(model, batch).tolist())
        running.append(int(said.getvalue().split()[0]))
    return tokens, running


NUMBERS = {  # a GPU is waited for; the last one is how tolist() and numpy() begin
    "_local_scalar_dense", "item", "is_nonzero", "nonzero", "equal", "masked_select",
    "resolve_conj",
}  # fmt: skip


class NoNumbers(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name not in NUMBERS, f"{name}: here Python asks the device for a number, and waits"
        return func(*args, **(kwargs or {}))


@torch.inference_mode()
@pytest.mark.catches("fullgraph-never-waits")
def test_the_step_asks_for_no_number() -> None:
    model = tiny_model()
    batch = batch_of(model, 5, WARM["some sample"])
    with NoNumbers():  # type: ignore[no-untyped-call]
        repaired_step(model, batch)


@torch.inference_mode()
@pytest.mark.catches("a-branch-goes-one-way", "the-last-token-is-padding")
@pytest.mark.parametrize("who", WARM)
def test_its_tokens_are_those_of_the_careless_step(who: str) -> None:
    wanted, _ = carelessly(6, WARM[who])
    model = tiny_model()
    batch = batch_of(model, 6, WARM[who])
    for number, careless in enumerate(wanted):
        draw(batch, seed=number)
        repaired = repaired_step(model, batch)[0].tolist()
        assert repaired == careless, f"step {number}"


@torch.inference_mode()
@pytest.mark.catches("the-last-token-is-padding")
def test_a_request_ends_with_its_stop_token_and_is_padding_from_then_on() -> None:
    model = tiny_model()
    batch, ended = batch_of(model, 6, WARM["everybody samples"]), set[int]()
    wanted, _ = carelessly(6, WARM["everybody samples"])
    assert any(token in STOPS for step in wanted for token in step), "or this shows nothing"
    for number in range(12):
        draw(batch, seed=number)
        tokens = repaired_step(model, batch)[0].tolist()
        assert all(tokens[row] == PAD for row in ended)
        ended |= {row for row, token in enumerate(tokens) if token in STOPS}
        finished = {row for row, is_finished in enumerate(batch.finished.tolist()) if is_finished}
        assert finished == ended


@torch.inference_mode()
def test_the_number_of_requests_that_go_on_stays_a_tensor() -> None:
    _, wanted = carelessly(6, WARM["everybody samples"])
    assert wanted[0] > wanted[-1], "or this shows nothing"
    model = tiny_model()
    batch, told = batch_of(model, 6, WARM["everybody samples"]), []
    for number in range(len(wanted)):
        draw(batch, seed=number)
        _, running = repaired_step(model, batch)
        assert isinstance(running, Tensor)
        assert (running.shape, running.is_floating_point()) == ((), False)
        told.append(int(running))
    assert told == wanted


@torch.inference_mode()
@pytest.mark.catches("temperature-is-mine")
def test_the_batch_becomes_the_next_step_in_place_and_the_rest_stays_as_it_was() -> None:
    one, other = tiny_model(), tiny_model()
    batch, wanted = (batch_of(model, 6, WARM["some sample"]) for model in (one, other))
    before = tensors_of(batch)
    temperature, noise = batch.temperature.clone(), batch.noise.clone()
    repaired_step(one, batch)
    with contextlib.redirect_stdout(io.StringIO()):
        careless_step(other, wanted)
    after = tensors_of(batch)
    assert [name for name in after if after[name] is not before[name]] == [], "other tensors"
    assert torch.equal(batch.temperature, temperature), "temperature was written over"
    assert torch.equal(batch.noise, noise), "noise was written over"
    should = tensors_of(wanted)
    assert [name for name in after if not torch.equal(after[name], should[name])] == []


@torch.inference_mode()
def test_the_next_step_is_that_of_the_careless_step_also_after_requests_have_ended() -> None:
    one, other = tiny_model(), tiny_model()
    batch, wanted = (batch_of(model, 6, WARM["everybody samples"]) for model in (one, other))
    for number in range(12):
        draw(batch, seed=number)
        draw(wanted, seed=number)
        tokens, _ = repaired_step(one, batch)
        assert tokens.dtype == torch.int32
        with contextlib.redirect_stdout(io.StringIO()):
            careless_step(other, wanted)
        next_ids, careless_ids = batch.inputs.input_ids, wanted.inputs.input_ids
        assert next_ids.tolist() == careless_ids.tolist()
    assert wanted.finished.any(), "or this shows nothing"


@torch.inference_mode()
@pytest.mark.catches("the-next-input-is-a-result")
def test_what_a_step_returned_can_be_read_when_later_steps_have_run() -> None:
    wanted_tokens, wanted_running = carelessly(6, WARM["everybody samples"])
    model = tiny_model()
    batch, returned = batch_of(model, 6, WARM["everybody samples"]), []
    for number in range(len(wanted_tokens)):
        draw(batch, seed=number)
        returned.append(repaired_step(model, batch))
    tokens = [step_tokens.tolist() for step_tokens, _ in returned]
    assert tokens == wanted_tokens, "tokens of all steps, read after the last"
    running = [int(going_on) for _, going_on in returned]
    assert running == wanted_running, "how many went on after each step, read after the last"


@torch.inference_mode()
def test_a_context_may_fill_every_block_of_its_request() -> None:
    one, other = tiny_model(), tiny_model()
    room = BLOCKS * BLOCK_SIZE
    rng = random.Random(2)
    prompts = [rng.choices(range(1, 53), k=room - 4) for _ in range(8)]
    batch, wanted = (started(model, prompts, [0.0] * 8, (), BLOCKS) for model in (one, other))
    for _ in range(4):  # the last token of each is the last that its blocks hold
        tokens = repaired_step(one, batch)[0].tolist()
        with contextlib.redirect_stdout(io.StringIO()):
            careless = careless_step(other, wanted).tolist()
        assert tokens == careless


def tensors_of(batch: Batch) -> dict[str, Tensor]:
    own = {name: value for name, value in vars(batch).items() if isinstance(value, Tensor)}
    return vars(batch.inputs) | own


@torch.inference_mode()
def test_the_careless_step_breaks_in_four_places() -> None:
    model = tiny_model(Bare)
    with contextlib.redirect_stdout(io.StringIO()):
        calls = over_calls(careless_step, [(model, batch_of(model, 5, WARM["some sample"]))])
    first = careless_step.__code__.co_firstlineno
    source = inspect.getsource(careless_step).splitlines()
    places = [int(found.place.rpartition(":")[2]) - first for found in graph_breaks(calls)]
    asked = ("int(inputs", "if batch.temperature", "tolist()", "print(")
    assert [word in source[line] for word, line in zip(asked, places, strict=True)] == [True] * 4


@torch.inference_mode()
def test_the_repaired_step_is_one_graph_without_a_break() -> None:
    graphs = Graphs()
    torch.compiler.reset()
    model = tiny_model(Bare)
    run = torch.compile(repaired_step, backend=graphs)
    run(model, batch_of(model, 5, WARM["some sample"]))
    breaks = [found for found in map(break_of, graphs.made) if found]
    assert breaks == []
    assert len(graphs.made) == 1


# ---------------------------------------------------------------- one trace for every batch


class Graphs:
    """A backend of the tests: keeps each graph, and counts the runs."""

    def __init__(self) -> None:
        self.made: list[torch.fx.GraphModule] = []
        self.runs = 0

    def __call__(self, graph: torch.fx.GraphModule, _inputs: Any) -> Callable[..., Any]:
        self.made.append(graph)

        def run(*inputs: Any) -> Any:
            self.runs += 1
            return graph.forward(*inputs)

        return run


def compiled_calls(counts: Sequence[int]) -> tuple[Graphs, list[list[int]], list[list[int]]]:
    """A batch of each of these sizes, two steps each: graphs, tokens, the careless tokens."""
    torch.compiler.reset()
    graphs = Graphs()
    step, model = compiled_step(graphs), tiny_model(Bare, most=max(counts))
    tokens, wanted = [], []
    for count in counts:
        batch = batch_of(model, count, WARM["some sample"])
        tokens += [step(model, batch)[0].tolist() for _ in range(2)]
        batch = batch_of(model, count, WARM["some sample"])
        with contextlib.redirect_stdout(io.StringIO()):
            wanted += [careless_step(model, batch).tolist() for _ in range(2)]
    return graphs, tokens, wanted


@torch.inference_mode()
@pytest.mark.catches("the-second-size-is-free", "a-loop-over-requests-is-free")
def test_a_second_size_of_the_batch_is_not_traced_again() -> None:
    counts = (2, 5, 33)
    graphs, tokens, wanted = compiled_calls(counts)
    assert tokens == wanted
    assert graphs.runs == 2 * len(counts), "each step runs one graph of the backend's"
    assert len(graphs.made) == 1


@torch.inference_mode()
@pytest.mark.catches("equal-sizes-are-one-size")
def test_a_first_batch_as_large_as_something_else_fixes_neither_and_one_request_runs_too() -> None:
    """As many requests as a request has blocks: nothing says that it stays so."""
    graphs, tokens, wanted = compiled_calls((BLOCKS, 4, 1))
    assert tokens == wanted
    assert graphs.runs == 6
    assert len(graphs.made) <= 2, "one request may have a trace of its own"


@torch.inference_mode()
@pytest.mark.catches("moved-out-is-gone")
def test_nobody_waits_around_the_compiled_step_either(monkeypatch: pytest.MonkeyPatch) -> None:
    def as_it_is(function: Any = None, **_options: Any) -> Any:
        return function or (lambda given: given)

    monkeypatch.setattr(torch, "compile", as_it_is)  # what is left is what stands around the step
    step, model = compiled_step(Graphs()), tiny_model()
    batch = batch_of(model, 5, WARM["some sample"])
    with NoNumbers():  # type: ignore[no-untyped-call]
        step(model, batch)


@torch.inference_mode()
@pytest.mark.catches("a-break-is-better-than-an-error")
def test_a_break_in_the_step_is_an_error_and_not_two_graphs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.compiler.reset()
    monkeypatch.setitem(compiled_step.__globals__, "repaired_step", careless_step)
    model = tiny_model(Bare)
    batch = batch_of(model, 5)
    with contextlib.redirect_stdout(io.StringIO()), pytest.raises(torch._dynamo.exc.Unsupported):
        compiled_step(Graphs())(model, batch)


@torch.inference_mode()
def test_the_shipped_model_writes_the_same_text() -> None:
    config = ModelConfig.from_folder(SHIPPED)
    tokenizer = Tokenizer(SHIPPED, config.eos_token_ids)
    weights = load_weights(config, SHIPPED, CPU, torch.float32)
    lines = ["The first launch of", "A graph", "Once upon a"]
    prompts = [tokenizer.encode(line) for line in lines]
    texts = []
    for run in (careless_step, repaired_step):
        model = Model(weights, KVCache.allocate(config, 25, 16, CPU, torch.float32))
        batch = started(model, prompts, [0.0, 0.8, 0.0], tuple(config.eos_token_ids))
        rows = []
        for number in range(8):
            draw(batch, seed=number)
            with contextlib.redirect_stdout(io.StringIO()):
                out: Any = run(model, batch)
            rows.append((out if run is careless_step else out[0]).tolist())
        texts.append([tokenizer.decode(list(column)) for column in zip(*rows, strict=True)])
    careless, repaired = texts
    assert repaired == careless
