"""How long a step takes: what recursion and matrices must agree with, and what they must obey."""

from __future__ import annotations

from dataclasses import astuple, replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.model.config import ModelConfig, named_shape
from mini_engine.step.cards import DeviceSpec, load_spec, names
from mini_engine.step.kernels import LAUNCHERS, STYLES, Kind, OpCost, StepShape, step_ops
from mini_engine.step.launch_model import eager_itl_us, full_itl_us
from mini_engine.step.run import (
    MODES,
    Mode,
    Work,
    around,
    is_live,
    itl_us,
    kernel_us,
    launched,
    padded_step,
    pieces,
    run_of,
    step_time,
    with_pdl,
)
from mini_engine.step.step_model import StepModel
from tests.support.sim_helpers import round_spec

H200, LAPTOP = load_spec("h200"), load_spec("laptop-cpu")
QWEN = named_shape("qwen3-0.6b")
ONE = step_ops(QWEN, StepShape.decode(1, 1024), "fused9")

ops_lists = st.lists(
    st.builds(
        OpCost,
        st.just("op"),
        st.floats(0, 5e8),
        st.floats(0, 5e10),
        st.booleans(),
        st.sampled_from(["product", "attention", "other"]),
    ),
    min_size=1,
    max_size=60,
)
modes = st.sampled_from(MODES)
engines = st.sampled_from(names("engine")).map(lambda name: load_spec("h200", engine=name))


def of_us(us: float, spec: DeviceSpec, *, splitting: bool = False) -> OpCost:
    """An op that runs for `us`, its floor included."""
    moved = (us - spec.kernel_floor_us) * spec.copy_bandwidth_gb_s * 1e3
    return OpCost("op", moved, 0, splitting)


# ---- the recursion


def test_an_engine_that_schedules_ahead_hides_its_own_work_and_not_that_of_each_request() -> None:
    serial = replace(H200, host_step_us=300.0, ahead_us=0.0, request_us=10.0)
    ahead = replace(H200, host_step_us=0.0, ahead_us=300.0, request_us=10.0)
    assert around(serial, 4) == (340.0, 0.0)
    assert around(ahead, 4) == (40.0, 300.0)
    gpu_us = step_time(ONE, ahead, "full").gpu_busy_us  # longer than what is done beside it
    assert gpu_us > 300
    waits, hides = (step_time(ONE, spec, "full", 4).itl_us for spec in (serial, ahead))
    assert waits - hides == pytest.approx(300.0)


@given(engines, st.sampled_from([4.0, 10.0, 40.0, 90.0]))  # on both sides of cpu_op_us
def test_equal_kernels_take_what_the_closed_forms_say(spec: DeviceSpec, us: float) -> None:
    """Without what each request adds: the closed forms know of kernels only."""
    us += spec.kernel_floor_us
    same = [of_us(us, spec)] * 40
    assert step_time(same, spec, "eager", 0).itl_us == pytest.approx(eager_itl_us(40, us, spec))
    assert step_time(same, spec, "full", 0).itl_us == pytest.approx(full_itl_us(40, us, spec))


def test_a_kernel_takes_the_slower_of_memory_and_arithmetic_and_its_floor() -> None:
    floor = H200.kernel_floor_us
    assert kernel_us(OpCost("copy", 4.3e9, 0), H200) == pytest.approx(1000 + floor)
    thousand_us = H200.product_tflops * 1e9
    assert kernel_us(OpCost("matmul", 4.3e6, thousand_us), H200) == pytest.approx(1000 + floor)


@pytest.mark.parametrize("kind", ["product", "attention", "other"])
def test_each_kind_of_kernel_reaches_a_bandwidth_of_its_own(kind: Kind) -> None:
    reached = {
        "product": H200.product_gb_s, "attention": H200.attention_gb_s,
        "other": H200.copy_bandwidth_gb_s,
    }  # fmt: skip
    op = OpCost("op", reached[kind] * 1e6, 0, kind=kind)
    assert kernel_us(op, H200) == pytest.approx(1000 + H200.kernel_floor_us)


