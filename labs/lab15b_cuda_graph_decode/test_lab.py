"""Lab 15b: capture of a real decode step, on the CPU emulator, whose API and rules are a GPU's.

A Qwen3 of two layers decodes through your code; what it writes is held to the same model without a
cache, without a batch and without graphs. LAB_DEVICE=cuda runs this file on real graphs.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from labs.support.inputs import frozen
from labs.support.stream_log import Log, logged
from labs.support.tiny import DEVICE, TINY, graphs, ints, weights
from mini_engine.cuda.attention import DecodeAttention, HostAttention
from mini_engine.cuda.graphs import emulator
from mini_engine.cuda.graphs.capture import GraphRunner
from mini_engine.cuda.inputs import StaticInputs, StepInputs
from mini_engine.cuda.model import KVCache, Model
from mini_engine.cuda.runner import TorchRunner
from mini_engine.cuda.sampling import Sampler, greedy
from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.dispatch.modes import CUDAGraphMode
from mini_engine.engine.batch import (
    Request,
    RequestState,
    ScheduledBatch,
    ScheduledRequest,
    SchedulerLimits,
)
from mini_engine.engine.engine import Engine
from mini_engine.engine.step_arrays import step_shapes

gc.freeze()  # each capture collects garbage first: it need not look through PyTorch's modules
CHANGING = ("input_ids", "positions", "context_lens", "slot_mapping")  # from step to step
BLOCK_SIZE, BLOCKS = 4, 8  # of a request: room for 32 tokens
LIMITS = SchedulerLimits(
    max_num_seqs=4, max_num_batched_tokens=16, num_blocks=64, block_size=4, max_model_len=32
)
EMULATED = pytest.mark.skipif(
    DEVICE != "cpu", reason="the emulator counts what a GPU's allocator rounds, and keeps a log"
)


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def new_model(num_blocks: int) -> Model:
    device = graphs().device
    return Model(weights(), KVCache.allocate(TINY, num_blocks, BLOCK_SIZE, device, torch.float32))


def prompt_step(tokens: Sequence[int], table: Sequence[int]) -> StepInputs:
    """A whole prompt of one request as one step."""
    positions = range(len(tokens))
    slots = [table[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for p in positions]
    return StepInputs(
        input_ids=ints(tokens),
        positions=ints(positions),
        slot_mapping=ints(slots),
        query_lens=ints([len(tokens)]),
        context_lens=ints([len(tokens)]),
        last_rows=ints([len(tokens) - 1]),
        block_table=ints([table]),
    )


def next_token(model: Model, tokens: Sequence[int], table: Sequence[int]) -> int:
    """Compute a prompt, fill its cache, sample."""
    step = prompt_step(tokens, table)
    attention = HostAttention((len(tokens),), (len(tokens),), BLOCK_SIZE)
    return int(model.head(model.body(step, attention), step)[1])


@cache
def alone(prompt: tuple[int, ...], count: int) -> list[int]:
    """The next `count` tokens of a prompt, all of it computed anew for each of them."""
    model, tokens = new_model(1 + BLOCKS), list(prompt)
    for _ in range(count):
        tokens.append(next_token(model, tokens, range(1, 1 + BLOCKS)))
    return tokens[len(prompt) :]


def decoding(prompts: Sequence[tuple[int, ...]], rows: int) -> tuple[Model, StepInputs]:
    """Prompts in the cache, and the decode step after them, padded with zeros to `rows`."""
    order = random.Random(len(prompts)).sample(range(1, 1 + rows * BLOCKS), rows * BLOCKS)
    tables = [order[i * BLOCKS : (i + 1) * BLOCKS] for i in range(len(prompts))]
    model = new_model(1 + rows * BLOCKS)
    first = [next_token(model, p, table) for p, table in zip(prompts, tables, strict=True)]
    lengths, padding = [len(p) for p in prompts], [0] * (rows - len(prompts))
    slots = [t[n // BLOCK_SIZE] * BLOCK_SIZE + n % BLOCK_SIZE
             for n, t in zip(lengths, tables, strict=True)]  # fmt: skip
    return model, StepInputs(
        input_ids=ints(first + padding),
        positions=ints(lengths + padding),
        slot_mapping=ints(slots + padding),
        query_lens=ints([1] * len(prompts) + padding),
        context_lens=ints([n + 1 for n in lengths] + padding),
        last_rows=ints([*range(len(prompts)), *padding]),
        block_table=ints(tables + [[0] * BLOCKS for _ in padding]),
    )


def decode_inputs(*, token: int, context: int, table: Sequence[int]) -> StepInputs:
    """The decode step of one request of so many tokens, the last of them new."""
    position = context - 1
    return StepInputs(
        input_ids=ints([token]),
        positions=ints([position]),
        slot_mapping=ints([table[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE]),
        query_lens=ints([1]),
        context_lens=ints([context]),
        last_rows=ints([0]),
        block_table=ints([table]),
    )


def assert_alone(written: list[int], prompt: tuple[int, ...]) -> None:
    """The tokens of decode steps; the first token of a request comes from its prompt's step."""
    wanted = alone(prompt, 1 + len(written))[1:]
    wrong = [
        step for step, pair in enumerate(zip(written, wanted, strict=True)) if len({*pair}) > 1
    ]
    said = f"wrote {written}, alone the model writes {wanted}"
    assert not wrong, f"wrong from decode step {wrong[0] + 1} of {len(written)} on: {said}"


