"""The graph runners: rungs, padding, pools, pieces; and that every mode computes the same bits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_engine.sim import kernels as k
from mini_engine.sim.capture import CaptureError, PiecewiseGraph
from mini_engine.sim.device import Device
from mini_engine.sim.graphs import GraphRunner, StaticInputs
from mini_engine.sim.launch import Buffer, copy, kernel
from mini_engine.sim.memory import SEGMENT_BYTES
from mini_engine.sim.piecewise import PiecewiseGraphRunner
from tests.support.sim_helpers import small_device

WIDTH = 24
TOP = 8
SIZES = [1, 2, 4, 8]

# -- random programs -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """One launch of a random program on registers of shape (rows, WIDTH)."""

    op: str
    out: int
    ins: tuple[int, int]
    label: str


@dataclass(frozen=True)
class RandomProgram:
    steps: tuple[Step, ...]
    splitting: frozenset[str]
    weight: np.ndarray  # (WIDTH, WIDTH)


REGISTERS = 4
OPS = ("add", "multiply", "scale", "linear", "rms_norm", "silu_mul")


@st.composite
def programs(draw: st.DrawFn) -> RandomProgram:
    steps = draw(
        st.lists(
            st.builds(
                Step,
                st.sampled_from(OPS),
                st.integers(0, REGISTERS - 1),
                st.tuples(st.integers(0, REGISTERS - 1), st.integers(0, REGISTERS - 1)),
                st.sampled_from("abcd"),
            ),
            max_size=14,
        )
    )
    splitting = draw(st.frozensets(st.sampled_from("abcd"), max_size=3))
    seed = draw(st.integers(0, 2**31))
    weight = np.random.default_rng(seed).normal(size=(WIDTH, WIDTH)).astype(np.float32)
    return RandomProgram(tuple(steps), splitting, weight)


class Playground:
    """A random program on one device: run it eagerly, or give it to a runner."""

    def __init__(self, program: RandomProgram) -> None:
        self.program = program
        self.device = small_device()
        self.weight = self.device.upload(program.weight)
        self.norm_weight = self.device.upload(np.ones(WIDTH, np.float32))
        self.inputs = StaticInputs(self.device, {"x": ((TOP, WIDTH), "float32")})

    def forward(self, rows: int) -> Buffer:
        device, x = self.device, self.inputs.view(rows)["x"]
        with device.scratch() as scratch:
            registers = [scratch.empty(rows, WIDTH) for _ in range(REGISTERS)]
            for register in registers:
                device.launch(copy, register, x)
            for step in self.program.steps:
                self._launch(step, registers)
            return scratch.keep(registers[0])

    def eager(self, batch: np.ndarray) -> np.ndarray:
        self.device.copy_(self.inputs.view(len(batch))["x"], batch)
        out = self.forward(len(batch))
        result = self.device.read(out)
        self.device.free(out)
        return result

    def _launch(self, step: Step, registers: list[Buffer]) -> None:
        out, a, b = registers[step.out], registers[step.ins[0]], registers[step.ins[1]]
        launch, label = self.device.launch, step.label
        with self.device.scratch() as scratch:
            if step.op in ("add", "multiply"):
                launch(getattr(k, step.op), out, a, b, label=label)
            elif step.op == "scale":
                launch(k.scale, out, a, by=0.7, label=label)
            elif step.op == "rms_norm":
                launch(k.rms_norm, out, a, self.norm_weight, eps=1e-6, label=label)
            elif step.op == "linear":
                launch(copy, other := scratch.empty(*a.shape), a)  # out may be a
                launch(k.linear, out, other, self.weight, label=label)
            elif step.op == "silu_mul":
                both = scratch.empty(len(out), 2 * WIDTH)
                launch(side_by_side, both, a, b)
                launch(k.silu_mul, out, both, label=label)


@kernel()
def side_by_side(out: np.ndarray, left: np.ndarray, right: np.ndarray) -> None:
    out[:, :WIDTH], out[:, WIDTH:] = left, right


def runners_of(playground: Playground, splitting: frozenset[str]) -> dict[str, GraphRunner]:
    arguments = (playground.device, playground.forward, playground.inputs, SIZES)
    return {
        "full": GraphRunner(*arguments),
        "piecewise": PiecewiseGraphRunner(*arguments, splitting),
        "breakable": BreakableGraphRunner(*arguments, splitting),
    }


class BreakableGraphRunner(PiecewiseGraphRunner):
    """The same pieces from one breakable capture, without a list of launches to split."""

    def _record(self, rung: int) -> tuple[PiecewiseGraph, Buffer]:
        with self.device.capture_breakable(self.splitting_ops, self.pool) as graph:
            output = self.forward(rung)
        return graph, output


@given(programs(), st.lists(st.integers(1, TOP), min_size=1, max_size=3), st.integers(0, 2**31))
def test_eager_full_piecewise_and_breakable_are_bitwise_equal(
    program: RandomProgram, batch_sizes: list[int], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    playground = Playground(program)
    runners = runners_of(playground, program.splitting)
    for runner in runners.values():
        assert not runner.capture().dropped
    for size in batch_sizes:
        batch = rng.normal(size=(size, WIDTH)).astype(np.float32)
        together = playground.eager(batch)
        # batch invariance: a row alone gives what it gives among others
        alone = np.concatenate([playground.eager(row[None]) for row in batch])
        np.testing.assert_array_equal(alone, together)
        for name, runner in runners.items():
            replayed = playground.device.read(runner.run(size, {"x": batch}))
            np.testing.assert_array_equal(together, replayed, err_msg=name)
    pieces, broken = runners["piecewise"].graphs, runners["breakable"].graphs
    for rung in SIZES:
        assert isinstance(pieces[rung], PiecewiseGraph)
        assert [n.label for n in pieces[rung].live] == [n.label for n in broken[rung].live]
        assert len(broken[rung].graphs) == len(broken[rung].live) + 1


# -- the runner ----------------------------------------------------------------------------------


def doubling_runner(device: Device, sizes: list[int] = SIZES, **options: bool) -> GraphRunner:
    """y = 2x, and the forward counts its calls."""
    inputs = StaticInputs(device, {"x": ((max(sizes), 3), "float32")})

    def forward(rows: int) -> Buffer:
        out = device.empty((rows, 3))
        device.launch(k.scale, out, inputs.view(rows)["x"], by=2.0)
        return out

    return GraphRunner(device, forward, inputs, sizes, **options)


def rows(n: int, value: float = 1.0) -> dict[str, np.ndarray]:
    return {"x": np.full((n, 3), value, np.float32)}


def test_a_batch_is_padded_up_to_its_rung_and_sliced_back() -> None:
    device = small_device()
    runner = doubling_runner(device)
    runner.capture()
    before = device.counters.kernels
    out = runner.run(3, rows(3))
    assert (device.read(out) == 2).all()
    assert out.shape == (3, 3)
    assert runner.outputs[4].shape == (4, 3)
    assert out.address == runner.outputs[4].address
    assert device.counters.kernels == before + 1


def test_padding_rows_are_zeros_not_the_last_batch() -> None:
    device = small_device()
    runner = doubling_runner(device)
    runner.capture()
    runner.run(4, rows(4, 9.0))
    runner.run(3, rows(3))
    assert (device.read(runner.outputs[4])[3] == 0).all()


# -- memory --------------------------------------------------------------------------------------


def wide_runner(sizes: list[int], *, share_pool: bool = True, megabytes: int = 512) -> GraphRunner:
    """A forward with 4 MB of scratch a row, and a small output."""
    device = small_device(compute=False, megabytes=megabytes)
    inputs = StaticInputs(device, {"x": ((max(sizes), 3), "float32")})

    def forward(n: int) -> Buffer:
        with device.scratch() as scratch:
            out, wide = scratch.empty(n, 3), scratch.empty(n, 2**20)
            device.launch(k.scale, wide, inputs.view(n)["x"], by=2.0)
            device.launch(k.scale, out, wide, by=2.0)
            return scratch.keep(out)

    return GraphRunner(device, forward, inputs, sizes, share_pool=share_pool)


def graph_bytes(runner: GraphRunner) -> int:
    return sum(r.pool_growth_bytes for r in runner.capture().rungs)


def test_captured_largest_first_the_small_rungs_cost_nothing() -> None:
    report = wide_runner(SIZES).capture()
    assert [r.rung for r in report.rungs] == [8, 4, 2, 1]
    assert report.rungs[0].pool_growth_bytes == 32 * 2**20 + SEGMENT_BYTES
    assert [r.pool_growth_bytes for r in report.rungs[1:]] == [0, 0, 0]


def test_ascending_order_and_private_pools_both_pay_for_every_rung() -> None:
    descending = graph_bytes(wide_runner(SIZES))
    ascending = sum(r.pool_growth_bytes for r in wide_runner(SIZES).capture(order=SIZES).rungs)
    private = graph_bytes(wide_runner(SIZES, share_pool=False))
    scratch = (1 + 2 + 4 + 8) * 4 * 2**20
    assert descending == 8 * 4 * 2**20 + SEGMENT_BYTES
    assert ascending == scratch + SEGMENT_BYTES  # the outputs still share a segment
    assert private == scratch + 4 * SEGMENT_BYTES


def test_out_of_memory_while_capturing_drops_the_largest_rungs_says_so_and_goes_on() -> None:
    runner = wide_runner(SIZES, megabytes=24)  # the rung of 8 wants 34 MB
    report = runner.capture()
    assert report.dropped == [8]
    assert report.lines() == [
        "out of memory while capturing: dropped rung 8; batches above 4 run eagerly"
    ]
    runner.run(3, rows(3))
    with pytest.raises(CaptureError, match="fits no captured rung"):
        runner.run(5, rows(5))


# -- pieces --------------------------------------------------------------------------------------


def test_adjacent_splitting_ops_share_a_piece_and_layers_make_one_piece_more() -> None:
    device = small_device()
    inputs = StaticInputs(device, {"x": ((4, 3), "float32")})

    def forward(n: int) -> Buffer:
        out = device.empty((n, 3))
        for label in 2 * ["norm", "qkv", "kv_write", "attention", "mlp"]:
            device.launch(k.scale, out, inputs.view(n)["x"], by=2.0, label=label)
        return out

    runner = PiecewiseGraphRunner(device, forward, inputs, [4], {"attention", "kv_write"})
    report = runner.capture()
    assert report.graphs == 3
    assert len(runner.graphs[4].nodes) == 6
    launches = device.counters.launches
    device.read(runner.run(4, rows(4)))
    assert device.counters.launches - launches == 1 + 3 + 4  # a copy, the pieces, the live ops
