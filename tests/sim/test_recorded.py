"""Steps that others have recorded: what they launch, and what the GPU waited for."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from mini_engine.sim.recorded import (
    KINDS,
    STEP,
    UNLISTED,
    anatomy,
    anatomy_of,
    events_of_profile,
    kind_of,
    load_recording,
    recording_names,
)
from mini_engine.sim.trace import CPU, GPU, TraceEvent, busy_us

SGLANG, FULL, PIECES = "sglang-qwen3-8b-graph", "vllm-gpt-oss-full", "vllm-gpt-oss-piecewise"
HF, EAGER = "transformers-qwen1.5-0.5b-eager", "vllm-moe-eager"
RUNNERS = ("vllm-gemma-4-runner-1", "vllm-gemma-4-runner-2")  # vLLM's two, on an H200
DRAFTS = "vllm-gemma-4-speculative"  # as the second, with four tokens of each request


def test_l_layers_leave_l_plus_1_piecewise_graphs() -> None:
    """vLLM cuts at attention: 24 layers, 25 graphs, and KV write and attention live between."""
    found = anatomy(load_recording(PIECES))
    assert found.layers == 24
    assert found.graph_launches == 25
    live = [e for e in load_recording(PIECES).events if e.lane == GPU and e.category == "kernel"]
    kinds = [kind_of(e.name) for e in live]
    assert (kinds.count("KV write"), kinds.count("attention")) == (24, 24)


@pytest.mark.parametrize("name", [SGLANG, FULL])
def test_a_full_graph_is_one_launch_for_nearly_all_kernels(name: str) -> None:
    events = load_recording(name).events
    assert anatomy(load_recording(name)).graph_launches == 1
    inside = sum(e.category == "node" for e in events)
    assert inside > 0.95 * sum(e.lane == GPU for e in events)


def test_sglang_launches_fifteen_kernels_a_layer() -> None:
    found = anatomy(load_recording(SGLANG))
    a_layer = {kind: share.count // 36 for kind, share in found.kinds.items() if share.count >= 36}
    assert a_layer == {
        "product": 4, "norm": 4, "attention": 2, "copy": 2, "RoPE": 1, "KV write": 1,
        "activation": 1,
    }  # fmt: skip
    assert sum(a_layer.values()) == 15


def test_eager_vllm_leaves_the_gpu_idle_and_mostly_not_for_launches() -> None:
    found = anatomy(load_recording(EAGER))
    assert found.busy_us / found.gpu_us == pytest.approx(0.137, abs=0.001)
    assert found.idle_us > 5 * found.idle_in_launch_us


@pytest.mark.parametrize("name", [SGLANG, FULL, PIECES, HF, EAGER])
def test_the_three_shares_are_the_whole_time_of_the_gpu(name: str) -> None:
    recording = load_recording(name)
    found = anatomy(recording)
    on_gpu = [e for e in recording.events if e.lane == GPU]
    span = max(e.end_us for e in on_gpu) - min(e.start_us for e in on_gpu)
    assert found.gpu_us == pytest.approx(span)
    assert found.busy_us == pytest.approx(busy_us(recording.events, GPU))
    assert sum(share.count for share in found.kinds.values()) == len(on_gpu)
    assert {e.lane for e in recording.events} == {CPU, GPU}
    assert "MIT" in recording.source


@pytest.mark.parametrize(
    ("name", "events", "us"),
    [(RUNNERS[0], 700, 6420.55), (RUNNERS[1], 675, 6067.793), (DRAFTS, 675, 7554.542)],
)
def test_what_was_entered_by_hand_has_its_sources_own_sums(
    name: str, events: int, us: float
) -> None:
    recording = load_recording(name)
    assert len(recording.events) == events
    assert sum(e.duration_us for e in recording.events) == pytest.approx(us, abs=1e-6)


@pytest.mark.parametrize("name", [*RUNNERS, DRAFTS])
def test_of_the_gpu_alone_no_launch_is_counted(name: str) -> None:
    """A mixture of experts in one FULL graph: 22 kernels a layer, of which ten multiply."""
    recording = load_recording(name)
    found = anatomy(recording)
    assert {e.lane for e in recording.events} == {GPU}
    assert (found.launches, found.graph_launches, found.idle_in_launch_us) == (None, None, None)
    assert found.idle_us == pytest.approx(found.gpu_us - busy_us(recording.events, GPU))
    assert found.layers == 30
    a_layer = {kind: share.count // 30 for kind, share in found.kinds.items() if share.count >= 30}
    assert a_layer == {
        "product": 10, "routing": 3, "attention": 2, "norm": 2, "reduction": 2, "activation": 2,
        "KV write": 1,
    }  # fmt: skip
    assert sum(a_layer.values()) == 22


def test_before_its_graph_the_newer_runner_starts_less() -> None:
    """32 small kernels and copies run for 59 µs of 1.76 ms, 13 for 26 µs of 1.38 ms."""
    before = []
    for name in RUNNERS:
        events = load_recording(name).events
        graph_us = min(e.start_us for e in events if e.category == "node")
        work = [e for e in events if e.start_us < graph_us]
        before.append((len(work), sum(e.duration_us for e in work), graph_us))
    assert before == [
        (32, pytest.approx(59, abs=0.5), pytest.approx(1757, abs=0.5)),
        (13, pytest.approx(25.5, abs=0.5), pytest.approx(1382, abs=0.5)),
    ]


def test_four_tokens_a_request_cost_what_the_experts_read_and_little_else() -> None:
    """Eight requests check three drafts each: the graph takes 1.78 ms longer, of which the experts'
    two products 1.38, since 32 tokens need more of 128 experts than eight do."""
    experts, others = [], []
    for name in (RUNNERS[1], DRAFTS):
        nodes = [e for e in load_recording(name).events if e.category == "node"]
        experts.append(sum(e.duration_us for e in nodes if e.name == "fused_moe_kernel"))
        length_us = max(e.end_us for e in nodes) - min(e.start_us for e in nodes)
        others.append(length_us - experts[-1])
    assert experts == [pytest.approx(2499, abs=1), pytest.approx(3879, abs=1)]
    assert others == [pytest.approx(3596, abs=1), pytest.approx(3992, abs=1)]


def test_a_full_graph_ends_before_the_logits() -> None:
    """What is live behind it: the rows are chosen and multiplied with the head."""
    events = load_recording(RUNNERS[0]).events
    end_us = max(e.end_us for e in events if e.category == "node")
    behind = [kind_of(e.name) for e in events if e.start_us > end_us]
    assert behind.count("product") == 1
    assert len(behind) == 7


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>", "KV write"),
        ("void flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits>", "attention"),
        ("BatchDecodeWithPagedKVCacheKernel", "attention"),
        ("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu", "product"),
        ("nvjet_sm90_tst_64x8_64x16_4x2_h_bz_TNT", "product"),
        ("void flashinfer::norm::FusedAddRMSNormKernel", "norm"),
        ("moe::dev::routing::routingRenormalize", "routing"),
        ("void vllm::moe::moe_align_block_size_kernel<int>", "routing"),
        ("void vllm::moe::count_and_sort_expert_tokens_kernel<int>", "routing"),
        ("fused_moe_kernel", "product"),
        ("void vllm::moe::moe_sum_vec_kernel<c10::BFloat16>", "reduction"),
        ("triton_red_fused_3", "reduction"),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel", "other"),
        ("tensorrt_llm::kernels::applyBiasRopeUpdateKVCacheV2", "KV write"),
        ("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_2", "norm"),
        ("gate_up_proj", "product"),  # and what our own kernels are called
        ("qk_norm_rope_kv_write", "KV write"),
        ("silu_mul", "activation"),
        ("q_norm_copy", "copy"),
        ("norm_gate_up_silu_mul", "product"),
        ("rope_kv_write_attention", "attention"),
    ],
)
def test_a_kernels_name_tells_its_kind(kernel: str, kind: str) -> None:
    assert kind_of(kernel) == kind
    assert kind in (*KINDS, "other")


def test_a_table_of_kernels_is_one_step_and_holds_what_its_source_left_out() -> None:
    """The source lists kernels above 1% of the time, of 11 steps, and the time of all of them."""
    found = anatomy(load_recording("vllm-qwen3-8b-h100-kernels"))
    a_layer = {kind: share.count / 36 for kind, share in found.kinds.items() if share.count}
    assert a_layer == {
        "product": pytest.approx(6 + 1 / 36), "attention": 1, "norm": 2, "KV write": 1,
    }  # four products and, behind two of them, a reduction  # fmt: skip
    assert sum(share.us for share in found.kinds.values()) == pytest.approx(found.busy_us)
    assert found.kinds[UNLISTED].us == pytest.approx(0.04 * found.busy_us, rel=0.05)
    assert (found.launches, found.idle_us) == (None, None)  # the source does not tell


def test_a_step_under_nsys_is_a_long_run_less_a_short_one() -> None:
    """17 launches a step with graphs, and as many as kernels without: whole numbers, which shows
    that 511 steps lie between a run of 512 tokens and one of none."""
    eager, graph = (
        anatomy(load_recording(f"sglang-qwen3-0.6b-h100-{w}")) for w in ("eager", "graph")
    )
    assert (graph.launches, graph.kernels) == (
        pytest.approx(17, abs=0.01),
        pytest.approx(384, abs=0.01),
    )
    assert eager.launches == eager.kernels == pytest.approx(374.9, abs=0.1)
    assert [us / 1e3 for us in (eager.busy_us, eager.idle_in_launch_us, eager.idle_us)] == [
        pytest.approx(ms, abs=0.01) for ms in (1.33, 1.16, 6.18)
    ]  # fmt: skip


def test_two_people_saw_the_same_step() -> None:
    """SGLang, Qwen3-8B, one request, an H100 in a graph: under nsys, and in PyTorch's profiler."""
    one, other = (
        anatomy(load_recording(f"sglang-qwen3-8b-h100-{w}")) for w in ("graph", "kernels")
    )
    assert one.busy_us == pytest.approx(other.busy_us, rel=0.01)


