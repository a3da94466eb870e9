"""What only the emulated CUDA graphs promise: poison, counts, figures of pools, plain words.

`test_graph_contract.py` has what they share with the real ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_leaves

from mini_engine.cuda.graphs import backend, emulator
from mini_engine.cuda.graphs.arena import BLOCK_BYTES, GraphPool, HostMemory
from mini_engine.cuda.graphs.backend import graphs_for
from mini_engine.cuda.graphs.emulator import CUDAGraph
from mini_engine.cuda.graphs.tape import CaptureError
from tests.support.torch_helpers import memory_limit

NOT_PERMITTED = "operation not permitted when stream is capturing: "


T = TypeVar("T")


def capture(body: Callable[[], T], pool: GraphPool | None = None) -> tuple[CUDAGraph, T]:
    graph = CUDAGraph()
    with emulator.graph(graph, pool=pool):
        result = body()
    return graph, result


def rand(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


# -- poison --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_a_float_is_nan_until_the_first_replay(dtype: torch.dtype) -> None:
    graph, y = capture(lambda: torch.ones(4).to(dtype))
    assert y.isnan().all()
    graph.replay()
    assert y.tolist() == [1, 1, 1, 1]


# -- what is recorded ----------------------------------------------------------------------------


def test_views_and_bare_allocations_are_no_ops_of_a_graph() -> None:
    x = rand(4, 6)

    def body() -> Tensor:
        out = torch.empty(4, 6)
        left, right = x.t().reshape(4, 6).chunk(2)
        torch.cat((right, left), out=out)
        return out[None].squeeze(0).unsqueeze(1).detach()

    graph, _ = capture(body)
    assert graph.ops == ("aten.clone.default", "aten.cat.out")


def attend(x: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(x, x, x, is_causal=True)


def assigned(x: Tensor) -> Tensor:
    x[x > 0] = 0.5
    x[1] = 7
    return x


EXACT: dict[str, Callable[[Tensor], object]] = {
    "layer_norm": lambda x: functional.layer_norm(x, (8,)),
    "rms_norm": lambda x: functional.rms_norm(x, (8,)),
    "attention": lambda x: attend(x.view(1, 2, 2, 8)),
    "half attention": lambda x: attend(x.view(1, 2, 2, 8).bfloat16()),
    "embedding": lambda x: functional.embedding(x.argmax(-1), x.repeat(2, 1)),
    "conv1d": lambda x: functional.conv1d(x[None], x.view(2, 4, 4)),
    "batch_norm": lambda x: functional.batch_norm(x, torch.zeros(8), torch.ones(8), training=True),
    "topk": lambda x: torch.topk(x, 3),
    "scatter": lambda x: x.scatter(1, x.argsort(1), x),
    "index": lambda x: x[x.argmax(0) % 4, 1],
    "index_put": lambda x: x.clone().index_put_((x.argmax(1) % 4,), x, accumulate=True),
    "assign": lambda x: assigned(x.clone()),
    "where": lambda x: torch.where(x > 0, x, -1.0),
    "arange": lambda x: torch.arange(4)[:, None] + torch.full((4, 8), 2) + x,
    "split_copy": lambda x: torch.split_copy(x, 3, 1),
    "foreach": lambda x: torch._foreach_add([x, x[0]], 1.0),
    "unbind and stack": lambda x: torch.stack(x.unbind(1)),
    "repeat_interleave": lambda x: x.repeat_interleave((x > 9).sum(1) + 1, 0, output_size=4),
    "var_mean": lambda x: torch.var_mean(x, dim=0),
    "empty": lambda x: x[:0] * 2,
    "scalar": lambda x: x.sum() / x.numel(),
    "logits": lambda x: functional.log_softmax(x.bfloat16(), -1, dtype=torch.float32),
    "strided": lambda x: x.as_strided((4, 4), (8, 2)) ** 2,
}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("what", EXACT)
def test_a_replay_equals_the_eager_run_to_the_last_bit(
    what: str, mode: Callable[[], AbstractContextManager[None]]
) -> None:
    with mode():
        x = rand(4, 8)
        graph, got = capture(lambda: EXACT[what](x))
        for seed in range(2):
            x.copy_(rand(4, 8) + seed)
            graph.replay()
            for y, expected in zip(tree_leaves(got), tree_leaves(EXACT[what](x)), strict=True):
                if isinstance(y, Tensor):
                    assert torch.equal(y, expected)
                    assert (y.dtype, y.stride()) == (expected.dtype, expected.stride())


# -- pools ---------------------------------------------------------------------------------------


def chain(x: Tensor, blocks: int) -> Tensor:
    """Three results of so many blocks one after the other; two of them live at any time."""
    rows = x[: blocks * BLOCK_BYTES // 4]
    return rows * 2 * 3 * 4


def bytes_of(order: list[int], *, shared: bool) -> int:
    """What graphs of these sizes hold when captured in this order."""
    x, pool = torch.ones(16 * BLOCK_BYTES), emulator.graph_pool_handle()
    graphs = [capture(partial(chain, x, size), pool if shared else None)[0] for size in order]
    return sum(p.reserved_bytes for p in {g.pool() for g in graphs})


def test_the_order_of_capture_decides_what_a_shared_pool_holds() -> None:
    assert bytes_of([8, 4, 2, 1], shared=True) == 2 * 8 * BLOCK_BYTES
    assert bytes_of([1, 2, 4, 8], shared=True) == 2 * (1 + 2 + 4 + 8) * BLOCK_BYTES
    assert bytes_of([8, 4, 2, 1], shared=False) == 2 * (1 + 2 + 4 + 8) * BLOCK_BYTES


def test_the_last_graph_to_go_gives_the_memory_back() -> None:
    x, pool = torch.ones(16 * BLOCK_BYTES), emulator.graph_pool_handle()
    first, y = capture(lambda: chain(x, 8), pool)
    second = capture(lambda: chain(x, 8), pool)[0]
    held = pool.reserved_bytes
    first.reset()
    assert pool.reserved_bytes == held
    del second
    assert pool.reserved_bytes == 8 * BLOCK_BYTES  # y stands there
    assert y.isnan().all()
    del y
    assert pool.reserved_bytes == 0


def test_running_out_of_memory_ends_a_capture_and_no_more() -> None:
    x, pool = torch.ones(16 * BLOCK_BYTES), emulator.graph_pool_handle()
    before = emulator.mem_get_info()
    graph = CUDAGraph()
    used = before[1] - before[0]
    with memory_limit(used + 9 * BLOCK_BYTES):
        with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
            with emulator.graph(graph, pool=pool):
                chain(x, 8)
        with pytest.raises(CaptureError, match="without a preceding"):
            graph.replay()
        smaller, y = capture(lambda: chain(x, 4), pool)
        assert emulator.mem_get_info() == (BLOCK_BYTES, used + 9 * BLOCK_BYTES)
    smaller.replay()
    assert (y == 24).all()
    assert emulator.mem_get_info()[1] == before[1]


# -- refusals in plain words ---------------------------------------------------------------------

SPARSE = torch.eye(2).to_sparse()
REFUSED: dict[str, tuple[str, Callable[[Tensor], object]]] = {
    "index by tensor": ("copies a value back", lambda x: x[x.argmax()]),
    "allclose": ("copies a value back to the CPU", lambda x: torch.allclose(x, x)),
    "numpy": ("Tensor.numpy reads the device", lambda x: x.numpy()),
    "format": ("Tensor.__format__ reads the device", lambda x: f"{x[0]}"),
    "masked_select": ("shape that depends on data", lambda x: x.masked_select(x > 0)),
    "list": ("copies host data to the device", lambda x: x[[0, 1]]),
    "from_numpy": ("copies host data", lambda x: torch.from_numpy(np.ones(2))),
    "no meta kernel": ("has no meta kernel", lambda x: x.to_sparse()),
    "generator": ("generator of its own", lambda x: x.normal_(generator=torch.Generator())),
    "sparse": ("expected a strided one", lambda _: SPARSE * 2),
    "small out": ("give out= ", lambda x: torch.mul(x, x, out=torch.empty(1))),
    "replay": ("launching a graph", lambda _: CUDAGraph().replay()),
    "event": ("Event.synchronize waits", lambda x: emulator.Event().synchronize()),
    "foreign stream": (
        "waiting for a stream that is not part",
        lambda x: emulator.current_stream().wait_stream(emulator.Stream()),
    ),
}


@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_refusal_names_what_is_not_permitted_and_leaves_nothing_behind(
    what: str, mode: Callable[[], AbstractContextManager[None]]
) -> None:
    reason, body = REFUSED[what]
    with mode(), pytest.raises(CaptureError, match=f"^{NOT_PERMITTED}.*{reason}"):
        capture(partial(body, torch.ones(4)))
    assert_nothing_left()


def test_a_capture_that_was_invalidated_has_spoiled_its_pool() -> None:
    x, pool = torch.ones(4), emulator.graph_pool_handle()
    with pytest.raises(CaptureError):
        capture(lambda: x.tolist(), pool)
    with pytest.raises(CaptureError, match="take a new one"):
        capture(lambda: x * 2, pool)


# -- a capture that fails leaves nothing behind --------------------------------------------------


def assert_nothing_left() -> None:
    assert not _get_current_dispatch_mode_stack()
    assert not _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    assert not emulator.is_current_stream_capturing()
    assert emulator.current_stream() is emulator.DEFAULT_STREAM
    assert torch.ones(3).tolist() == [1, 1, 1]


# -- streams, threads, devices -------------------------------------------------------------------


def test_work_on_a_stream_that_did_not_fork_is_left_out_of_the_graph() -> None:
    x, other = torch.ones(4), emulator.Stream()

    def body() -> Tensor:
        with emulator.stream(other):
            x.add_(1)  # runs now, and never again
        return x * 2

    graph, y = capture(body)
    assert x.tolist() == [2, 2, 2, 2]
    graph.replay()
    assert (x.tolist(), y.tolist()) == ([2] * 4, [4] * 4)
    assert graph.ops == ("aten.mul.Tensor",)


def test_workspaces_of_products_are_cleared_before_a_capture_and_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`torch.cuda`, as far as the order of calls goes: the emulator's graph stands in for it."""
    calls: list[str] = []

    @contextmanager
    def recorded(*args: Any, **kwargs: Any) -> Iterator[None]:
        calls.append("begin")
        try:
            with emulator.graph(*args, **kwargs):
                yield
        finally:
            calls.append("end")

    monkeypatch.setattr(torch.cuda, "graph", recorded)
    clear = partial(calls.append, "clear")
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", clear, raising=False)
    graphs = backend._backend_of(torch.device("cpu"), torch.cuda)
    graph, x = CUDAGraph(), torch.ones(4)
    with graphs.graph(graph, pool=emulator.graph_pool_handle()):
        y = x * 2
    assert calls == ["clear", "begin", "end", "clear"]
    graph.replay()
    assert y.tolist() == [2, 2, 2, 2]

    calls.clear()
    with pytest.raises(CaptureError), graphs.graph(CUDAGraph(), pool=emulator.graph_pool_handle()):
        x.tolist()
    assert calls == ["clear", "begin", "end", "clear"]


def test_a_machine_that_cannot_tell_its_memory_has_an_emulator_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(os, "sysconf")  # as on native Windows
    assert HostMemory().capacity_bytes == 16 << 30


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_cuda_is_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match="PyTorch finds no CUDA GPU"):
        graphs_for("cuda")
