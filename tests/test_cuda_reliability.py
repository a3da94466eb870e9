"""The CUDA wing over a long time and on a bad day: thousands of steps, poison, Ctrl-C, no memory.

All of it runs on the emulator; on a machine with a GPU, `make gpu` runs it on the GPU as well.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import pytest
from rich.console import Console

from mini_engine.capacity import kv_bytes_per_token, weight_bytes
from mini_engine.cli import main
from mini_engine.cli.measuring import backend_of
from mini_engine.config import ModelConfig, named_shape
from mini_engine.generation import SHIPPED

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

from mini_engine.cuda import backend as backend_room  # noqa: E402
from mini_engine.cuda import calibrate, emulator, graphs, interrupts, runner  # noqa: E402
from mini_engine.cuda import generate as generate_room  # noqa: E402
from mini_engine.cuda.arms import ARMS  # noqa: E402
from mini_engine.cuda.backend import GraphBackend, graphs_for  # noqa: E402
from mini_engine.cuda.graphs import GraphRunner  # noqa: E402
from mini_engine.cuda.interrupts import interrupts_wait  # noqa: E402
from mini_engine.cuda.model import KVCache, Model  # noqa: E402
from mini_engine.cuda.runner import TorchRunner  # noqa: E402
from mini_engine.cuda.weights import Weights, no_room, random_weights  # noqa: E402
from mini_engine.dispatch import BatchDescriptor, CUDAGraphMode, GraphDispatcher  # noqa: E402
from mini_engine.engine import Engine  # noqa: E402
from mini_engine.scheduler import (  # noqa: E402
    Request,
    RequestState,
    ScheduledBatch,
    ScheduledRequest,
    SchedulerLimits,
)
from tests import sanitizer_cases  # noqa: E402
from tests.kernel_cases import interpreting_environment  # noqa: E402
from tests.lockstep import Lockstep, Traffic, Watch, Watched, random_traffic  # noqa: E402
from tests.torch_helpers import DEVICES, TINY, TOLERANCE  # noqa: E402

ONE_LAYER = replace(TINY, num_layers=1, head_dim=16)  # 16: the least that the kernels take
# Four rungs for up to six requests: batches of 1, 3 and 5 are padded. 19 blocks of 4 tokens for
# requests of up to 32: six of them do not fit, so the youngest are preempted.
LIMITS = SchedulerLimits(
    max_num_seqs=6, max_num_batched_tokens=12, num_blocks=20, block_size=4, max_model_len=32
)
RUNGS = (2, 4, 6, 12)
Kernels = Literal[0, 5, 9]  # a layer; 0: the plain model
SLOW = os.environ.get("HYPOTHESIS_PROFILE") == "slow"
ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(autouse=True, scope="module")
def small_heap() -> Iterator[None]:
    """Captures collect garbage: they need not look at all that is alive before these tests."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@cache
def weights_on(device: str, dtype: torch.dtype) -> Weights:
    return random_weights(ONE_LAYER, torch.device(device), dtype, seed=3)


def runner_of(
    mode: str,
    device: str = "cpu",
    weights: Weights | None = None,
    kernels: Kernels = 0,
    rungs: tuple[int, ...] = RUNGS,
) -> TorchRunner:
    """A runner that has captured nothing yet."""
    weights = weights or weights_on(device, torch.float32)
    where, dtype = weights.embed.device, weights.embed.dtype
    cache = KVCache.allocate(ONE_LAYER, LIMITS.num_blocks, LIMITS.block_size, where, dtype)
    model = Model(weights, cache)
    if kernels:
        fused = pytest.importorskip("mini_engine.cuda.fused")
        model = fused.FusedModel(weights, cache, kernels_per_layer=kernels)
    dispatcher = GraphDispatcher(mode, () if mode == "NONE" else rungs, LIMITS.max_num_seqs)
    return TorchRunner(model, LIMITS, dispatcher, graphs_for(device))


# ---------------------------------------------------------------- ten thousand steps

# float32: the order of sums differs. bf16: four times what its roundings do to these logits, of
# size 4 at most, when the same test runs in bf16 on a CPU (0.065).
NEAR = {torch.float32: TOLERANCE, torch.bfloat16: 0.25}
PLAIN: list[tuple[str, Kernels]] = [("FULL", 0), ("FULL_AND_PIECEWISE", 0)]
FUSED: list[tuple[str, Kernels]] = [("FULL_AND_PIECEWISE", 5), ("FULL_AND_PIECEWISE", 9)]