@pytest.mark.parametrize("name", recording_names())
def test_every_recording_names_its_source_at_a_commit(name: str) -> None:
    assert re.match(r"github:[\w-]+/[\w.-]+@[0-9a-f]{7,}", load_recording(name).source)


# ---- a profile of one's own


def event(cat: str, name: str, ts: float, dur: float, correlation: int = 0) -> dict[str, Any]:
    args = {"correlation": correlation}
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "args": args}


PROFILE = [
    event("user_annotation", "ProfilerStep#1", 0, 50),
    event("cuda_runtime", "cudaLaunchKernel", 5, 5, 1),
    event("kernel", "first_step_gemm", 8, 5, 1),
    event("user_annotation", "ProfilerStep#2", 100, 50),
    event("cpu_op", "aten::mm", 100, 12),
    event("cuda_runtime", "cudaLaunchKernel", 105, 5, 2),
    event("kernel", "gemm", 110, 20, 2),
    event("cuda_runtime", "cudaLaunchKernel", 140, 6, 3),
    event("kernel", "rms_norm", 150, 10, 3),
]


@pytest.mark.parametrize("ending", [".json", ".json.gz"])
def test_one_step_of_a_profile_is_taken_apart(tmp_path: Path, ending: str) -> None:
    path, text = tmp_path / f"mine{ending}", json.dumps({"traceEvents": PROFILE})
    path.write_bytes(gzip.compress(text.encode()) if ending.endswith("gz") else text.encode())
    found = anatomy(load_recording(path))
    assert (found.launches, found.kernels, found.layers) == (2, 2, None)
    assert {kind: share.us for kind, share in found.kinds.items()} == {"product": 20, "norm": 10}
    # from 130 to 150 nothing runs: 6 of it in a launch, 14 in something else
    assert (found.busy_us, found.idle_in_launch_us, found.idle_us) == (30, 6, 14)


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"traceEvents": 3}', "not JSON", json.dumps({"traceEvents": []})]
)
def test_what_is_no_profile_is_refused_by_its_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"mine\.json"):
        load_recording(path)


