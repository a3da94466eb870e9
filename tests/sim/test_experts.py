"""A mixture of experts on the simulated device: one text in every mode, the step list's costs."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labs.support.inputs import random_weights
from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.engine.batch import Request
from mini_engine.engine.engine import Engine
from mini_engine.sim import kernels as k
from mini_engine.sim.device import Device
from mini_engine.sim.model import KVCache, Model, StepInputs
from mini_engine.sim.runner import SimRunner
from mini_engine.step.kernels import StepShape, step_ops
from tests.support.checkpoint_helpers import MIXTURE, lone_inputs
from tests.support.engine_helpers import ROOMY, VOCAB, tokens_by_id
from tests.support.sim_helpers import small_device

MODES = ["PIECEWISE", "FULL", "FULL_AND_PIECEWISE"]
WEIGHTS = random_weights(MIXTURE, seed=11)


def engine(mode: str) -> Engine:
    dispatcher = GraphDispatcher(mode, (1, 2, 4, 8), ROOMY.max_num_seqs)
    runner = SimRunner(small_device(megabytes=64), MIXTURE, WEIGHTS, ROOMY, dispatcher)
    runner.capture()
    return Engine(runner, ROOMY, dispatcher)


@cache
def alone(prompt: tuple[int, ...]) -> tuple[int, ...]:
    return engine("NONE").run([Request("alone", prompt, 6)])[0].tokens


@pytest.mark.parametrize(
    "mode", [*(pytest.param(mode, marks=pytest.mark.slow) for mode in MODES[:-1]), MODES[-1]]
)
@given(st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=9).map(tuple),
                min_size=1, max_size=5))  # fmt: skip
def test_a_request_gets_the_tokens_it_gets_alone(mode: str, prompts: list[tuple[int, ...]]) -> None:
    done = engine(mode).run([Request(str(i), p, 6) for i, p in enumerate(prompts)])
    assert tokens_by_id(done) == {str(i): alone(prompt) for i, prompt in enumerate(prompts)}


def test_what_the_simulator_launches_and_moves_is_what_the_step_list_says() -> None:
    device: Device = small_device(megabytes=64)
    cache_ = KVCache.allocate(device, MIXTURE, 9, 4, "float32")
    model = Model(device, MIXTURE, WEIGHTS, cache_)
    arrays = lone_inputs(np.arange(1, 9), 4, [3, 1, 4, 1, 5], 0)
    inputs = StepInputs(**{name: device.upload(array) for name, array in arrays.items()})
    with device.trace(0) as nodes:
        model.body(inputs)
    wide = replace(MIXTURE, dtype="float32")
    ops = step_ops(wide, StepShape.mixed([5], [5]), "fused9")[: len(nodes)]
    assert [node.label for node in nodes] == [op.name for op in ops]
    assert [node.flops for node in nodes] == [pytest.approx(op.flops) for op in ops]
    assert [node.bytes for node in nodes] == [pytest.approx(op.bytes) for op in ops]
    assert sum(node.kernel is k.grouped_linear for node in nodes) == 2 * MIXTURE.num_layers


@given(st.integers(1, 8), st.integers(1, 4), st.integers(0, 99))
def test_a_row_of_a_grouped_product_does_not_depend_on_the_rows_beside_it(
    tokens: int, active: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    x, weight = rng.standard_normal((tokens, 7)), rng.standard_normal((6 * 3, 7))
    x, weight = x.astype(np.float32), weight.astype(np.float32)
    ids = np.stack([rng.permutation(6)[:active] for _ in range(tokens)]).astype(np.int32)

    def product(rows: slice) -> np.ndarray:
        out = np.empty((len(ids[rows]), active, 3), np.float32)
        order = np.empty(ids[rows].size, np.int32)
        k.sort_by_expert.function(order, ids[rows])
        k.grouped_linear.function(out, x[rows], weight, ids[rows], order)
        return out

    whole = product(slice(None))
    by_hand = np.einsum("tk,tjnk->tjn", x, weight.reshape(6, 3, 7)[ids])
    np.testing.assert_allclose(whole, by_hand, rtol=1e-4, atol=1e-5)
    for t in range(tokens):
        np.testing.assert_array_equal(whole[t : t + 1], product(slice(t, t + 1)))