def test_an_empty_kernel_takes_nothing_but_the_gap_to_the_next() -> None:
    assert kernel_us(OpCost("nothing", 0, 0), H200) == 0
    busy = replace(H200, cpu_op_us=0.001)  # the CPU is never late
    for mode, each_us in (("eager", H200.stream_gap_us), ("full", H200.graph_gap_us)):
        few_us, many_us = (
            itl_us(launched([OpCost("null", 0, 0)] * n, busy, mode), replace(busy, ahead_us=0), 0)
            for n in (500, 1000)
        )
        node_us = busy.graph_node_ns / 1000 if mode == "full" else 0  # of the CPU's launch
        assert (many_us - few_us) / 500 == pytest.approx(each_us + node_us)


def test_runs_join_as_their_works_do_one_by_one() -> None:
    works = [Work(3.0, 9.0, 9.0, 1), Work(7.0, 1.0, 1.0, 1), Work(2.0, 2.0, 2.0, 1)]
    layer = run_of(works, H200)
    assert layer.then(layer).then(layer) == pytest.approx(run_of(works * 3, H200))


def test_with_a_queue_of_one_cpu_and_device_take_turns() -> None:
    spec = replace(H200, queue_depth=1)
    works = [Work(3.0, 4.0, 4.0, 1)] * 10
    assert run_of(works, spec)[:2] == pytest.approx((9 * (3.0 + 4.0) + 3.0, 10 * (3.0 + 4.0)))


# ---- what is launched


def test_one_token_of_qwen3_launches_257_kernels_or_28_attentions_and_29_pieces_or_one_graph() -> (
    None
):
    eager, piecewise, full = (step_time(ONE, H200, mode) for mode in MODES)
    assert (eager.kernels, piecewise.kernels, full.kernels) == (257, 257, 257)
    copy, tail = 1, 3
    assert eager.launches == copy + 257
    assert piecewise.launches == copy + 28 + 29 + tail
    assert full.launches == copy + 1
    assert eager.gpu_busy_us == pytest.approx(full.gpu_busy_us)
    assert full.itl_us < piecewise.itl_us < eager.itl_us
    assert eager.utilisation < piecewise.utilisation < full.utilisation < 1


QWEN_14B = replace(
    named_shape("qwen3-8b"), num_layers=40, hidden_size=5120, intermediate_size=17_408, num_heads=40
)


@pytest.mark.parametrize(
    ("config", "eager", "graph"),
    [(QWEN, 374.9, 384), (named_shape("qwen3-8b"), 513.2, 524), (QWEN_14B, 568.3, 580)],
)
def test_sglang_launches_as_many_kernels_as_nsys_has_counted(
    config: ModelConfig, eager: float, graph: float
) -> None:
    """YiconRain/profiling@311296ef: H100, batch 1, mean of 511 steps. Eager steps of short contexts
    do without the sum of attention's parts."""
    step, whole = (
        step_time(step_ops(config, StepShape.decode(1, 272), "sglang"), H200, mode)
        for mode in ("eager", "full")
    )
    assert step.launches - 1 == pytest.approx(eager, rel=0.03)  # without our copy
    assert (whole.kernels, whole.launches - 1) == (graph, 17)


def test_vllm_cuts_24_layers_into_25_graphs_with_kv_write_and_attention_between_them() -> None:
    """As recorded: AMD-AGI/TraceLens, its vllm_prefilldecode_piecewise."""
    ops = step_ops(named_shape("qwen2.5-0.5b"), StepShape.decode(1, 272), "vllm")
    cut = [is_live("piecewise", op.splitting, op.by) for op in ops]
    works = pieces(cut)
    assert sum(graph for _, graph in works) == 25
    between = [op.name for op, live in zip(ops, cut, strict=True) if live and op.by != "torch"]
    assert between == ["kv_write", "attention", "attention_combine"] * 24


def test_vllms_full_graph_ends_at_the_hidden_states() -> None:
    ops = step_ops(QWEN, StepShape.decode(1, 272), "vllm")
    names = [op.name for op in ops if is_live("full", op.splitting, op.by)]
    assert names[2:] == ["select_rows", "lm_head", "logits_to_float", "argmax", "token_to_int"]


def test_a_kernel_is_launched_at_the_price_of_who_launches_it() -> None:
    ops = [OpCost("op", 0, 0, by=by) for by in LAUNCHERS]
    spec = replace(H200, cpu_op_us=1.0, torch_op_us=2.0, cpu_launch_us=3.0)
    assert [work.cpu_us for work in launched(ops, spec, "eager")] == [1.0, 2.0, 3.0]


