"""Steps that others have recorded: what they launch, and what the GPU waited for."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from mini_engine.sim.recorded import KINDS, anatomy, kind_of, load_recording, recording_names
from mini_engine.sim.trace import CPU, GPU, busy_us

SGLANG, FULL, PIECES = "sglang-qwen3-8b-graph", "vllm-gpt-oss-full", "vllm-gpt-oss-piecewise"
HF, EAGER = "transformers-qwen1.5-0.5b-eager", "vllm-moe-eager"


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


@pytest.mark.parametrize("name", recording_names())
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
    ("kernel", "kind"),
    [
        ("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>", "KV write"),
        ("void flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits>", "attention"),
        ("BatchDecodeWithPagedKVCacheKernel", "attention"),
        ("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu", "product"),
        ("nvjet_sm90_tst_64x8_64x16_4x2_h_bz_TNT", "product"),
        ("void flashinfer::norm::FusedAddRMSNormKernel", "norm"),
        ("moe::dev::routing::routingRenormalize", "routing"),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel", "other"),
    ],
)
def test_a_kernels_name_tells_its_kind(kernel: str, kind: str) -> None:
    assert kind_of(kernel) == kind
    assert kind in (*KINDS, "other")


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


def test_an_unknown_recording_is_named() -> None:
    with pytest.raises(ValueError, match="'sglang-qwen3-8b'"):
        load_recording("sglang-qwen3-8b")