# ---- a profile's rows, as kineto writes them

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


def told(events: list[TraceEvent], lane: str) -> list[tuple[str, str, float, float]]:
    return [
        (e.name, e.category, round(e.start_us, 3), round(e.duration_us, 3))
        for e in events
        if e.lane == lane
    ]


def test_a_graph_step_is_one_launch_above_its_nodes() -> None:
    events = list(events_of_profile([*NOISE, *FULL_STEP]))
    begin = events[0].start_us + 10
    calls = [e for e in told(events, CPU) if not e[0].startswith("aten::")]
    assert [(name, kind) for name, kind, *_ in calls] == [
        ("cudaMemcpyAsync", "copy"),
        ("cudaEventRecord", "host"),
        ("cudaGraphLaunch", "graph"),
        ("cudaMemcpyAsync", "wait"),  # to pageable memory: returns when it is done
        ("cudaStreamSynchronize", "wait"),
    ]
    assert [(*e[:2], e[2] + begin, e[3]) for e in told(events, GPU)] == [
        ("Memcpy HtoD (Pinned -> Device)", "copy", 16, 2),
        ("gemv2T_kernel", "node", 36, 10),
        ("Memset (Device)", "copy", 47, 1),
        ("softmax_warp_forward", "node", 50, 30),
        ("Memcpy DtoH (Device -> Pageable)", "copy", 80.5, 1),
    ]


def test_kernels_and_launches_are_counted_and_copies_are_no_kernels() -> None:
    found = anatomy_of(events_of_profile(FULL_STEP))
    assert found.kernels == 2
    assert found.launches == 2  # a copy and a graph; the last copy is a wait


def test_only_the_step_of_median_length_is_taken() -> None:
    short, long = [step_row(-200, 20), op("short", -199, 2)], [step_row(200, 500)]
    before = [call("cudaLaunchKernel", -10, 4, 90), kernel("straggler", 5, 2, 90)]
    after = [call("cudaLaunchKernel", 110, 4, 91), kernel("early", 99.5, 2, 91)]
    elsewhere = [op("backward", 20, 40, thread=5000)]
    others = [step_row(-300, 10), step_row(800, 600)]
    rows = [*short, *before, *FULL_STEP, *after, *elsewhere, *long, *others]
    assert events_of_profile(rows) == events_of_profile(FULL_STEP)


def test_a_kernel_that_no_call_is_known_for_is_taken_by_its_time() -> None:
    strangers = [kernel("alone", 47, 1, 777), kernel("outside", 140, 1, 779)]
    events = events_of_profile([*FULL_STEP, *strangers])
    kinds = {e.name: e.category for e in events if e.lane == GPU}
    assert kinds["alone"] == "kernel"
    assert "outside" not in kinds