def test_neighbouring_splitting_ops_are_launched_one_by_one() -> None:
    live, still = of_us(2, H200, splitting=True), of_us(2, H200)
    works = launched([still, still, live, live, still, live], H200, "piecewise")
    assert [work.kernels for work in works] == [2, 1, 1, 1, 1]
    assert [work.cpu_us == H200.live_op_us for work in works] == [False, True, True, False, True]


def test_a_full_graph_pads_the_rows_that_get_logits_and_pieces_do_not() -> None:
    dispatcher = GraphDispatcher("FULL_AND_PIECEWISE", [8], max_num_seqs=8)
    decode, mixed, above = (dispatcher.dispatch(5, n, u) for n, u in ((5, 1), (5, None), (9, None)))
    assert padded_step(decode, 5, 70, 70) == ("full", StepShape(8, 8, 70, 70, 5))
    assert padded_step(mixed, 5, 70, 90) == ("piecewise", StepShape(8, 5, 70, 90, 5))
    assert padded_step(above, 5, 70, 90) == ("eager", StepShape(9, 5, 70, 90, 5))


@given(ops_lists, modes)
def test_the_gpu_is_never_busier_than_the_step_is_long(ops: list[OpCost], mode: Mode) -> None:
    time = step_time(ops, H200, mode)
    assert 0 < time.utilisation < 1
    assert time.itl_us >= time.cpu_us


@pytest.mark.parametrize("card", ["rtx5090", "h200"])
def test_hugging_face_eager_takes_the_published_8_ms_a_token(card: str) -> None:
    """8.11 ms, Qwen3-0.6B on an RTX 5090 (AlpinDale/qwen_megakernel): the desktop's op_us was
    derived from it, so it must come back. All of it is the CPU's: a faster card changes nothing.
    4%: the derivation gave all of the step to its 1,591 ops, and nothing to what is around them."""
    spec = load_spec(card, host="desktop-2025", engine="transformers")
    ops = step_ops(QWEN, StepShape.decode(1, 100), spec.ops)
    assert step_time(ops, spec, "eager").itl_us == pytest.approx(8110, rel=0.04)


@pytest.mark.parametrize("mode", MODES)
def test_fusing_shortens_the_step_however_it_is_launched(mode: Mode) -> None:
    shape = StepShape.decode(1, 1024)
    nano, vllm, nine, five = (
        step_time(step_ops(QWEN, shape, style), H200, mode).itl_us
        for style in ("nano-vllm", "vllm", "fused9", "fused5")
    )
    assert five < nine < vllm
    assert nine < nano


def test_an_unknown_mode_and_an_empty_step_are_refused() -> None:
    with pytest.raises(ValueError, match="mode 'compiled': expected one of eager, piecewise, full"):
        step_time(ONE, H200, "compiled")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a step without ops"):
        step_time([], H200, "full")


# ---- many steps of a model, from matrices

figures = st.floats(0.05, 40.0)
specs = st.builds(
    lambda base, **given: replace(base, **given),
    base=st.sampled_from([H200, LAPTOP, load_spec("l4")]),
    cpu_op_us=figures,
    live_op_us=figures,
    host_step_us=figures,
    ahead_us=figures,
    request_us=figures,
    stream_gap_us=figures,
    graph_gap_us=figures,
    kernel_floor_us=figures,
    graph_launch_us=figures,
    copy_us=figures,
    sync_us=figures,
    queue_depth=st.sampled_from([1, 1024]),
).map(  # where CPU and device take turns, no gap is longer than a launch
    lambda spec: spec if spec.queue_depth > 1 else replace(spec, stream_gap_us=0.05)
)
configs = st.builds(
    lambda **sizes: replace(QWEN, **sizes),
    num_layers=st.integers(1, 6),
    hidden_size=st.sampled_from([64, 896, 4096]),
    intermediate_size=st.sampled_from([128, 4864]),
    qk_norm=st.booleans(),
    qkv_bias=st.booleans(),
)
decodes = st.builds(  # small ones too, which wait for the CPU
    StepShape.decode,
    st.sampled_from([1, 2, 9, 64, 300]),
    st.integers(1, 64) | st.integers(1, 40_000),
)
chunks = st.lists(st.tuples(st.integers(1, 600), st.integers(0, 4000)), min_size=1, max_size=5)
mixed = chunks.map(lambda c: StepShape.mixed([q for q, _ in c], [q + past for q, past in c]))


