"""The real engine under the profiler, on the simulator's two lanes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from mini_engine.bench.profile import Profile, named, process_name, profile_step  # noqa: E402
from mini_engine.cli.measuring import tiny_shape  # noqa: E402
from mini_engine.cuda.graphs.backend import graphs_for  # noqa: E402
from mini_engine.cuda.weights import Weights, random_weights  # noqa: E402
from mini_engine.model.config import named_shape  # noqa: E402
from mini_engine.sim.trace import CPU, GPU, TraceEvent  # noqa: E402
from tests.cli.test_commands import json_of  # noqa: E402
from tests.sim.test_trace import check_chrome_schema  # noqa: E402

FIVE = ["norm_qkv_proj", "rope_kv_write_attention", "o_proj_add", "norm_gate_up_silu_mul",
        "down_proj_add"]  # fmt: skip
LIST = ["embed", *FIVE, *FIVE, "norm_lm_head", "argmax"]


def test_the_nodes_of_a_graph_are_called_by_the_steps_own_list() -> None:
    """Four nodes of a layer have two functions: their order tells what each is for."""
    functions = ["gather", *(["linear_kernel", "fused_attention_kernel"] * 5), "head", "pick"]
    events = [TraceEvent(GPU, "Memset (Device)", 6, 1, "copy")]
    events += [TraceEvent(GPU, name, 8 + 2 * i, 1, "node") for i, name in enumerate(functions)]
    told = [e.name for e in named(events, LIST)]
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