def long_run(
    device: str, dtype: torch.dtype, ways: list[tuple[str, Kernels]], steps: int
) -> tuple[Traffic, Lockstep]:
    """Serve random traffic on all these ways at once, next to an eager runner of the plain model.

    Fails at the first step that differs, when a logit was not finite, and when memory is missing
    at the end.
    """
    weights = weights_on(device, dtype)
    eager = Watched.of(runner_of("NONE", device, weights))
    graphs = [Watched.of(runner_of(mode, device, weights, kernels)) for mode, kernels in ways]
    for one in graphs:
        assert not one.runner.capture().dropped
    together = Lockstep(eager, graphs, NEAR[dtype])
    engine = Engine(together, LIMITS, eager.runner.dispatcher)
    pools = [pool_bytes(one.runner) for one in graphs]

    seen = random_traffic(engine, steps, ONE_LAYER.vocab_size, seed=0)

    assert seen.decode_steps >= steps
    assert seen.sizes == set(range(1, 7))
    assert min(seen.preemptions, seen.stopped) > steps / 200  # it was not an easy ride
    assert together.all_finite
    assert engine.scheduler.pool.num_free == LIMITS.num_blocks - 1
    assert not engine.scheduler.has_unfinished
    assert [pool_bytes(one.runner) for one in graphs] == pools
    return seen, together


def pool_bytes(runner: TorchRunner) -> int:
    return runner.backend.pool_bytes(runner.pool)


@pytest.mark.parametrize("device", DEVICES)
def test_ten_thousand_steps_of_joins_and_leaves_write_what_eager_writes(device: str) -> None:
    ways = PLAIN if device == "cpu" else PLAIN + FUSED
    _, together = long_run(device, torch.float32, ways, 10_000)
    full, both, *_ = together.graphs
    assert set(full.modes) == {CUDAGraphMode.FULL}
    assert set(both.modes) == {CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE}
    assert both.modes[CUDAGraphMode.PIECEWISE] > 1000
    for one in together.graphs:
        assert one.padded_steps > 3000
        assert one.ties < 5


@pytest.mark.parametrize("device", DEVICES)
def test_the_kernels_serve_a_random_crowd_in_graphs(device: str) -> None:
    """On a CPU their references do: what is served then is the wiring."""
    long_run(device, torch.float32, FUSED, 400)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")
def test_ten_thousand_steps_in_bf16_stay_as_near_as_rounding_allows() -> None:
    long_run("cuda", torch.bfloat16, PLAIN + FUSED, 10_000)


def test_the_long_run_notices_a_padded_row_that_keeps_its_old_slot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fault of nano-vllm's issue 89, of its kind: padding writes K and V where someone lives."""
    from mini_engine.cuda.inputs import StaticInputs

    fill = StaticInputs.fill

    def careless(self: StaticInputs, batch: ScheduledBatch, *size: int) -> Any:
        kept = self._whole.slot_mapping.clone()
        step = fill(self, batch, *size)
        step.slot_mapping[batch.num_tokens :] = kept[batch.num_tokens : len(step.slot_mapping)]
        return step

    monkeypatch.setattr(StaticInputs, "fill", careless)
    with pytest.raises(AssertionError, match=r"FULL: off by|token \d+, eagerly"):
        long_run("cpu", torch.float32, PLAIN, 400)


# ---------------------------------------------------------------- poison

POISON = [float("nan"), float("inf"), -3e38]
# Token 0 is the token of a padded row. Its embedding is poisoned, and nobody else's: the head must
# not be tied to it.
UNTIED = replace(ONE_LAYER, tie_word_embeddings=False)


@dataclass
class Poisoned:
    """Two runners that differ in nothing but what padding may touch."""

    clean: Watched
    poisoned: Watched

    @classmethod
    def of(cls, mode: str, kernels: Kernels, device: str, poison: float) -> Poisoned:
        made = []
        for value in (None, poison):
            weights = random_weights(UNTIED, torch.device(device), torch.float32, seed=3)
            if value is not None:
                weights.embed[0] = value
            made.append(Watched.of(runner_of(mode, device, weights, kernels)))
            made[-1].runner.capture()
        return cls(*made)

    def fill_caches(self, live: list[int], poison: float) -> list[Tensor]:
        """The same random K and V in both; what is not in a live slot is poison in one of them.

        Returns that one's caches, as they are now.
        """
        ours, theirs = (one.runner.model.cache for one in (self.clean, self.poisoned))
        device = ours.keys[0].device
        generator = torch.Generator(device).manual_seed(1)
        dead = torch.ones(LIMITS.num_blocks * LIMITS.block_size, dtype=torch.bool)
        dead[live] = False
        for one, other in zip(
            (*ours.keys, *ours.values), (*theirs.keys, *theirs.values), strict=True
        ):
            one.normal_(generator=generator)
            other.copy_(one).flatten(0, 1)[dead.to(device)] = poison
        return [cache.clone() for cache in (*theirs.keys, *theirs.values)]