def exact_us(
    config: ModelConfig, spec: DeviceSpec, style: str, mode: Mode, shape: StepShape
) -> float:
    return step_time(step_ops(config, shape, style), spec, mode, shape.num_reqs).itl_us


@given(configs, specs, st.sampled_from(list(STYLES)), modes, decodes | mixed)
def test_every_step_costs_what_the_recursion_says(
    config: ModelConfig, spec: DeviceSpec, style: str, mode: Mode, shape: StepShape
) -> None:
    fast = StepModel(config, replace(spec, ops=style)).itl_us(mode, shape)
    assert fast == pytest.approx(exact_us(config, spec, style, mode, shape), rel=1e-12)


@given(configs, specs, st.sampled_from(list(STYLES)), modes, decodes)
def test_the_highest_line_is_the_itl(
    config: ModelConfig, spec: DeviceSpec, style: str, mode: Mode, shape: StepShape
) -> None:
    lines = StepModel(config, replace(spec, ops=style)).lines(
        mode, shape.num_tokens, shape.num_reqs
    )
    highest = max(us + per_key * shape.kv_tokens for us, per_key in lines)
    # 1e-9: the slope is a difference, divided and multiplied again
    assert highest == pytest.approx(exact_us(config, spec, style, mode, shape), rel=1e-9)
    assert all(a[0] > b[0] and a[1] < b[1] for a, b in pairwise(lines))


@given(configs, specs, st.sampled_from(list(STYLES)), modes, st.lists(decodes | mixed, min_size=1))
def test_many_steps_of_a_model_at_once_are_what_each_is_alone(
    config: ModelConfig, spec: DeviceSpec, style: str, mode: Mode, shapes: list[StepShape]
) -> None:
    many = StepModel(config, replace(spec, ops=style)).steps(mode, shapes)
    for shape, step in zip(shapes, many, strict=True):
        alone = step_time(step_ops(config, shape, style), spec, mode, shape.num_reqs)
        assert astuple(step) == pytest.approx(astuple(alone), rel=1e-12)


def test_padded_requests_cost_the_engine_nothing() -> None:
    """A graph of 256 rows for nine requests: the GPU computes 256, Python serves nine."""
    model, keys = StepModel(QWEN, H200), 9 * 512
    padded = StepShape(256, 256, keys, keys, real_reqs=9)
    took_us = model.itl_us("full", padded)
    assert took_us < model.itl_us("full", StepShape(256, 256, keys, keys)) / 2
    highest = max(us + per_key * keys for us, per_key in model.lines("full", 256, 256, 9))
    assert highest == pytest.approx(took_us)


# ---- nodes that overlap (PDL)

OURS = load_spec("h200", engine="launch-bound")
FIVE = step_ops(QWEN, StepShape.decode(1, 512), "fused5")


def test_each_boundary_between_two_nodes_is_shorter_and_the_rest_of_the_step_is_not() -> None:
    before, after = (step_time(FIVE, spec, "full") for spec in (OURS, with_pdl(OURS)))
    assert before.itl_us - after.itl_us == pytest.approx(142 * 0.96)
    assert before.gpu_busy_us == pytest.approx(after.gpu_busy_us)  # every byte is still moved
    assert before.cpu_us == after.cpu_us
    assert step_time(FIVE, with_pdl(OURS), "eager") == step_time(FIVE, OURS, "eager")


@pytest.mark.parametrize(
    ("saves", "gap", "floor"), [(0.4, 0.6, 0.5), (1.0, 0.0, 0.5), (1.2, 0.0, 0.3), (9.0, 0.0, 0.0)]
)
def test_the_gap_goes_first_then_the_floor_and_neither_below_zero(
    saves: float, gap: float, floor: float
) -> None:
    found = with_pdl(replace(round_spec(), pdl_saves_us=saves))  # gap 1.0, floor 0.5
    assert (found.graph_gap_us, found.kernel_floor_us) == pytest.approx((gap, floor))
    assert found.stream_gap_us == round_spec().stream_gap_us
