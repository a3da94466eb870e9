"""What a CUDA graph does and does not do. One file for the emulated graphs and for the real ones.

Every test runs on the CPU emulator, and unchanged on `torch.cuda` where there is a GPU. Left out,
because versions of PyTorch differ or nobody promises it: what a result holds before the first
replay; whether a capture that a Python exception ended leaves half a graph (on a GPU it does);
launching a graph inside a capture; a pool in which a capture was invalidated; generators other than
the default one; what ascending capture costs (the allocator's settings decide); host data that a
CPU cannot tell from the device's. `test_emulator.py` says what the emulator does there.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from labs.support.loading import allocate, give_back, host_zeros
from mini_engine.cuda.graphs.backend import (
    Graph,
    GraphBackend,
    PoolHandle,
    clear_workspaces,
    graphs_for,
)
from mini_engine.cuda.graphs.capture import GraphRunner
from tests.support.graph_programs import Inputs, Program, programs
from tests.support.loader_thread import LOADED_BYTES, Told, capture_beside_a_loader

T = TypeVar("T")
NO_GPU = "no NVIDIA GPU here; on a machine with one: make gpu, or python -m pytest -m gpu"
GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason=NO_GPU)]


@pytest.fixture(
    scope="module",
    params=[pytest.param("cpu", id="emulator"), pytest.param("cuda", id="gpu", marks=GPU)],
)
def graphs(request: pytest.FixtureRequest) -> GraphBackend:
    return graphs_for(request.param)


@pytest.fixture(autouse=True)
def _stream_restored(graphs: GraphBackend) -> Iterator[None]:
    """`torch.cuda.graph` leaves its side stream current when a capture fails."""
    with graphs.stream(graphs.current_stream()):
        yield


_failed: list[Graph] = []  # PyTorch's allocator goes on asking a graph whose capture failed


def doomed(graphs: GraphBackend) -> Graph:
    """A graph whose capture will fail. It stays alive."""
    _failed.append(graphs.CUDAGraph())
    return _failed[-1]


def filled(graphs: GraphBackend, value: float = 1.0, size: int = 4) -> Tensor:
    return torch.full((size,), value, device=graphs.device)


def capture(
    graphs: GraphBackend, body: Callable[[], T], pool: PoolHandle = None
) -> tuple[Graph, T]:
    """A graph of `body`, and what body returned."""
    graph = graphs.CUDAGraph()
    with graphs.graph(graph, pool=pool):
        result = body()
    return graph, result


# -- what a graph remembers ----------------------------------------------------------------------


def test_capture_executes_nothing_and_a_replay_executes_it_once(graphs: GraphBackend) -> None:
    x, cache, slot = filled(graphs), filled(graphs, 0.0), torch.tensor([2], device=graphs.device)

    def step() -> None:
        x.add_(1)
        cache.index_copy_(0, slot, x[:1])

    graph, _ = capture(graphs, step)
    assert x.tolist() == [1, 1, 1, 1]
    assert cache.tolist() == [0, 0, 0, 0]
    graph.replay()
    assert x.tolist() == [2, 2, 2, 2]
    assert cache.tolist() == [0, 0, 2, 0]


def test_replay_reads_what_stands_at_the_addresses_now(graphs: GraphBackend) -> None:
    x = filled(graphs)
    graph, y = capture(graphs, lambda: x * 2)
    graph.replay()
    assert y.tolist() == [2, 2, 2, 2]
    x.copy_(filled(graphs, 5.0))
    graph.replay()
    assert y.tolist() == [10, 10, 10, 10]


def test_replay_ignores_a_rebound_input(graphs: GraphBackend) -> None:
    x = filled(graphs)
    static = x
    graph, y = capture(graphs, lambda: x * 2)
    x = filled(graphs, 5.0)
    graph.replay()
    assert y.tolist() == [2, 2, 2, 2]
    assert static.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("how", ["attribute", "data"])
def test_replay_ignores_a_replaced_weight(graphs: GraphBackend, how: str) -> None:
    layer = torch.nn.Linear(4, 1, bias=False, device=graphs.device).requires_grad_(False)
    layer.weight.fill_(1.0)
    old, x = layer.weight.data, filled(graphs)  # `old` keeps the memory: the graph does not
    new = torch.full_like(old, 7.0)
    layer(x)
    graph, y = capture(graphs, lambda: layer(x))
    if how == "attribute":
        layer.weight = torch.nn.Parameter(new, requires_grad=False)
    else:
        layer.weight.data = new
    graph.replay()
    assert y.tolist() == [4]
    old.fill_(3.0)
    graph.replay()
    assert y.tolist() == [12]


def test_a_python_scalar_is_baked_in(graphs: GraphBackend) -> None:
    x, factor = filled(graphs), 2.0
    graph, y = capture(graphs, lambda: x * factor)
    factor = 7.0
    graph.replay()
    assert y.tolist() == [2, 2, 2, 2]


def test_a_branch_is_frozen_and_python_runs_once(graphs: GraphBackend) -> None:
    x, double, calls = filled(graphs), True, []

    def forward() -> Tensor:
        calls.append("forward")
        return x * 2 if double else x * 100

    graph, y = capture(graphs, forward)
    double = False
    graph.replay()
    graph.replay()
    assert y.tolist() == [2, 2, 2, 2]
    assert calls == ["forward"]


def test_a_kept_output_is_overwritten_by_the_next_replay(graphs: GraphBackend) -> None:
    x = filled(graphs)
    graph, y = capture(graphs, lambda: x * 2)
    graph.replay()
    kept, saved = y, y.clone()
    x.fill_(5.0)
    graph.replay()
    assert kept.tolist() == [10, 10, 10, 10]
    assert saved.tolist() == [2, 2, 2, 2]


@given(
    st.lists(programs, min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 999)), min_size=1, max_size=6),
)
def test_random_programs_in_one_pool_equal_eager_in_any_order_of_replay(
    graphs: GraphBackend, sources: list[Program], replays: list[tuple[int, int]]
) -> None:
    pool, device = graphs.graph_pool_handle(), graphs.device
    static = [Inputs.random(p.rows, 0, device) for p in sources]
    for program, inputs in zip(sources, static, strict=True):
        program.run(inputs)  # kernels that are loaded lazily must not be loaded in a capture
    captured = [
        capture(graphs, partial(program.run, inputs), pool)
        for program, inputs in zip(sources, static, strict=True)
    ]
    for which, seed in replays:
        which %= len(sources)
        program, (graph, results) = sources[which], captured[which]
        fresh = Inputs.random(program.rows, seed, device)
        static[which].copy_(fresh)
        graph.replay()
        for got, expected in zip(results, program.run(fresh), strict=True):
            assert torch.equal(got, expected)
        assert torch.equal(static[which].state, fresh.state)


# -- what may not be captured --------------------------------------------------------------------

FORBIDDEN: dict[str, Callable[[GraphBackend, Tensor], object]] = {
    "item": lambda _, x: x.sum().item(),
    "float": lambda _, x: float(x[0]),
    "if": lambda _, x: 1 if (x > 0).all() else 0,
    "tolist": lambda _, x: x.tolist(),
    "cpu": lambda _, x: x.cpu(),
    "cpu().numpy": lambda _, x: x.cpu().numpy(),
    "equal": lambda _, x: torch.equal(x, x + 1),
    "print": lambda _, x: repr(x),
    "nonzero": lambda _, x: x.nonzero(),
    "boolean mask": lambda _, x: x[x > 0],
    "write under a mask": lambda _, x: x.__setitem__(x > 0, x),
    "unique": lambda _, x: torch.unique(x),
    "host data": lambda g, x: x + torch.tensor([1.0], device=g.device),
    "synchronize": lambda g, _: g.synchronize(),
    "stream.synchronize": lambda g, _: g.current_stream().synchronize(),
    "blocking copy": lambda g, x: x.copy_(host_zeros(g, 4, pinned=True)),
    "capture in a capture": lambda g, x: capture(g, lambda: x + 1),
}


def assert_usable(graphs: GraphBackend, pool: PoolHandle = None) -> None:
    """Eager work and a new capture are as good as ever."""
    assert not graphs.is_current_stream_capturing()
    x = filled(graphs)
    graph, y = capture(graphs, lambda: x * 3, pool)
    graph.replay()
    assert y.tolist() == [3, 3, 3, 3]
    assert (x + 1).tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize("what", FORBIDDEN)
def test_what_waits_for_the_device_ends_the_capture(graphs: GraphBackend, what: str) -> None:
    x, graph = filled(graphs), doomed(graphs)
    with pytest.raises(RuntimeError), graphs.graph(graph):
        FORBIDDEN[what](graphs, x)
    with pytest.raises(RuntimeError):
        graph.replay()
    assert_usable(graphs)


def test_swallowing_the_error_does_not_save_the_capture(graphs: GraphBackend) -> None:
    x, graph = filled(graphs), doomed(graphs)
    with pytest.raises(RuntimeError), graphs.graph(graph), suppress(RuntimeError):
        x.sum().item()
    with pytest.raises(RuntimeError):
        graph.replay()
    assert_usable(graphs)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_any_exception_leaves_device_and_pool_usable(
    graphs: GraphBackend, error: type[BaseException]
) -> None:
    x, graph, pool = filled(graphs), graphs.CUDAGraph(), graphs.graph_pool_handle()
    with pytest.raises(error), graphs.graph(graph, pool=pool):
        x.add_(1)
        raise error
    assert x.tolist() == [1, 1, 1, 1]
    assert_usable(graphs, pool)


# -- the life of a graph -------------------------------------------------------------------------


def test_there_is_nothing_to_replay_before_a_capture_or_after_a_reset(graphs: GraphBackend) -> None:
    x, graph = filled(graphs), graphs.CUDAGraph()
    with pytest.raises(RuntimeError):
        graph.replay()
    with pytest.raises(RuntimeError):
        graph.pool()
    with graphs.graph(graph):
        y = x * 2
    graph.reset()
    with pytest.raises(RuntimeError):
        graph.replay()
    with graphs.graph(graph):
        y = x * 3
    graph.replay()
    assert y.tolist() == [3, 3, 3, 3]


def test_a_graph_captures_once(graphs: GraphBackend) -> None:
    x = filled(graphs)
    graph, y = capture(graphs, lambda: x * 2)
    with pytest.raises(RuntimeError), graphs.graph(graph):
        pass
    graph.replay()
    assert y.tolist() == [2, 2, 2, 2]


def test_the_default_stream_captures_nothing(graphs: GraphBackend) -> None:
    with pytest.raises(RuntimeError, match="non-default stream"):
        graphs.CUDAGraph().capture_begin()
    assert_usable(graphs)


def test_begin_and_end_capture_by_hand(graphs: GraphBackend) -> None:
    x, graph = filled(graphs), graphs.CUDAGraph()
    graphs.synchronize()
    with graphs.stream(graphs.Stream()):
        assert not graphs.is_current_stream_capturing()
        graph.capture_begin()
        assert graphs.is_current_stream_capturing()
        y = x * 2
        graph.capture_end()
        assert not graphs.is_current_stream_capturing()
    graph.replay()
    assert y.tolist() == [2, 2, 2, 2]


def test_random_numbers_move_on_with_each_replay(graphs: GraphBackend) -> None:
    torch.manual_seed(1)
    eager = [torch.rand(4, device=graphs.device) for _ in range(2)]
    torch.manual_seed(1)
    graph, y = capture(graphs, lambda: torch.rand(4, device=graphs.device))
    for expected in eager:  # so the capture has drawn nothing
        graph.replay()
        assert torch.equal(y, expected)
    assert not torch.equal(*eager)


def test_garbage_collected_while_capturing_does_no_harm(graphs: GraphBackend) -> None:
    x = filled(graphs)

    def body() -> Tensor:
        ring: list[object] = [x * 2]
        ring.append(ring)
        y = x * 3
        del ring
        gc.collect()
        return torch.add(y, x, alpha=4)

    gc.collect()
    graph, y = capture(graphs, body)
    graph.replay()
    assert y.tolist() == [7, 7, 7, 7]


# -- streams and events --------------------------------------------------------------------------


def test_a_stream_that_forks_and_joins_is_captured_too(graphs: GraphBackend) -> None:
    x, side = filled(graphs), graphs.Stream()

    def body() -> Tensor:
        side.wait_stream(graphs.current_stream())
        with graphs.stream(side):
            doubled = x * 2
        tripled = x * 3
        graphs.current_stream().wait_stream(side)
        return doubled + tripled

    graph, y = capture(graphs, body)
    x.fill_(10.0)
    graph.replay()
    assert y.tolist() == [50, 50, 50, 50]


def test_a_fork_that_is_not_joined_ends_the_capture(graphs: GraphBackend) -> None:
    x, side, graph = filled(graphs), graphs.Stream(), doomed(graphs)
    with pytest.raises(RuntimeError), graphs.graph(graph):
        side.wait_stream(graphs.current_stream())
        with graphs.stream(side):
            x.add_(1)
    assert_usable(graphs)


def test_events_tell_the_time_between_them(graphs: GraphBackend) -> None:
    begin, end = (graphs.Event(enable_timing=True) for _ in range(2))
    begin.record()
    filled(graphs).add_(1)
    end.record()
    end.synchronize()
    assert begin.elapsed_time(end) >= 0


# -- host memory, and threads beside a capture ---------------------------------------------------


def test_a_copy_from_pinned_memory_is_a_node_that_reads_at_each_replay(
    graphs: GraphBackend,
) -> None:
    x, host = filled(graphs), host_zeros(graphs, 4, pinned=True)

    def body() -> Tensor:
        x.copy_(host, non_blocking=True)
        return x * 2

    graph, y = capture(graphs, body)
    for value in (3.0, 5.0):
        host.fill_(value)
        graph.replay()
        assert y.tolist() == [2 * value] * 4  # waits, so the host may write again


def test_a_copy_from_pageable_memory_is_refused_in_a_capture(graphs: GraphBackend) -> None:
    x, host = filled(graphs), host_zeros(graphs, 4, pinned=False)
    with pytest.raises(RuntimeError, match="pinned"), graphs.graph(doomed(graphs)):
        x.copy_(host, non_blocking=True)
    x.copy_(host)
    assert x.tolist() == [0, 0, 0, 0]
    assert_usable(graphs)


@pytest.mark.parametrize("mode", ["thread_local", "relaxed"])
def test_a_loader_thread_may_allocate_beside_a_capture_of_this_mode(
    graphs: GraphBackend, mode: str
) -> None:
    told = capture_beside_a_loader(graphs, mode)
    assert told == {"loader": None, "capture": None, "result": [3, 3, 3, 3]}
    assert_usable(graphs)


def test_in_global_mode_a_loader_thread_that_allocates_breaks_the_capture(
    graphs: GraphBackend,
) -> None:
    """Both threads get an error. In a process of its own on a GPU, which this may spoil."""
    if graphs.emulated:
        told = capture_beside_a_loader(graphs, "global")
        assert_usable(graphs)
    else:
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.loader_thread", "cuda", "global"],
            cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=300, check=True,
        )  # fmt: skip
        told = cast(Told, json.loads(done.stdout.splitlines()[-1]))
    assert told["loader"]
    assert "when stream is capturing" in told["loader"]
    assert told["capture"]
    assert told["result"] is None


def test_the_runners_capture_beside_a_loader_thread(graphs: GraphBackend) -> None:
    x, side = filled(graphs), graphs.Stream()
    loaded: list[int] = []

    def load() -> None:
        with graphs.stream(side):
            loaded.append(allocate(graphs, LOADED_BYTES))

    def forward(rung: int) -> Tensor:
        loader = threading.Thread(target=load)
        loader.start()
        loader.join()
        return x[:rung] * 2

    runner = GraphRunner(graphs, forward, [1, 4], graphs.graph_pool_handle())
    assert runner.capture().dropped == []
    assert runner.replay(4).tolist() == [2, 2, 2, 2]
    assert len(loaded) == 4  # a warm-up and a capture of each rung
    for address in loaded:
        give_back(graphs, address)


# -- custom ops: the way of a Triton kernel into a graph -----------------------------------------


@torch.library.custom_op("launch_bound_tests::accumulate", mutates_args=("total",))
def accumulate(x: Tensor, by: float, total: Tensor) -> None:
    total.add_(x, alpha=by)


@torch.library.custom_op("launch_bound_tests::doubled_rows", mutates_args=())
def doubled_rows(x: Tensor) -> Tensor:
    return torch.cat((x, x))


@doubled_rows.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(2 * x.shape[0])


def test_custom_ops_are_captured_and_replayed(graphs: GraphBackend) -> None:
    x, total = filled(graphs), filled(graphs, 0.0)

    def body() -> Tensor:
        accumulate(x * 2, 10.0, total)
        rows: Tensor = doubled_rows(total)
        return rows + 1

    graph, y = capture(graphs, body)
    assert total.tolist() == [0, 0, 0, 0]
    graph.replay()
    x.fill_(2.0)
    graph.replay()
    assert total.tolist() == [60, 60, 60, 60]
    assert y.tolist() == [61] * 8


# -- pools ---------------------------------------------------------------------------------------


def test_the_memory_of_a_dead_result_is_handed_out_again(graphs: GraphBackend) -> None:
    x = filled(graphs)

    def body() -> tuple[int, Tensor]:
        address = (x * 2).data_ptr()
        return address, x * 3

    graph, (address, y) = capture(graphs, body)
    assert y.data_ptr() == address
    graph.replay()
    assert y.tolist() == [3, 3, 3, 3]


def test_a_view_keeps_the_memory_of_what_it_views(graphs: GraphBackend) -> None:
    x = filled(graphs)

    def body() -> list[Tensor]:
        last = (x * 2)[3:]
        return [last, *(x * 3 for _ in range(4))]

    graph, (last, *_) = capture(graphs, body)
    graph.replay()
    assert last.tolist() == [2]


def test_a_kept_output_is_overwritten_by_another_graph_of_the_pool(graphs: GraphBackend) -> None:
    x, pool = filled(graphs), graphs.graph_pool_handle()

    def body() -> tuple[int, Tensor]:
        passing = x * 2
        return passing.data_ptr(), passing.sum()

    first, (address, _) = capture(graphs, body, pool)
    second, y = capture(graphs, lambda: x * 3, pool)
    assert y.data_ptr() == address
    second.replay()
    assert y.tolist() == [3, 3, 3, 3]
    first.replay()
    assert y.tolist() == [2, 2, 2, 2]
    second.replay()
    assert y.tolist() == [3, 3, 3, 3]


def test_one_graph_of_a_pool_outlives_the_other(graphs: GraphBackend) -> None:
    x = filled(graphs)
    first, _ = capture(graphs, lambda: (x * 2).sum())
    second, y = capture(graphs, lambda: x * 3, first.pool())
    assert second.pool() == first.pool()
    first.reset()
    second.replay()
    assert y.tolist() == [3, 3, 3, 3]


def test_a_pool_whose_graphs_are_gone_is_refused_while_a_tensor_stands_in_it(
    graphs: GraphBackend,
) -> None:
    """Its use count has fallen to 0, but its memory cannot be given back: `create_or_incref_pool`
    of the allocator then asserts (an "INTERNAL ASSERT" of PyTorch's, see vLLM's issue 28426)."""
    x, pool = filled(graphs), graphs.graph_pool_handle()
    graph, y = capture(graphs, lambda: x * 2, pool)
    graph.reset()
    with pytest.raises(RuntimeError, match="use_count > 0"):
        capture(graphs, lambda: x * 3, pool)
    del y
    assert_usable(graphs, pool)


def test_captured_largest_first_the_smaller_graph_costs_nothing(graphs: GraphBackend) -> None:
    """Results of 8, 4 and 2 MiB. The allocator keeps what is up to 1 MiB (kSmallSize) apart from
    what is larger: a result of 1 MiB would not go into the memory of larger ones but take a segment
    of 2 MiB of its own. Above that a first segment has 20 MiB (kLargeBuffer; from requests of 10
    MiB on each is as large as asked for), and a block is split where more than 1 MiB is left."""
    x, pool = filled(graphs, size=2**21), graphs.graph_pool_handle()
    kept, costs = [], []

    def body(size: int) -> Tensor:
        return x[:size] * 2 * 3 * 4  # two of them live at once

    for size in (2**21, 2**20, 2**19):
        kept.append(capture(graphs, partial(body, size), pool))
        costs.append(graphs.pool_bytes(pool))
    assert costs[0] == costs[1] == costs[2] >= 2 * 4 * 2**21


@pytest.mark.parametrize("streams", ["one", "two"])
def test_a_second_ladder_in_the_pool_costs_nothing_on_the_stream_of_the_first(
    graphs: GraphBackend, streams: str
) -> None:
    """PyTorch's allocator gives a block out again only on the stream that it was allocated on, so
    two ladders on two streams share nothing, in one pool or not."""
    x, out, pool = filled(graphs, size=2**21), filled(graphs), graphs.graph_pool_handle()
    stream, costs, ladders = graphs.Stream(), [], []

    def forward(rung: int) -> Tensor:
        return out.copy_((x[:rung] * 2 * 3)[:4])

    for ladder_stream in (stream, stream if streams == "one" else graphs.Stream()):
        ladder = GraphRunner(graphs, forward, (2**20, 2**21), pool, ladder_stream)
        ladder.capture()
        costs.append(graphs.pool_bytes(pool))
        ladders.append(ladder)  # a graph that is gone gives its memory back
    assert costs == ([costs[0]] * 2 if streams == "one" else [costs[0], 2 * costs[0]])


def test_a_graph_that_is_gone_takes_no_workspace_of_another_with_it(graphs: GraphBackend) -> None:
    """Both graphs multiply on one stream, where cuBLAS has one workspace. In torch 2.13 `reset`
    clears the workspaces of its stream (pytorch issue 193402); earlier, Inductor does."""
    x = torch.randn(16, 8192, device=graphs.device)
    weight = torch.randn(8192, 64, device=graphs.device) / 64  # a long sum, which cuBLAS may split
    stream, captured = graphs.Stream(), []
    for pool in (graphs.graph_pool_handle(), graphs.graph_pool_handle()):
        runner = GraphRunner(graphs, lambda rung: x[:rung] @ weight, [16], pool, stream)
        runner.capture()
        captured.append(runner)
    expected = captured[1].replay(16).clone()
    captured[0].reset()
    if not graphs.emulated:
        clear_workspaces()
        torch.cuda.empty_cache()
    taken = [torch.full((2**22,), torch.nan, device=graphs.device) for _ in range(8)]  # 128 MiB
    again = captured[1].replay(16)
    assert torch.equal(again, expected)
    assert all(tensor.isnan().all() for tensor in taken), "the replay wrote into others' memory"
