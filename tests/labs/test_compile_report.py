"""Lab 13's compile_report.py on the engine's own step: one graph, no breaks, and a bound.

Random programs with known ops and breaks are lab 13's tests, which run on this file too.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

from labs.lab13_torch_compile.compile_report import Call, graph_breaks, launches, ops_of, over_calls  # noqa: E402
from mini_engine.bench.decode_setup import DecodeSetup, build_setup  # noqa: E402
from mini_engine.bench.op_record import OpRecorder  # noqa: E402
from mini_engine.cuda.graphs.backend import graphs_for  # noqa: E402
from mini_engine.cuda.weights import random_weights  # noqa: E402
from mini_engine.model.config import tiny_shape  # noqa: E402
from mini_engine.step.kernels import StepShape, step_ops  # noqa: E402


def setup_of(layers: int) -> DecodeSetup:
    config = replace(tiny_shape(), num_layers=layers, dtype="bfloat16")
    weights = random_weights(config, torch.device("cpu"), torch.bfloat16, seed=0)
    return build_setup(graphs_for("cpu"), weights, batch=1, context=40, room=64)


def traced(setup: DecodeSetup) -> list[Call]:
    inputs = setup.inputs()

    def step() -> tuple[Tensor, Tensor]:
        return setup.model.next_step(setup.model.body(inputs, setup.attention), inputs)

    with torch.no_grad():
        return over_calls(step, [(), ()], fullgraph=True)


def test_our_step_is_one_graph_with_the_ops_that_it_launches_eagerly() -> None:
    setup = setup_of(2)
    calls = traced(setup)
    assert [call.how for call in calls] == ["compiled", "reused"]
    assert graph_breaks(calls) == []
    (graph,) = calls[0].graphs
    assert ops_of(graph).count("linear") == 4 * 2 + 1
    inputs, recorder = setup.inputs(), OpRecorder()
    with torch.no_grad(), recorder:
        setup.model.next_step(setup.model.body(inputs, setup.attention), inputs)
    assert calls[1].ran == (tuple(op.name for op in recorder.ops),)
    assert launches(calls[1], "eager") == len(recorder.ops)


def test_fused_at_best_a_layer_is_eleven_kernels_two_more_than_by_hand() -> None:
    """Four products with weights, two in attention, and five stretches: attention in plain PyTorch
    is a product, a softmax and a product, where by hand it is one kernel."""
    one, two = (traced(setup_of(layers))[1] for layers in (1, 2))
    assert launches(two, "default") - launches(one, "default") == 11
    config = tiny_shape()
    by_hand = [
        len(step_ops(replace(config, num_layers=n), StepShape.decode(1, 40), "fused9"))
        for n in (1, 2)
    ]
    assert by_hand[1] - by_hand[0] == 9
    assert launches(two, "reduce-overhead") == 1
