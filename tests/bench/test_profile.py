"""The real engine under the profiler, on the simulator's two lanes: fixture rows, then for real."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from mini_engine.bench.profile import Profile, named, process_name, profile_step  # noqa: E402
from mini_engine.cli.measuring import tiny_shape  # noqa: E402
from mini_engine.cuda.graphs.backend import graphs_for  # noqa: E402
from mini_engine.cuda.weights import Weights, random_weights  # noqa: E402
from mini_engine.model.config import named_shape  # noqa: E402
from mini_engine.sim.recorded import STEP, counted, events_of_profile  # noqa: E402
from mini_engine.sim.trace import CPU, GPU, TraceEvent, busy_us  # noqa: E402
from tests.cli.test_commands import json_of  # noqa: E402
from tests.sim.test_trace import check_chrome_schema  # noqa: E402

# ---------------------------------------------------------------- rows as kineto writes them

HOST, CARD, STREAM = 4093, 0, 7
BASE = 4_405_374_729_000.0  # µs since kineto's base time: what `ts` looks like


def row(cat: str, name: str, at: float, dur: float, where: tuple[Any, Any], **args: Any) -> dict:
    """A complete event. Names of arguments may have spaces, so `_` stands for one."""
    pid, tid = where
    named = {key.replace("_", " "): value for key, value in args.items()}
    return {
        "ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": BASE + at, "dur": dur,
        "args": named,
    }  # fmt: skip


def step_row(at: float, dur: float) -> dict:
    return row("user_annotation", STEP, at, dur, (HOST, HOST), External_id=1, Ev_Idx=0)


def op(name: str, at: float, dur: float, thread: int = HOST) -> dict:
    return row("cpu_op", f"aten::{name}", at, dur, (HOST, thread), External_id=2, Ev_Idx=1)


def call(name: str, at: float, dur: float, correlation: int) -> dict:
    cat = "cuda_driver" if name.startswith("cu") and name[2].isupper() else "cuda_runtime"
    return row(cat, name, at, dur, (HOST, HOST), cbid=211, correlation=correlation)


def kernel(name: str, at: float, dur: float, correlation: int, node: int = 0) -> dict:
    """CUDA 12 and later: every kernel has a graph id and a node id, 0 outside of graphs."""
    return row(
        "kernel", name, at, dur, (CARD, STREAM), External_id=2, queued=0, device=0, context=1,
        stream=STREAM, correlation=correlation, registers_per_thread=32, shared_memory=0,
        grid=[132, 1, 1], block=[256, 1, 1], graph_id=9 if node else 0, graph_node_id=node,
    )  # fmt: skip


def copied(name: str, at: float, dur: float, correlation: int, node: int = 0) -> dict:
    cat = "gpu_memset" if name.startswith("Memset") else "gpu_memcpy"
    return row(
        cat, name, at, dur, (CARD, STREAM), device=0, context=1, stream=STREAM, bytes=96,
        correlation=correlation, graph_id=9 if node else 0, graph_node_id=node,
    )  # fmt: skip


# What an exported file holds beside them: none of it is a box on a lane.
NOISE: list[dict[str, Any]] = [
    {"ph": "M", "name": "process_name", "pid": HOST, "tid": 0, "ts": BASE, "args": {"name": "py"}},
    {"ph": "i", "s": "g", "name": "Iteration Start", "pid": "Traces", "tid": "Trace", "ts": BASE},
    {"ph": "s", "id": 5, "pid": HOST, "tid": HOST, "ts": BASE + 30, "cat": "ac2g", "name": "ac2g"},
    {"ph": "f", "id": 5, "pid": CARD, "tid": 7, "ts": BASE + 36, "cat": "ac2g", "name": "ac2g"},
    row("Trace", "PyTorch Profiler (0)", -50, 900, ("Spans", "PyTorch Profiler"), Op_count=0),
    row("gpu_user_annotation", STEP, 20, 70, (CARD, STREAM), External_id=1),
    row("cuda_sync", "Stream Sync", 80, 9, (CARD, STREAM), stream=STREAM, correlation=15),
    row("overhead", "Activity Buffer Request", 33, 4, (-1, 0)),
    row("python_function", "engine.py(120): step", 1, 98, (HOST, HOST)),
]
FULL_STEP = [
    step_row(0, 100),
    op("copy_", 10, 8),
    call("cudaMemcpyAsync", 12, 3, 11),
    copied("Memcpy HtoD (Pinned -> Device)", 16, 2, 11),
    call("cudaEventRecord", 20, 1, 12),
    call("cudaGraphLaunch", 30, 5, 13),
    kernel("gemv2T_kernel", 36, 10, 13, node=21),
    copied("Memset (Device)", 47, 1, 13, node=22),
    kernel("softmax_warp_forward", 50, 30, 13, node=23),
    op("to", 60, 28),
    op("_to_copy", 61, 27),  # called by aten::to
    call("cudaMemcpyAsync", 62, 20, 14),
    copied("Memcpy DtoH (Device -> Pageable)", 80.5, 1, 14),
    call("cudaStreamSynchronize", 82, 5, 15),
]


def flat(rows: list[dict[str, Any]]) -> list[TraceEvent]:
    return list(events_of_profile(rows, flat=True))


def told(events: list[TraceEvent], lane: str) -> list[tuple[str, str, float, float]]:
    return [
        (e.name, e.category, round(e.start_us, 3), round(e.duration_us, 3))
        for e in events
        if e.lane == lane
    ]


def test_a_graph_step_is_one_launch_above_its_nodes() -> None:
    events = flat([*NOISE, *FULL_STEP])
    assert told(events, CPU) == [
        ("Python", "host", 0, 10),
        ("aten::copy_", "host", 10, 2),
        ("cudaMemcpyAsync", "copy", 12, 3),
        ("aten::copy_", "host", 15, 3),
        ("Python", "host", 18, 2),
        ("cudaEventRecord", "host", 20, 1),
        ("Python", "host", 21, 9),
        ("cudaGraphLaunch", "graph", 30, 5),
        ("Python", "host", 35, 25),
        ("aten::to", "host", 60, 2),
        ("cudaMemcpyAsync", "wait", 62, 20),  # to pageable memory: returns when it is done
        ("cudaStreamSynchronize", "wait", 82, 5),
        ("aten::to", "host", 87, 1),
        ("Python", "host", 88, 12),
    ]
    assert told(events, GPU) == [
        ("Memcpy HtoD (Pinned -> Device)", "copy", 16, 2),
        ("gemv2T_kernel", "node", 36, 10),
        ("Memset (Device)", "copy", 47, 1),
        ("softmax_warp_forward", "node", 50, 30),
        ("Memcpy DtoH (Device -> Pageable)", "copy", 80.5, 1),
    ]
    assert busy_us(events, CPU) == pytest.approx(100 - 25, abs=0.01)  # all but the waits


def test_kernels_and_launches_are_counted_and_copies_are_no_kernels() -> None:
    kernels, launches = counted(events_of_profile(FULL_STEP))
    assert kernels == 2
    assert launches == 2  # a copy and a graph; the last copy is a wait


def test_only_the_step_of_median_length_is_taken() -> None:
    short, long = [step_row(-200, 20), op("short", -199, 2)], [step_row(200, 500)]
    before = [call("cudaLaunchKernel", -10, 4, 90), kernel("straggler", 5, 2, 90)]
    after = [call("cudaLaunchKernel", 110, 4, 91), kernel("early", 99.5, 2, 91)]
    elsewhere = [op("backward", 20, 40, thread=5000)]
    others = [step_row(-300, 10), step_row(800, 600)]
    rows = [*short, *before, *FULL_STEP, *after, *elsewhere, *long, *others]
    assert flat(rows) == flat(FULL_STEP)


def test_a_kernel_that_no_call_is_known_for_is_taken_by_its_time() -> None:
    strangers = [kernel("alone", 47, 1, 777), kernel("outside", 140, 1, 779)]
    kinds = {e.name: e.category for e in flat([*FULL_STEP, *strangers]) if e.lane == GPU}
    assert kinds["alone"] == "kernel"
    assert "outside" not in kinds


def test_kernels_that_overlap_stand_one_after_the_other_and_the_lane_is_as_busy() -> None:
    rows = [
        step_row(0, 60),
        call("cudaGraphLaunch", 1, 2, 5),
        kernel("drains", 10, 20, 5, node=1),
        kernel("starts early", 25, 10, 5, node=2),  # programmatic dependent launch
        kernel("inside", 26, 4, 5, node=3),  # another stream
    ]
    assert told(flat(rows), GPU) == [
        ("drains", "node", 10, 20),
        ("starts early", "node", 30, 5),
        ("inside", "node", 35, 0),
    ]


@st.composite
def steps(draw: st.DrawFn) -> list[dict]:
    """Ops and calls at any times, nested as a call stack is; kernels anyhow."""
    rows = [step_row(0, 400)]
    for index in range(draw(st.integers(0, 6))):
        at, dur = 10 + 60 * index, draw(st.floats(0.5, 50))
        rows += [op("outer", at, dur), op("inner", at + dur / 8, dur / 2)]
        inside = draw(st.floats(0.05, 0.9))
        rows.append(call("cudaLaunchKernel", at + dur * inside, dur * (1 - inside) / 2, index))
        rows.append(kernel("k", draw(st.floats(0, 380)), draw(st.floats(0, 90)), index))
    return rows


@given(steps())
def test_no_two_boxes_of_a_lane_overlap_and_the_cpu_lane_has_no_holes(rows: list[dict]) -> None:
    events = flat(rows)
    nanosecond = 2e-3  # ts near 4e12 µs has steps of half a nanosecond
    for lane in (CPU, GPU):
        boxes = [e for e in events if e.lane == lane]
        for one, following in pairwise(boxes):
            assert following.start_us >= one.end_us - nanosecond
    cpu = [e for e in events if e.lane == CPU]
    assert sum(e.duration_us for e in cpu) == pytest.approx(400, abs=len(cpu) * nanosecond)
    measured = [TraceEvent(GPU, r["name"], r["ts"], r["dur"]) for r in rows if r["cat"] == "kernel"]
    assert busy_us(events, GPU) == pytest.approx(busy_us(measured, GPU), abs=0.05)


FIVE = ["norm_qkv_proj", "rope_kv_write_attention", "o_proj_add", "norm_gate_up_silu_mul",
        "down_proj_add"]  # fmt: skip
LIST = ["embed", *FIVE, *FIVE, "norm_lm_head", "argmax"]


def test_the_nodes_of_a_graph_are_called_by_the_steps_own_list() -> None:
    """Four nodes of a layer have two functions: their order tells what each is for."""
    functions = ["gather", *(["linear_kernel", "fused_attention_kernel"] * 5), "head", "pick"]
    rows = [step_row(0, 100), call("cudaGraphLaunch", 1, 5, 13)]
    rows.append(copied("Memset (Device)", 6, 1, 13, node=20))
    rows += [kernel(name, 8 + 2 * i, 1, 13, node=21 + i) for i, name in enumerate(functions)]
    events = flat(rows)
    told = [e.name for e in named(events, LIST) if e.lane == GPU]
    pairs = zip(LIST, functions, strict=True)
    assert told == ["Memset (Device)", *(f"{what} ({name})" for what, name in pairs)]
    assert named(events, LIST[1:]) == events  # as many kernels as names, or none is named


def test_an_emulated_step_tells_its_kernels_in_order() -> None:
    weights = random_weights(tiny_shape(), torch.device("cpu"), torch.float32, seed=0)
    step = profile_step(graphs_for("cpu"), weights, "FULL", batch=2, context=40, kernels=5)
    told = [e.name.partition(" (")[0] for e in step.timeline if "launch_bound::" in e.name]
    assert told == LIST[1:] == [op.name for op in step.ops][1:]


# ---------------------------------------------------------------- the engine, emulated


@pytest.fixture(scope="module")
def weights() -> Weights:
    return random_weights(tiny_shape(), torch.device("cpu"), torch.float32, seed=0)


@pytest.fixture(scope="module", params=["NONE", "PIECEWISE", "FULL", "FULL_AND_PIECEWISE"])
def measured(request: pytest.FixtureRequest, weights: Weights) -> tuple[str, Profile]:
    graphs = graphs_for("cpu")
    return request.param, profile_step(graphs, weights, request.param, batch=2, context=40)


def test_a_step_of_the_engine_fills_lane_cpu_from_end_to_end(measured: tuple[str, Profile]) -> None:
    mode, step = measured
    assert {e.lane for e in step.timeline} == {CPU}  # no GPU here
    assert {e.category for e in step.timeline} == {"host"}
    assert step.timeline[0].start_us == 0
    names = {e.name for e in step.timeline}
    assert "Python" in names
    # the products of two layers are there, eager or replayed
    products = [e for e in step.timeline if "mm" in e.name or "linear" in e.name]
    assert len(products) >= 2 * 4, names
    assert step.launched == {"NONE": "eager", "PIECEWISE": "piecewise"}.get(mode, "full")


def test_the_ops_to_predict_are_those_of_the_step(measured: tuple[str, Profile]) -> None:
    _, step = measured
    config = tiny_shape()
    products = [o for o in step.ops if o.flops]
    # qkv, o, gate and up, down of each layer, scores and values of attention, and the head
    assert len(products) == config.num_layers * 6 + 1
    head = products[-1]
    assert head.flops == 2 * 2 * config.hidden_size * config.vocab_size
    assert head.splitting == (step.launched != "full")
    attention = [o for o in products if o.name == "bmm"]
    assert {o.splitting for o in attention} == {step.launched != "full"}


# ---------------------------------------------------------------- the command


def test_predicted_and_measured_open_side_by_side_with_the_same_tracks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "deep" / "step.json"
    words = ["trace", "--backend", "cuda", "--device", "cpu", "--mode", "NONE", "--mode", "FULL"]
    result = json_of(capsys, *words, "-o", str(out))
    document = json.loads(out.read_text())
    check_chrome_schema(document)
    tracks: dict[str, list[str]] = {}
    names = {e["pid"]: e["args"]["name"] for e in document["traceEvents"]
             if e["name"] == "process_name"}  # fmt: skip
    for event in document["traceEvents"]:
        if event["name"] == "thread_name":
            tracks.setdefault(names[event["pid"]], []).append(event["args"]["name"])
    assert list(tracks) == [
        "predicted NONE",
        process_name("NONE", emulated=True),
        "predicted FULL",
        process_name("FULL", emulated=True),
    ]
    assert set(map(tuple, tracks.values())) == {(CPU, GPU)}
    assert process_name("FULL", emulated=False) == "measured FULL"
    assert result["emulated"]
    assert result["spec"] == "laptop-cpu"


# ---------------------------------------------------------------- on a GPU


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")
def test_on_a_gpu_a_graph_step_is_one_launch_and_its_nodes_lie_within_the_step() -> None:
    config = replace(named_shape("qwen3-0.6b"), num_layers=4)
    weights = random_weights(config, torch.device("cuda"), torch.bfloat16, seed=0)
    graphs = graphs_for("cuda")

    def counted(mode: str) -> tuple[dict[str, int], list[TraceEvent]]:
        events = list(profile_step(graphs, weights, mode, batch=1, context=128).timeline)
        kinds = ("graph", "launch", "node", "kernel")
        return {kind: sum(e.category == kind for e in events) for kind in kinds}, events

    full, events = counted("FULL")
    assert full["graph"] == 1
    assert [e.lane for e in events if e.name == "cudaGraphLaunch"] == [CPU]
    assert full["node"] >= 100
    # where PyTorch sets the random generator's seed and offset at each replay: pytorch issue 143577
    assert full["launch"] == full["kernel"] <= 2
    ends, apart_us = max(e.end_us for e in events if e.lane == CPU), 20  # two clocks, aligned
    for event in events:
        if event.lane == GPU:
            assert -apart_us <= event.start_us <= event.end_us <= ends + apart_us
    assert any(e.category == "wait" for e in events)

    none, _ = counted("NONE")
    assert none["graph"] == none["node"] == 0
    assert none["launch"] >= 100
    pieces, _ = counted("PIECEWISE")
    assert pieces["graph"] == config.num_layers + 1
    assert pieces["node"] > 0 < pieces["kernel"]