def batch_of(chunks: list[tuple[int, int]], first_block: int = 1) -> ScheduledBatch:
    """Requests of (start, query_len) without token 0, each in blocks of its own."""
    entries, block = [], first_block
    for name, (start, query_len) in enumerate(chunks):
        prompt = [1 + (7 * name + i) % (ONE_LAYER.vocab_size - 1) for i in range(start + query_len)]
        blocks = -(-len(prompt) // LIMITS.block_size)
        table, block = tuple(range(block, block + blocks)), block + blocks
        state = RequestState(Request(str(name), prompt, 9))
        prefill = query_len > 1
        entries.append(ScheduledRequest(state, start, query_len, table, prefill, samples=True))
    assert block <= LIMITS.num_blocks
    return ScheduledBatch(tuple(entries))


def slots_of(batch: ScheduledBatch) -> tuple[list[int], list[int]]:
    """Slots that hold a live context, and of these the ones that this step writes."""
    live, written = [], []
    for entry in batch.entries:
        own = [
            b * LIMITS.block_size + i for b in entry.block_table for i in range(LIMITS.block_size)
        ]
        live += own[: entry.context_len]
        written += own[entry.start : entry.context_len]
    return live, written


DECODES = [[(5, 1)], [(5, 1), (9, 1), (0, 1)], [(3, 1)] * 5]  # on rungs of 2, 4 and 6
MIXED = [[(6, 1), (2, 3), (0, 5)], [(0, 7)]]  # on a rung of 12
WAYS: dict[str, tuple[str, Kernels, list[list[tuple[int, int]]]]] = {
    "full": ("FULL", 0, DECODES + MIXED),
    "full decode": ("FULL_DECODE_ONLY", 0, DECODES),
    "piecewise": ("PIECEWISE", 0, DECODES + MIXED),
    "five kernels": ("FULL_DECODE_ONLY", 5, DECODES),
    "nine kernels": ("FULL_DECODE_ONLY", 9, DECODES),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("poison", POISON)
@pytest.mark.parametrize("way", WAYS)
def test_a_padded_row_changes_no_bit_of_a_live_one(way: str, poison: float, device: str) -> None:
    """Padded rows are poison from their embedding on, and so is every slot that is nobody's."""
    mode, kernels, batches = WAYS[way]
    two = Poisoned.of(mode, kernels, device, poison)
    for chunks in batches:
        batch = batch_of(chunks)
        live, written = slots_of(batch)
        for one in (two.clean, two.poisoned):  # a step before it leaves its rows behind
            one.execute(batch_of([(1, 1)] * 6, first_block=8))
        before = two.fill_caches(live, poison)
        tokens = [one.execute(batch) for one in (two.clean, two.poisoned)]
        assert two.poisoned.padded_steps > 0
        assert two.poisoned.modes[CUDAGraphMode.NONE] == 0
        assert tokens[0] == tokens[1]
        ours, theirs = (one.watch.logits[: batch.num_reqs] for one in (two.clean, two.poisoned))
        assert torch.equal(ours, theirs)  # bitwise: the same sums in the same order
        untouched = torch.ones(LIMITS.num_blocks * LIMITS.block_size, dtype=torch.bool)
        untouched[written] = False
        untouched[: LIMITS.block_size] = False  # the null block is padding's own
        clean, cache = (one.runner.model.cache for one in (two.clean, two.poisoned))
        for was, now, should in zip(
            before, (*cache.keys, *cache.values), (*clean.keys, *clean.values), strict=True
        ):
            assert torch.equal(bits(now)[written], bits(should)[written])
            assert torch.equal(bits(now)[untouched], bits(was)[untouched])


def bits(cache: Tensor) -> Tensor:
    """A cache by slots, so that NaN equals itself. (slots, kv_heads · D) int32, on the CPU"""
    return cache.flatten(0, 1).flatten(1).cpu().view(torch.int32)


# ---------------------------------------------------------------- Ctrl-C

REQUESTS = [Request(str(i), tuple(range(1 + i, 6 + 2 * i)), 6) for i in range(3)]


def served(runner: TorchRunner) -> tuple[dict[str, tuple[int, ...]], set[CUDAGraphMode]]:
    """The tokens of three requests, and the modes that wrote them."""
    modes: set[CUDAGraphMode] = set()
    engine = Engine(runner, LIMITS, runner.dispatcher)
    done = engine.run(REQUESTS, on_step=lambda step: modes.add(step.descriptor.mode))
    return {one.request_id: one.tokens for one in done}, modes


@cache
def tokens_served_eagerly(device: str) -> dict[str, tuple[int, ...]]:
    return served(runner_of("NONE", device))[0]


def assert_as_before_a_capture(runner: TorchRunner, device: str) -> None:
    """Nothing is left of it; the engine serves eagerly, captures again, and serves from graphs."""
    assert not runner.backend.is_current_stream_capturing()
    assert gc.isenabled()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert not runner.full.captured
    assert not runner.piecewise.captured
    assert pool_bytes_after_cleaning(runner) == 0
    assert served(runner) == (tokens_served_eagerly(device), {CUDAGraphMode.NONE})
    assert not runner.capture().dropped
    tokens, modes = served(runner)
    assert tokens == tokens_served_eagerly(device)
    assert CUDAGraphMode.NONE not in modes


def pool_bytes_after_cleaning(runner: TorchRunner) -> int:
    gc.collect()
    if not runner.backend.emulated:
        torch.cuda.empty_cache()
    return pool_bytes(runner)


LADDER = (4, 12)  # of the runs that are interrupted: short, and every batch has its rung
# The files between whose lines Ctrl-C is pressed. What the model and the emulator do lies between.
TRACED = {room.__file__ for room in (graphs, interrupts, runner)}


def with_ctrl_c(work: Callable[[], object], line: int | None) -> int:
    """Run it and press Ctrl-C before the `line`-th line of TRACED; how many lines there were."""
    lines = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        if frame.f_code.co_filename not in TRACED:
            return None
        if event == "line":
            lines += 1
            if lines == line:
                signal.raise_signal(signal.SIGINT)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return lines


@pytest.mark.parametrize("device", DEVICES)
def test_ctrl_c_before_any_line_of_a_capture_leaves_no_broken_state(device: str) -> None:
    """Every 13th line of some 300, and each of them with HYPOTHESIS_PROFILE=slow."""
    lines = with_ctrl_c(runner_of("FULL_AND_PIECEWISE", device, rungs=LADDER).capture, None)
    assert lines > 200
    for line in range(1, lines + 1, 1 if SLOW else 13):
        runner = runner_of("FULL_AND_PIECEWISE", device, rungs=LADDER)
        with pytest.raises(KeyboardInterrupt):
            with_ctrl_c(runner.capture, line)
        if runner.dispatcher.graphs_captured:  # it came when all was done
            assert sorted(runner.full.captured) == [4]
            assert sorted(runner.piecewise.captured) == [4, 12]
            assert served(runner)[0] == tokens_served_eagerly(device)
        else:
            assert_as_before_a_capture(runner, device)


@pytest.mark.parametrize("device", DEVICES)
def test_ctrl_c_inside_a_rung_comes_when_the_rung_is_done(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, told = runner_of("FULL_AND_PIECEWISE", device, rungs=LADDER), []
    press_in_capture(runner, monkeypatch, times=1)
    with pytest.raises(KeyboardInterrupt):
        runner.capture(told.append)
    assert told == [12]  # the largest piecewise rung was captured, the next not begun
    monkeypatch.undo()
    assert_as_before_a_capture(runner, device)


@pytest.mark.parametrize("device", DEVICES)
def test_ctrl_c_pressed_twice_does_not_wait_and_leaves_no_broken_state_either(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, told = runner_of("FULL_AND_PIECEWISE", device, rungs=LADDER), []
    press_in_capture(runner, monkeypatch, times=2)
    with pytest.raises(KeyboardInterrupt):
        runner.capture(told.append)
    assert told == []
    monkeypatch.undo()
    assert_as_before_a_capture(runner, device)


def press_in_capture(runner: TorchRunner, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Press Ctrl-C in the middle of each capture of the body, not in its warm-ups."""
    body = runner.model.body

    def pressed(*args: Any) -> Tensor:
        hidden = body(*args)
        if runner.backend.is_current_stream_capturing():
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)
        return hidden

    monkeypatch.setattr(runner.model, "body", pressed)


@pytest.mark.parametrize("device", DEVICES)
def test_an_error_in_the_last_rung_takes_back_the_ones_before_it(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces that were captured before a full graph failed are no state to serve from."""
    runner = runner_of("FULL_AND_PIECEWISE", device, rungs=LADDER)
    head = runner.model.head

    def failing(*args: Any) -> tuple[Tensor, Tensor]:
        if runner.backend.is_current_stream_capturing():  # the head is in full graphs only
            raise KeyError("a bug")
        return head(*args)

    monkeypatch.setattr(runner.model, "head", failing)
    with pytest.raises(KeyError, match="a bug"):
        runner.capture()
    monkeypatch.undo()
    assert_as_before_a_capture(runner, device)


@pytest.mark.parametrize("device", DEVICES)
def test_after_a_capture_that_the_device_gave_up_the_engine_goes_on(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pool is spoiled for good (see backend.py): the next capture takes another."""
    runner = runner_of("FULL_AND_PIECEWISE", device, rungs=LADDER)
    head = runner.model.head

    def reading(*args: Any) -> tuple[Tensor, Tensor]:
        logits, tokens = head(*args)
        tokens.sum().item()  # not permitted while capturing
        return logits, tokens

    monkeypatch.setattr(runner.model, "head", reading)
    with pytest.raises(RuntimeError, match="not permitted|captur"):
        runner.capture()
    monkeypatch.undo()
    assert_as_before_a_capture(runner, device)


def test_before_any_capture_every_batch_runs_eagerly() -> None:
    runner = runner_of("FULL_AND_PIECEWISE")
    assert served(runner) == (tokens_served_eagerly("cpu"), {CUDAGraphMode.NONE})


def test_who_handles_ctrl_c_himself_goes_on_doing_so() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    try:
        with interrupts_wait() as check:
            signal.raise_signal(signal.SIGINT)
            check()
        assert heard == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_collector_stays_off_for_whom_it_was_off() -> None:
    gc.disable()
    try:
        runner_of("FULL", rungs=LADDER).capture()
        assert not gc.isenabled()
    finally:
        gc.enable()


# ---------------------------------------------------------------- out of memory


def test_when_memory_ends_the_largest_rungs_go_and_the_rest_serve() -> None:
    """The emulator's pools stand in for the GPU's memory: at every limit some prefix is dropped."""
    roomy = runner_of("FULL_AND_PIECEWISE")
    roomy.capture()
    whole, counts = pool_bytes(roomy), set()
    for percent in (0, 20, 40, 60, 80, 99):
        gc.collect()
        taken = emulator.mem_get_info()[1] - emulator.mem_get_info()[0]
        with emulator.memory_limit(taken + whole * percent // 100):
            runner = runner_of("FULL_AND_PIECEWISE")
            report = runner.capture()
            assert served(runner)[0] == tokens_served_eagerly("cpu")
        assert pool_bytes(runner) <= whole * percent // 100
        dropped = {CUDAGraphMode.PIECEWISE: [12, 6, 4, 2], CUDAGraphMode.FULL: [6, 4, 2]}
        for mode, captured in (
            (CUDAGraphMode.PIECEWISE, runner.piecewise.captured),
            (CUDAGraphMode.FULL, runner.full.captured),
        ):
            rungs = dropped[mode]
            kept = [d.num_tokens for d in runner.dispatcher.descriptors() if d.mode is mode]
            assert kept == list(captured) == rungs[len(rungs) - len(kept) :]
        counts.add(len(report.dropped))
        assert len(report.dropped) == 7 - len(report.rungs)
        assert bool(report.lines()) == bool(report.dropped)
        del runner
    assert {7, 0} & counts
    assert len(counts) > 2


@contextmanager
def little_memory(backend: GraphBackend, nbytes: int) -> Iterator[None]:
    """So much more can be allocated, by graph pools at least."""
    if backend.emulated:
        free, total = backend.mem_get_info()
        with emulator.memory_limit(total - free + nbytes):
            yield
        return
    torch.cuda.empty_cache()
    share = (torch.cuda.memory_reserved() + nbytes) / backend.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(share)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


MIB = 1 << 20


@pytest.mark.parametrize("device", DEVICES)
def test_memory_that_ends_in_the_middle_of_a_capture_is_given_back(device: str) -> None:
    """Each rung takes 16 MiB for each of its tokens, and only while it is being captured."""
    backend = graphs_for(device)
    x, pool = torch.ones(8, device=backend.device), backend.graph_pool_handle()

    def forward(rung: int) -> Tensor:
        if backend.is_current_stream_capturing():
            kept = [torch.zeros(16 * MIB // 4, device=backend.device) for _ in range(rung)]
            return torch.stack([one[0] for one in kept]) + x[:rung]
        return x[:rung] * 1

    graphs = GraphRunner(backend, forward, (1, 2, 8), pool)
    with little_memory(backend, 96 * MIB):
        report = graphs.capture()
    assert report.dropped == [8]
    assert [r.rung for r in report.rungs] == [2, 1]
    assert backend.pool_bytes(pool) <= 96 * MIB
    x.fill_(3.0)
    assert graphs.replay(2).tolist() == [3, 3]
    assert graphs.replay(1).tolist() == [3]
    graphs.reset()


class FailsToInstantiate:
    """`with graph(...)` that records, and then finds no memory for the nodes, as a driver may."""

    def __init__(self, inner: Any, message: str) -> None:
        self.inner, self.message = inner, message

    def __enter__(self) -> None:
        self.inner.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.inner.__exit__(*error)
        if error[0] is None:
            raise RuntimeError(self.message)


@pytest.mark.parametrize("device", DEVICES)
def test_a_driver_without_memory_for_nodes_drops_the_rung_too(device: str) -> None:
    backend = graphs_for(device)
    x, calls = torch.ones(8, device=backend.device), 0

    def second_fails(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        real = backend.graph(*args, **kwargs)
        if calls != 1:
            return real
        return FailsToInstantiate(real, "CUDA error: out of memory")

    limited = replace(backend, graph=second_fails)
    graphs = GraphRunner(limited, lambda rung: x[:rung] * 2, (2, 4), limited.graph_pool_handle())
    report = graphs.capture()
    assert report.dropped == [4]
    assert graphs.replay(2).tolist() == [2, 2]
    assert not backend.is_current_stream_capturing()


# ---------------------------------------------------------------- GPUs that are not there, or not up to it


class PretendGpu:
    """`torch.cuda` as it would be with another GPU, as far as decisions go; nothing can run on it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch

    def __call__(
        self,
        name: str,
        capability: tuple[int, int],
        free: int = 80 << 30,
        built: str = "sm_75 sm_90",
    ) -> GraphBackend:
        """The backend of this GPU: the emulator in its place, with so many bytes free."""
        answers: dict[str, object] = {
            "is_available": True,
            "get_device_name": name,
            "get_device_capability": capability,
            "get_arch_list": built.split(),
            "is_bf16_supported": capability >= (8, 0),
            "mem_get_info": (free, free),
            "memory_reserved": 0,
            "memory_allocated": 0,
            "current_device": 0,
        }
        for question, answer in answers.items():
            self._patch.setattr(torch.cuda, question, lambda *_, said=answer, **__: said)
        emulated = replace(graphs_for("cpu"), emulated=False, mem_get_info=lambda: (free, free))
        self._patch.setattr(
            backend_room, "_real", lambda _: emulated
        )  # what graphs_for("cuda") gives
        return emulated


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> PretendGpu:
    return PretendGpu(monkeypatch)


T4, A100 = ("Tesla T4", (7, 5)), ("NVIDIA A100", (8, 0))
WORDS = ["generate", "--backend", "cuda", "--prompt", "Return the", "--max-new-tokens", "8"]


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    """What a command said on standard error, which must be one line."""
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    return said


def generated(capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    assert main([*WORDS, "--json", *more]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


@pytest.fixture(scope="module")
def written() -> list[int]:
    """The tokens that the simulator writes for WORDS."""
    done = subprocess.run(
        [sys.executable, "-m", "mini_engine", "generate", *WORDS[3:], "--json"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    tokens: list[int] = json.loads(done.stdout)["prompts"][0]["tokens"]
    return tokens


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_generate_says_so_and_writes_on_the_cpu(
    written: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    told = generated(capsys)
    assert told["prompts"][0]["tokens"] == written
    [note] = told["notes"]
    assert (
        note == "PyTorch finds no CUDA GPU here: running on the CPU, in float32 and without graphs"
    )
    assert main(WORDS) == 0
    assert one_line(capsys) == note + "\n"


def test_a_gpu_older_than_this_pytorch_is_named_and_the_cpu_does_it(
    written: list[int], pretend: PretendGpu, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend("GeForce GTX 1080", (6, 1), built="sm_75 sm_80 sm_90a compute_120")
    told = generated(capsys)
    assert told["prompts"][0]["tokens"] == written
    assert "GeForce GTX 1080 is sm_61, and this PyTorch needs sm_75 or newer" in told["notes"][0]
    assert "running on the CPU" in told["notes"][0]


def test_a_gpu_without_bf16_writes_in_float32_from_graphs(
    written: list[int], pretend: PretendGpu, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(*T4)
    told = generated(capsys)
    assert told["prompts"][0]["tokens"] == written
    assert told["graphs"] > 0
    assert told["notes"] == [
        "Tesla T4 is sm_75 and has no bf16, as sm_80 has: running in float32, which takes twice the "
        "bytes"
    ]


def test_a_gpu_with_bf16_writes_in_bf16_and_needs_no_word(
    pretend: PretendGpu, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(*A100)
    used: list[torch.dtype] = []
    load = generate_room.load_weights
    monkeypatch.setattr(
        generate_room, "load_weights", lambda *args: used.append(args[-1]) or load(*args)
    )
    assert generated(capsys)["notes"] == []
    assert used == [torch.bfloat16]


def test_weights_that_do_not_fit_are_told_in_bytes_with_a_shape_that_would(
    pretend: PretendGpu, capsys: pytest.CaptureFixture[str]
) -> None:
    backend = pretend(*A100, free=8_000_000_000)
    reason = no_room(named_shape("qwen3-4b"), backend, "bf16")
    assert reason == (
        f"qwen3-4b needs {weight_bytes(named_shape('qwen3-4b')):,} bytes for its weights (bf16) and "
        "the GPU has 8,000,000,000 free: qwen3-1.7b would fit"
    )
    assert no_room(named_shape("qwen3-1.7b"), backend, "bf16") is None
    pretend(*A100, free=1_000_000)
    assert main(WORDS) == 2
    said = one_line(capsys)
    assert said.startswith("mini_engine generate: tiny-qwen3 needs ")
    assert "the GPU has 1,000,000 free: no shape that we know would fit" in said


def test_a_cache_that_does_not_fit_is_made_smaller_and_told(
    written: list[int], pretend: PretendGpu, capsys: pytest.CaptureFixture[str]
) -> None:
    config = ModelConfig.from_folder(SHIPPED)
    weights, block = weight_bytes(config), 16 * kv_bytes_per_token(config)
    pretend(*A100, free=int((weights + 5 * block) / 0.9) + 10)
    told = generated(capsys)
    assert len(told["prompts"][0]["tokens"]) == len(written)
    [note] = told["notes"]
    assert note.startswith("KV cache of 4 blocks of 16 tokens, ")
    assert f"{weights:,} of them go to the weights" in note
    assert main([*WORDS[:-1], "90"]) == 2  # more tokens than the cache can take
    assert "the cache has 4 beside the null block" in capsys.readouterr().err
    pretend(*A100, free=int((weights + block) / 0.9))
    assert main(WORDS) == 2
    assert "leaves no room for a KV cache: use a smaller model" in one_line(capsys)


def test_rungs_that_find_no_memory_are_told_by_generate(
    written: list[int],
    pretend: PretendGpu,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    backend = pretend(*T4)  # float32: the simulator's tokens

    def no_graphs(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")

    monkeypatch.setattr(backend_room, "_real", lambda _: replace(backend, graph=no_graphs))
    told = generated(capsys)
    assert told["prompts"][0]["tokens"] == written
    assert told["graphs"] == 0
    assert "out of memory while capturing: dropped rung" in told["notes"][-1]
    assert "every batch runs eagerly" in told["notes"][-1]


def test_memory_that_ends_while_serving_is_one_line(
    pretend: PretendGpu, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(*A100)

    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nSee more")

    monkeypatch.setattr(Model, "head", full)
    assert main([*WORDS, "--mode", "NONE"]) == 2
    said = one_line(capsys)
    assert (
        "tiny-qwen3 ran out of memory on cpu (CUDA out of memory. Tried to allocate 2.00 GiB.)"
        in said
    )
    assert "use a smaller model" in said


# -- the commands that measure


@pytest.mark.parametrize("command", ["bench", "calibrate"])
def test_measuring_without_bf16_is_refused_and_offered_the_emulator(
    command: str, pretend: PretendGpu, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(*T4)
    assert main([command, "--device", "cuda"]) == 2
    said = one_line(capsys)
    assert f"Tesla T4 is sm_75 and has no bf16, as sm_80 has, and {command} measures bf16" in said
    assert "--device cpu" in said
    console = Console(stderr=True, width=60)
    assert backend_of("auto", command, console).emulated
    assert one_line(capsys).endswith("measures bf16: the CPU emulator runs instead\n")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("command", ["bench", "calibrate"])
def test_measuring_without_a_gpu_says_that_it_emulates(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert backend_of("auto", command, Console(stderr=True)).emulated
    assert one_line(capsys) == "PyTorch finds no CUDA GPU here: the CPU emulator runs instead\n"
    assert main([command, "--device", "cuda"]) == 2
    assert "PyTorch finds no CUDA GPU here; use cpu" in one_line(capsys)


def test_programmatic_launch_is_for_gpus_that_have_it(pretend: PretendGpu) -> None:
    old, new = pretend(*A100), ("NVIDIA H200", (9, 0))
    for name, kind in ARMS.items():
        reason = kind.why_not(old)
        if name.startswith("graph-5-pdl"):
            assert reason == ("sm_80 has no programmatic dependent launch: this arm needs sm_90")
        elif name.startswith(("graph-", "ours-")):
            assert reason is None
    assert ARMS["graph-5-pdl"].why_not(pretend(*new)) is None


def test_without_triton_the_other_arms_are_still_there() -> None:
    program = (
        "import sys; sys.modules['triton'] = None\n"
        "from mini_engine.cuda.arms import ARMS\n"
        "from mini_engine.cuda.backend import graphs_for\n"
        "for name in ('ours-graph', 'graph-9', 'graph-5', 'graph-5-pdl'):\n"
        "    print(ARMS[name].why_not(graphs_for('cpu')))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    first, *others = done.stdout.splitlines()
    assert first == "None", done.stderr
    reason = "this arm's kernels are written in Triton, which is not installed: pip install triton"
    assert others == [reason] * 3


def test_a_shape_too_large_for_the_benchmark_is_told_arm_by_arm_and_the_next_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emulator, "mem_get_info", lambda: (4_000_000_000, 4_000_000_000))
    out = tmp_path / "bench.json"
    words = ["bench", "--device", "cpu", "--shape", "qwen3-1.7b,tiny", "--arms", "ours-eager"]
    words += ["--batch", "1", "--rounds", "2", "--steps", "2", "--context", "40", "-o", str(out)]
    assert main(words) == 0
    large, tiny = json.loads(out.read_text())["figures"]["rows"]
    assert large["status"] == "not run"
    assert large["reason"].endswith("4,000,000,000 free: qwen3-0.6b would fit")
    assert large["reason"].startswith("qwen3-1.7b needs 10,")
    assert tiny["status"] == "measured"


def test_a_small_gpu_is_calibrated_with_smaller_buffers_and_a_full_one_not(
    pretend: PretendGpu,
) -> None:
    assert calibrate.sizes_for(pretend(*A100), quick=False) == calibrate.FULL
    small = calibrate.sizes_for(pretend(*A100, free=6 << 30), quick=False)
    assert small == replace(calibrate.FULL, copy_bytes=3 << 29)
    with pytest.raises(ValueError, match="500,000,000 bytes of the GPU are free"):
        calibrate.sizes_for(pretend(*A100, free=500_000_000), quick=True)


# ---------------------------------------------------------------- compute-sanitizer


def test_the_cases_for_the_sanitizer_agree_in_the_interpreter() -> None:
    words = [sys.executable, "-m", "tests.sanitizer_cases", "--device", "cpu"]
    done = subprocess.run(
        words, cwd=ROOT, env=interpreting_environment(), capture_output=True, text=True, timeout=300
    )
    assert done.stdout == "8 cases agree with their references\n", done.stderr[-2000:]


def test_whole_steps_for_the_sanitizer_are_wired_up() -> None:
    with sanitizer_cases.references_only():
        sanitizer_cases.check(sanitizer_cases.whole_steps, "cpu", torch.float32)


def test_the_sanitizer_is_looked_for_where_it_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels, toolkit = tmp_path / "nvidia/cu13/bin", tmp_path / "cuda/bin"
    monkeypatch.setattr(sanitizer_cases.shutil, "which", lambda _: None)
    monkeypatch.setattr(sanitizer_cases.sysconfig, "get_path", lambda _: str(tmp_path))
    monkeypatch.setattr(sanitizer_cases, "TOOLKITS", tmp_path / "nowhere")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    assert sanitizer_cases.find_sanitizer() is None
    for place in (wheels, toolkit):
        place.mkdir(parents=True)
        (place / "compute-sanitizer").touch()
    assert sanitizer_cases.find_sanitizer() is None  # no program
    (wheels / "compute-sanitizer").chmod(0o755)
    assert sanitizer_cases.find_sanitizer() == str(wheels / "compute-sanitizer")
    monkeypatch.setenv("CUDA_HOME", str(toolkit.parent))
    (toolkit / "compute-sanitizer").chmod(0o755)
    assert sanitizer_cases.find_sanitizer() == str(toolkit / "compute-sanitizer")
    monkeypatch.setattr(sanitizer_cases.shutil, "which", lambda _: "/bin/compute-sanitizer")
    assert sanitizer_cases.find_sanitizer() == "/bin/compute-sanitizer"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")
def test_every_kernel_is_clean_under_memcheck() -> None:
    sanitizer = sanitizer_cases.find_sanitizer()
    if sanitizer is None:
        pytest.skip(sanitizer_cases.INSTALL)

    def watched(*more: str) -> subprocess.CompletedProcess[str]:
        words = sanitizer_cases.under(sanitizer) + ["-m", "tests.sanitizer_cases", *more]
        env = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
        return subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600)

    done = watched("--overrun")  # a sanitizer that sees nothing proves nothing
    assert done.returncode == sanitizer_cases.CRIED, done.stdout[-3000:]
    assert "Invalid __global__ read" in done.stdout
    done = watched()
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "17 cases agree with their references" in done.stdout
    assert "ERROR SUMMARY: 0 errors" in done.stdout