def some_prompts(count: int, seed: int) -> list[tuple[int, ...]]:
    rng = random.Random(seed)
    return [
        tuple(rng.randrange(TINY.vocab_size) for _ in range(rng.randint(1, 9)))
        for _ in range(count)
    ]


def batch_of(*contexts: int) -> ScheduledBatch:
    """A decode step of requests with such contexts. Request i has blocks 8·i + 1 and on."""
    entries = []
    for i, context in enumerate(contexts):
        state = RequestState(Request(str(i), tuple(range(5, 5 + context)), 9))
        table = list(range(8 * i + 1, 8 * i + 1 + -(-context // BLOCK_SIZE)))
        entries.append(
            ScheduledRequest(state, context - 1, 1, table, is_prefill=False, samples=True)
        )
    return ScheduledBatch(tuple(entries))


def runner_of(forward: Callable[[int], Tensor], sizes: Sequence[int]) -> GraphRunner:
    return GraphRunner(graphs(), forward, sizes, graphs().graph_pool_handle())


Run = tuple[int, Any, bool]  # a rung, the stream, whether that was capturing


def noting(seen: list[Run]) -> Callable[[int], Tensor]:
    """A forward that doubles ones and writes down each of its runs."""
    x = torch.ones(4, device=graphs().device)

    def forward(rung: int) -> Tensor:
        seen.append((rung, graphs().current_stream(), graphs().is_current_stream_capturing()))
        return x[:rung] * 2

    return forward


# ---------------------------------------------------------------- 1: the warm-up


@pytest.mark.catches("no-warm-up", "warm-up-on-the-default-stream")
def test_a_warm_up_runs_the_rung_once_and_eagerly_on_the_stream_it_is_given() -> None:
    """What is set up for one stream is not set up for another: PyTorch's workspaces of cuBLAS are
    kept by handle and stream (`cublas_handle_stream_to_workspace` in CublasHandlePool.cpp)."""
    seen = list[Run]()
    stream, outside = graphs().Stream(), graphs().current_stream()
    runner_of(noting(seen), [1, 4])._warm_up(4, stream)
    runs = [rung for rung, _, _ in seen]
    assert runs == [4], "forward(4), once"
    on_the_callers = [run == outside for _, run, _ in seen]
    assert on_the_callers == [False], "the rung was warmed up on the caller's stream"
    on_its_own = [run == stream for _, run, _ in seen]
    assert on_its_own == [True], "the rung was warmed up on a third stream"
    captured = [capturing for _, _, capturing in seen]
    assert captured == [False]
    assert graphs().current_stream() == outside


def of_a_warm_up() -> tuple[emulator.Stream, Log]:
    """The emulator's log of it: somebody writes the inputs, on the stream that is current then."""
    x, stream = torch.ones(4), emulator.Stream()
    runner = runner_of(lambda rung: x[:rung] * 2, [4])
    with logged() as log:
        x.fill_(3)
        runner._warm_up(4, stream)
    return stream, log


@EMULATED
@pytest.mark.catches("unordered-side-stream")
def test_the_side_stream_waits_for_whoever_writes_the_inputs() -> None:
    """The emulator has no races, but it logs what ran on which stream, and who waited for whom."""
    _, log = of_a_warm_up()
    races = log.races()
    assert races == [], "nothing orders the warm-up after the write of its inputs"


@EMULATED
@pytest.mark.catches("warm-up-not-waited-for")
def test_when_a_warm_up_returns_the_host_has_waited_for_it() -> None:
    stream, log = of_a_warm_up()
    waited = log.waited_for(stream)
    assert waited, "the warm-up may still run: its memory and the inputs are not free yet"


# ---------------------------------------------------------------- 2: one rung


@pytest.mark.catches("capture-computes")
def test_a_recorded_rung_computes_what_its_inputs_hold_by_then() -> None:
    x = torch.zeros(4, device=graphs().device)
    runner = runner_of(lambda rung: x[:rung] * 2 + 1, [2, 4])
    runner.captured[4] = runner._record(4, graphs().Stream())
    for value in (3.0, 5.0):
        x.fill_(value)
        output = runner.replay(4).tolist()
        assert output == [2 * value + 1] * 4


def test_nothing_is_computed_while_a_rung_is_recorded() -> None:
    """Not by a first replay either: nobody has put anything into the inputs yet."""
    x = torch.zeros(4, device=graphs().device)
    runner = runner_of(lambda rung: x[:rung].add_(1), [4])
    runner.captured[4] = runner._record(4, graphs().Stream())
    assert x.tolist() == [0] * 4, "x += 1 ran"
    runner.replay(4)
    assert x.tolist() == [1] * 4


@pytest.mark.catches("a-pool-for-each-rung")
def test_a_rung_is_recorded_once_on_its_stream_and_into_the_runners_pool() -> None:
    seen, stream, outside = list[Run](), graphs().Stream(), graphs().current_stream()
    runner = runner_of(noting(seen), [2])
    pieces = runner._record(2, stream)
    runs = [rung for rung, _, _ in seen]
    assert runs == [2], "forward(2), once"
    captured = [capturing for _, _, capturing in seen]
    assert captured == [True]
    on_its_stream = [run == stream for _, run, _ in seen]
    assert on_its_stream == [True], "the rung was captured on another stream"
    assert graphs().current_stream() == outside
    assert len(pieces.graphs) == 1
    same_pool = pieces.graphs[0].pool() == runner.pool
    assert same_pool, "every rung takes memory of its own"


# ---------------------------------------------------------------- 3: the ladder


@pytest.mark.catches("capture-computes")
def test_each_rung_replays_its_own_size() -> None:
    x = torch.zeros(4, device=graphs().device)
    runner = runner_of(lambda rung: x[:rung] * 2 + 1, [2, 4])
    runner.capture()
    for value in (3.0, 5.0):
        x.fill_(value)
        assert runner.replay(4).tolist() == [2 * value + 1] * 4
        assert runner.replay(2).tolist() == [2 * value + 1] * 2


@pytest.mark.catches("no-warm-up")
def test_what_a_library_does_at_its_first_call_is_not_in_the_graph() -> None:
    """A first call for a shape reads from the device, as one that loads or tunes a kernel does."""
    x, loaded = torch.ones(4, device=graphs().device), set()

    def forward(rung: int) -> Tensor:
        if rung not in loaded:
            loaded.add(rung)
            x[0].item()
        return x[:rung] * 2

    runner = runner_of(forward, [1, 2, 4])
    runner.capture()
    assert sorted(runner.captured) == [1, 2, 4]
    assert runner.replay(2).tolist() == [2, 2]


def test_all_rungs_are_warmed_up_and_captured_on_the_stream_of_the_runner() -> None:
    seen, outside = list[Run](), graphs().current_stream()
    runner = runner_of(noting(seen), [1, 2, 4])
    runner.capture()
    streams = {stream for _, stream, _ in seen}
    assert streams == {runner.stream}, "one stream for all rungs, their warm-ups too"
    assert outside not in streams
    assert graphs().current_stream() == outside


@EMULATED
def test_a_second_ladder_on_the_same_stream_costs_nothing() -> None:
    """A pool gives memory out again only on the stream that it was allocated on."""
    x, out = torch.ones(64, 1024, device=graphs().device), torch.ones(4, device=graphs().device)
    pool, stream = graphs().graph_pool_handle(), graphs().Stream()
    ladders, costs = [], []

    def forward(rung: int) -> Tensor:
        return out.copy_((x[:rung] * 2).sum())

    for _ in range(2):
        ladder = GraphRunner(graphs(), forward, [8, 64], pool, stream)
        ladder.capture()
        ladders.append(ladder)
        costs.append(graphs().pool_bytes(pool))
    assert costs[0] == costs[1], "the second ladder took memory of its own"


def bytes_taken(sizes: Sequence[int]) -> int:
    """What a ladder costs, in bytes of the device."""
    x = torch.ones(max(sizes), 1024, device=graphs().device)

    def forward(rung: int) -> Tensor:
        return ((x[:rung] * 2).sin() + x[:rung]).sum(1)

    before, _ = graphs().mem_get_info()
    runner = runner_of(forward, sizes)
    runner.capture()
    assert sorted(runner.captured) == sorted(sizes)
    after, _ = graphs().mem_get_info()
    runner.reset()
    return before - after


@EMULATED
@pytest.mark.catches("smallest-first", "a-pool-for-each-rung")
def test_the_whole_ladder_lives_in_the_memory_of_its_largest_rung() -> None:
    largest, ladder = bytes_taken([64]), bytes_taken([1, 2, 4, 8, 16, 32, 64])
    assert ladder <= 1.1 * largest, f"{ladder:,} bytes for all rungs, {largest:,} for the largest"


NO_MEMORY = (torch.OutOfMemoryError, "CUDA out of memory")


def raising(errors: Mapping[int, tuple[type[BaseException], str]]) -> Callable[[int], Tensor]:
    """A forward that doubles ones, and raises what the rung has for an error."""
    x = torch.ones(8, device=graphs().device)

    def forward(rung: int) -> Tensor:
        if rung in errors:
            kind, said = errors[rung]
            raise kind(said)
        return x[:rung] * 2

    return forward


@pytest.mark.catches("out-of-memory-ends-it")
def test_a_rung_without_memory_is_dropped_and_the_others_are_captured() -> None:
    runner = runner_of(raising({8: NO_MEMORY}), [1, 4, 8])
    report = runner.capture()
    assert report.dropped == [8]
    assert [r.rung for r in report.rungs] == [4, 1]
    assert runner.replay(4).tolist() == [2] * 4


@pytest.mark.catches("out-of-memory-ends-it", "only-the-allocator-runs-out")
def test_a_driver_without_memory_for_the_nodes_drops_a_rung_too() -> None:
    """An ordinary RuntimeError, as PyTorch makes of cudaErrorMemoryAllocation."""
    runner = runner_of(raising({4: (RuntimeError, "CUDA error: out of memory")}), [1, 4, 8])
    report = runner.capture()
    assert report.dropped == [4]
    assert [r.rung for r in report.rungs] == [8, 1]
    assert runner.replay(8).tolist() == [2] * 8


@pytest.mark.parametrize("without", [(8, 4), (4, 1), (8, 4, 1)], ids=str)
def test_more_rungs_than_one_may_find_no_memory_and_a_later_capture_tries_them_again(
    without: tuple[int, ...],
) -> None:
    lacking = dict.fromkeys(without, NO_MEMORY)
    runner, rest = runner_of(raising(lacking), [1, 4, 8]), sorted({8, 4, 1} - {*without})[::-1]
    report = runner.capture()
    assert report.dropped == [*without], "every rung that found no memory, in the order of capture"
    assert [r.rung for r in report.rungs] == rest
    assert sorted(runner.captured, reverse=True) == rest

    runner.reset()
    lacking.clear()
    again = runner.capture()
    assert again.dropped == []
    assert [r.rung for r in again.rungs] == [8, 4, 1], "there is memory now, and no rung is lost"


@pytest.mark.catches("every-error-is-memory")
def test_a_mistake_in_the_model_is_not_taken_for_missing_memory() -> None:
    x = torch.ones(4, device=graphs().device)

    def forward(rung: int) -> Tensor:
        return x[:rung] * (2 if x.sum().item() > 0 else 3)  # a branch on what the device holds

    runner = runner_of(forward, [2, 4])
    with pytest.raises(RuntimeError):
        report = runner.capture()
        pytest.fail(f"a capture that cannot work ended well, with {report.dropped} dropped")
    assert not runner.captured, "a graph was left behind"


def test_ctrl_c_ends_the_capture_and_leaves_no_graph() -> None:
    pressed = {2: (KeyboardInterrupt, "")}
    runner = runner_of(raising(pressed), [1, 2, 4])
    with pytest.raises(KeyboardInterrupt):
        runner.capture()
    assert not runner.captured
    pressed.clear()
    runner.capture()
    assert runner.replay(2).tolist() == [2, 2]


# ---------------------------------------------------------------- 4: static inputs


def end_of(step: StepInputs) -> int:
    """The address behind the last number of a step: its block table is the last array."""
    return step.block_table.data_ptr() + step.block_table.numel() * 4


@pytest.mark.catches("stale-padding")
def test_a_batch_is_written_into_the_first_rows_and_zeros_into_the_others() -> None:
    inputs = StaticInputs(LIMITS, 16, graphs().device)
    rng = random.Random(5)
    for _ in range(30):
        contexts = [rng.randint(1, 30) for _ in range(rng.randint(1, 4))]
        rung = rng.randint(len(contexts), 4)
        step = inputs.fill(batch_of(*contexts), rung, rung)
        padding = [0] * (rung - len(contexts))
        assert step.context_lens.tolist() == contexts + padding
        assert step.positions.tolist() == [c - 1 for c in contexts] + padding
        assert step.input_ids.tolist() == [4 + c for c in contexts] + padding
        assert step.last_rows.tolist() == [*range(len(contexts)), *padding]
        assert step.query_lens.tolist() == [1] * len(contexts) + padding
        for i, row in enumerate(step.block_table.tolist()):
            used = -(-contexts[i] // BLOCK_SIZE) if i < len(contexts) else 0
            assert row == [8 * i + 1 + b for b in range(used)] + [0] * (8 - used)


@pytest.mark.catches("stale-padding")
@pytest.mark.parametrize("tokens", [1, 7, 16])
def test_a_prompt_has_more_tokens_than_rows_and_each_array_is_padded_for_itself(
    tokens: int,
) -> None:
    inputs, rng = StaticInputs(LIMITS, 16, graphs().device), np.random.default_rng(tokens)
    inputs.fill(batch_of(9, 17, 30, 5), 16, 4)
    shapes = step_shapes(tokens, 2, BLOCKS)
    step, padded = inputs.view(16, 3), inputs.view(16, 3)
    arrays = {name: frozen(rng.integers(1, 60, shape, np.int32)) for name, shape in shapes.items()}
    inputs._write(arrays, step)
    for name, array in arrays.items():
        rows = getattr(padded, name).cpu().numpy()
        assert rows[: len(array)].tolist() == array.tolist(), name
        assert not rows[len(array) :].any(), f"{name}: the rows after the batch are not zero"


@EMULATED
@pytest.mark.catches("a-copy-an-array")
def test_seven_arrays_take_one_copy() -> None:
    """A launch costs the CPU as much for 16 bytes as for 16,000."""
    inputs = StaticInputs(LIMITS, 16, graphs().device)
    with logged() as log:
        inputs.fill(batch_of(9, 17, 30), 4, 4)
    to_the_device = [work.op for work in log.writes_to(inputs._device)]
    assert to_the_device == ["copy_"], "one copy to self._device, and nothing else"


@EMULATED
def test_the_copy_comes_out_of_the_staging_and_nobody_waits_for_it() -> None:
    inputs = StaticInputs(LIMITS, 16, graphs().device)
    with logged() as log:
        inputs.fill(batch_of(9, 17, 30), 4, 4)
    copies = log.writes_to(inputs._device)
    assert all(copy.reads_from(inputs._staging) for copy in copies), "it copies something else"
    waits = [copy.host_waits for copy in copies]
    assert waits == [False], "say non_blocking=True: the host has other things to do"


@EMULATED
@pytest.mark.parametrize("rung", [1, 2, 4])
def test_the_copy_goes_as_far_as_the_step_reaches_and_no_further(rung: int) -> None:
    inputs = StaticInputs(LIMITS, 16, graphs().device)
    with logged() as log:
        step = inputs.fill(batch_of(9), rung, rung)
    (copy,) = log.writes_to(inputs._device)
    copied_bytes = copy.writes[0].end - inputs._device.data_ptr()
    reached_bytes = end_of(step) - inputs._device.data_ptr()
    assert copied_bytes == reached_bytes, "the copy ends elsewhere than the rows of the step"


@pytest.mark.catches("input-rebound")
def test_a_graph_sees_each_new_batch() -> None:
    inputs = StaticInputs(LIMITS, 16, graphs().device)
    runner = runner_of(lambda rung: inputs.view(rung, rung).slot_mapping * 1, [4])
    addresses = [tensor.data_ptr() for tensor in vars(inputs.view(4, 4)).values()]
    runner.capture()
    for contexts in ((3, 9, 14, 30), (4, 10, 15), (1,)):
        step = inputs.fill(batch_of(*contexts), 4, 4)
        seen = runner.replay(4).tolist()
        slots = [(8 * i + 1) * BLOCK_SIZE + c - 1 for i, c in enumerate(contexts)]
        assert seen == slots + [0] * (4 - len(slots)), "the graph read another batch"
        assert [tensor.data_ptr() for tensor in vars(step).values()] == addresses


@pytest.mark.catches("stale-padding")
def test_padded_rows_write_to_the_null_block_whoever_sat_there_before() -> None:
    inputs = StaticInputs(LIMITS, 16, graphs().device)
    inputs.fill(batch_of(9, 17, 30, 5), 4, 4)
    step = inputs.fill(batch_of(10, 18), 4, 4)
    blocks = [slot // BLOCK_SIZE for slot in step.slot_mapping[2:].tolist()]
    assert blocks == [0, 0], f"padded rows write into blocks {blocks}, which are somebody's"
    assert step.context_lens[2:].tolist() == [0, 0], "padded rows have a context to attend to"


# ---------------------------------------------------------------- 5: the next step


@pytest.mark.catches("token-not-fed-back", "position-not-advanced", "slot-not-moved")
def test_the_inputs_of_the_next_step_are_those_that_a_host_would_have_sent() -> None:
    prompts = some_prompts(3, seed=8)
    model, inputs = decoding(prompts, rows=4)
    tables, start = inputs.block_table.tolist(), [len(p) for p in prompts]
    addresses = [tensor.data_ptr() for tensor in vars(inputs).values()]
    for step in range(1, 15):
        sampled = [7 * step % 61, 11 * step % 61, step, 0]
        model.advance(inputs, ints(sampled))
        positions = [n + step for n in start]
        slots = [t[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE
                 for p, t in zip(positions, tables, strict=False)]  # fmt: skip
        context_lens = [p + 1 for p in positions]
        found = {name: getattr(inputs, name).tolist() for name in CHANGING}
        assert found["input_ids"] == sampled
        assert found["positions"] == [*positions, 0]
        assert found["context_lens"] == [*context_lens, 0]
        assert found["slot_mapping"] == [*slots, 0]
    assert [tensor.data_ptr() for tensor in vars(inputs).values()] == addresses
    assert inputs.block_table.tolist() == tables


@pytest.mark.catches("token-not-fed-back", "position-not-advanced", "slot-not-moved")
@pytest.mark.parametrize("requests", [1, 2, 3])
def test_a_step_is_followed_by_the_next_on_the_device_alone(requests: int) -> None:
    prompts = some_prompts(requests, seed=requests)
    model, inputs = decoding(prompts, rows=4)
    written = []
    for _ in range(9):
        hidden = model.body(inputs, DecodeAttention(BLOCKS, BLOCK_SIZE))
        tokens = model.head(hidden, inputs)[1]
        written.append(tokens.tolist())
        model.advance(inputs, tokens)
    for row, prompt in enumerate(prompts):
        assert_alone([tokens[row] for tokens in written], prompt)


@pytest.mark.catches("padded-rows-come-alive")
def test_a_padded_row_stays_a_padded_row_whatever_it_samples() -> None:
    model, inputs = decoding(some_prompts(1, seed=9), rows=3)
    for _ in range(3):
        model.advance(inputs, ints([5, 6, 7]))
        for name in CHANGING:
            padded = getattr(inputs, name)[1:].tolist()
            assert padded == [0, 0], f"{name} of padded rows"


@pytest.mark.catches("room-is-the-blocks", "room-is-the-models", "last-position-unused")
@pytest.mark.parametrize(("blocks", "end"), [(8, 32), (12, 40)], ids=["blocks", "model"])
def test_a_request_uses_its_last_position_and_stays_there(blocks: int, end: int) -> None:
    """8 blocks have room for 32 tokens; 12 have room for 48, but the model has 40 positions."""
    model, table = new_model(1 + blocks), list(range(1, 1 + blocks))
    inputs = decode_inputs(token=5, context=end - 3, table=table)
    for context in (end - 2, end - 1, end, end, end):
        model.advance(inputs, ints([1]))
        context_lens, positions = inputs.context_lens.tolist(), inputs.positions.tolist()
        slot_mapping = inputs.slot_mapping.tolist()
        assert context_lens == [context]
        assert positions == [context - 1]
        assert slot_mapping == [BLOCK_SIZE + context - 1]


@pytest.mark.parametrize("token", [5, 0])
def test_a_request_of_one_token_is_no_padding_and_token_0_is_a_token(token: int) -> None:
    model = new_model(1 + BLOCKS)
    inputs = decode_inputs(token=token, context=1, table=range(1, 1 + BLOCKS))
    model.advance(inputs, ints([7]))
    assert inputs.input_ids.tolist() == [7]
    assert inputs.context_lens.tolist() == [2]


def test_what_goes_on_after_its_last_block_writes_into_the_null_block() -> None:
    model = new_model(1 + BLOCKS)
    inputs = decode_inputs(token=5, context=2 * BLOCK_SIZE, table=[6, 3, 0, 0])
    for _ in range(BLOCK_SIZE):
        model.advance(inputs, ints([1]))
        block = int(inputs.slot_mapping) // BLOCK_SIZE
        assert block == 0, "only two of its four blocks are its own"


def test_advance_leaves_the_tokens_and_what_does_not_change_as_they_were() -> None:
    model, inputs = decoding(some_prompts(2, seed=12), rows=3)
    tokens = ints([5, 6, 7])
    constant = {name: getattr(inputs, name).clone() for name in ("query_lens", "last_rows")}
    model.advance(inputs, tokens)
    assert tokens.tolist() == [5, 6, 7], "tokens was written to: the next step may still read it"
    for name, before in constant.items():
        assert torch.equal(getattr(inputs, name), before), f"{name} was changed"


def test_advance_refuses_a_step_with_more_tokens_than_requests() -> None:
    model = new_model(9)
    step = prompt_step([1, 2, 3], range(1, 9))
    with pytest.raises(ValueError):
        model.advance(step, ints([4]))


@EMULATED
@pytest.mark.catches("item-in-capture")
def test_advance_can_be_captured() -> None:
    model, inputs = decoding(some_prompts(2, seed=13), rows=3)
    tokens, graph = ints([5, 6, 7]), graphs().CUDAGraph()
    context_lens = inputs.context_lens.tolist()
    with graphs().graph(graph, pool=graphs().graph_pool_handle(), stream=graphs().Stream()):
        model.advance(inputs, tokens)
    graph.replay()
    assert inputs.context_lens.tolist() == [n + (n > 0) for n in context_lens]


# ---------------------------------------------------------------- 6: k steps a replay


@pytest.mark.catches("kept-buffer")
def test_the_tokens_of_every_step_come_back() -> None:
    (prompt,) = prompts = some_prompts(1, seed=20)
    model, inputs = decoding(prompts, rows=1)
    tokens = model.decode(inputs, DecodeAttention(BLOCKS, BLOCK_SIZE), 7)
    assert tokens.shape == (7, 1)
    assert tokens.dtype == torch.int32
    assert_alone(tokens[:, 0].tolist(), prompt)
    assert inputs.context_lens.tolist() == [len(prompt) + 8]


@pytest.mark.catches("always-greedy")
def test_every_step_is_sampled_as_the_caller_says() -> None:
    """By the token that the model likes least, in place of the one that it likes best."""
    prompts = some_prompts(2, seed=21)
    contexts = [[len(p) + 1 + step for p in prompts] for step in range(4)]
    asked = []

    def least(logits: Tensor, context_lens: Tensor) -> Tensor:
        asked.append(context_lens.tolist())
        return logits.argmin(-1).int()

    model, inputs = decoding(prompts, rows=2)
    by_hand, same = decoding(prompts, rows=2)
    attention, wanted = DecodeAttention(BLOCKS, BLOCK_SIZE), []
    for _ in range(4):
        logits, _ = by_hand.head(by_hand.body(same, attention), same)
        wanted.append(logits.argmin(-1).tolist())
        by_hand.advance(same, ints(wanted[-1]))
    tokens = model.decode(inputs, attention, 4, least).tolist()
    assert tokens == wanted
    assert asked == contexts, "each step samples once, of the context that it has by then"


@pytest.mark.catches("next-step-by-hand")
def test_a_model_with_a_next_step_of_its_own_decodes_by_it() -> None:
    """As `FusedModel` does, which samples and advances in one kernel."""
    prompts, asked = some_prompts(2, seed=22), []

    class Own(Model):
        def next_step(
            self, hidden: Tensor, inputs: StepInputs, sample: Sampler = greedy
        ) -> tuple[Tensor, Tensor]:
            asked.append(inputs.context_lens.tolist())
            return super().next_step(hidden, inputs, sample)

    plain, inputs = decoding(prompts, rows=2)
    own = Own(plain.weights, plain.cache)
    own.decode(inputs, DecodeAttention(BLOCKS, BLOCK_SIZE), 3)
    by_next_step = [[len(p) + 1 + step for p in prompts] for step in range(3)]
    assert asked == by_next_step, "decode goes from step to step by the model's own next_step"


@pytest.mark.catches("item-in-capture", "kept-buffer")
@pytest.mark.parametrize(("steps", "replays"), [(1, 6), (2, 3), (4, 1)])
def test_replays_of_k_steps_write_what_the_model_writes_alone(steps: int, replays: int) -> None:
    prompts = some_prompts(2, seed=10 + steps)
    model, inputs = decoding(prompts, rows=3)
    start = [tensor.clone() for tensor in vars(inputs).values()]
    attention = DecodeAttention(BLOCKS, BLOCK_SIZE)
    runner = runner_of(lambda _: model.decode(inputs, attention, steps), [3])
    runner.capture()
    for tensor, value in zip(vars(inputs).values(), start, strict=True):
        tensor.copy_(value)  # the warm-up has run k steps
    written = torch.cat([runner.replay(3).clone() for _ in range(replays)])
    assert written.shape == (steps * replays, 3)
    for row, prompt in enumerate(prompts):
        assert_alone(written[:, row].tolist(), prompt)


# ---------------------------------------------------------------- all of it


@pytest.mark.catches("stale-padding", "input-rebound")
@pytest.mark.parametrize("seed", range(2))
def test_every_request_of_a_server_gets_the_tokens_it_gets_alone(seed: int) -> None:
    """Requests come and go, so a rung of 4 is full, then padded; whole engine, FULL graphs."""
    rng = random.Random(seed)
    requests = [
        Request(str(i), prompt, rng.randint(2, 9)) for i, prompt in enumerate(some_prompts(6, seed))
    ]
    dispatcher = GraphDispatcher("FULL_DECODE_ONLY", [2, 4], LIMITS.max_num_seqs)
    runner = TorchRunner(new_model(LIMITS.num_blocks), LIMITS, dispatcher, graphs())
    runner.capture()
    modes = set()
    serving = Engine(runner, LIMITS, dispatcher)
    done = serving.run(requests, on_step=lambda r: modes.add(r.descriptor.mode))
    assert CUDAGraphMode.FULL in modes
    for completion in done:
        prompt = tuple(completion.request.prompt)
        assert list(completion.tokens) == alone(prompt, completion.request.max_new_tokens)
