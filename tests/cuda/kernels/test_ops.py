"""The kernels' ops as the model sees them: on a CPU without the interpreter, before a launch."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch

pytest.importorskip("triton", reason="Triton has no wheel for this platform")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the interpreter is on in this process", allow_module_level=True)

from mini_engine.cuda.kernels import (
    activation,
    attention,
    fused_attention,
    head,
    linear,
    norm,
    pick,
    prefill,
    rope,
)
from mini_engine.cuda.kernels.gemv import GemvPlan, chunk_of
from mini_engine.cuda.kernels.launch import launch_options
from mini_engine.cuda.kernels.paged import Heads
from tests.support.kernel_cases import NAN, Paged, paged, rotary

HEADS = Heads(4, 2, 32, 4)
EPS = 1e-6
CPU = torch.device("cpu")


def rows(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def batch() -> tuple[Paged, torch.Tensor]:
    torch.manual_seed(0)
    kv = paged([9, 0, 6], HEADS.num_kv_heads, HEADS.head_dim, HEADS.block_size, torch.float32)
    return kv, rows(3, HEADS.qkv_size)


def every_call() -> dict[str, tuple[Callable[..., None], tuple[object, ...]]]:
    """Each op with arguments that fit."""
    kv, qkv = batch()
    cache, lens = (kv.k_cache, kv.v_cache), (kv.block_table, kv.context_lens)
    q, counters = rows(3, HEADS.num_heads * HEADS.head_dim), torch.zeros(3, 2, dtype=torch.int32)
    ints = torch.zeros(3, dtype=torch.int32)
    ones, matrix, norm_weight = torch.ones(3, dtype=torch.int32), rows(12, 32), rows(32)
    programs = head.num_programs(12, 32)
    found, where = rows(3, programs), torch.zeros(3, programs, dtype=torch.int32)
    tokens = torch.zeros(3, dtype=torch.int64)
    advanced = (ints.clone(), ints.clone(), ones.clone(), ints.clone())
    turned = rotary(HEADS.head_dim)
    return {
        "rms_norm": (norm.rms_norm, (rows(3, 32), rows(3, 32), norm_weight, EPS)),
        "add_rms_norm": (norm.add_rms_norm, (*rows(3, 3, 32), norm_weight, EPS)),
        "silu_mul": (activation.silu_mul, (rows(3, 8), rows(3, 16))),
        "rope_kv_write": (rope.rope_kv_write, (q, *cache, qkv, ints, ints, *turned)),
        "decode_attention": (
            attention.decode_attention,
            (torch.zeros_like(q), counters, q, *cache, *lens, 2),
        ),
        "prefill_attention": (
            prefill.prefill_attention,
            (torch.zeros_like(q), q, *cache, kv.block_table, ones, kv.context_lens),
        ),
        "rope_kv_write_attention": (
            fused_attention.rope_kv_write_attention,
            (q, *cache, counters, qkv, *lens, *turned, 2),
        ),
        "linear": (linear.linear, (rows(3, 12), rows(3, 32), matrix)),
        "norm_linear": (linear.norm_linear, (rows(3, 12), rows(3, 32), norm_weight, matrix, EPS)),
        "linear_add": (linear.linear_add, (rows(3, 12), rows(3, 32), matrix)),
        "norm_gate_up_silu_mul": (
            linear.norm_gate_up_silu_mul,
            (rows(3, 6), rows(3, 32), norm_weight, matrix, EPS),
        ),
        "norm_lm_head": (
            head.norm_lm_head,
            (found, where, rows(3, 12), rows(3, 32), norm_weight, matrix, EPS),
        ),
        "pick_tokens": (pick.pick_tokens, (tokens, found, where)),
        "pick_and_advance": (
            pick.pick_and_advance,
            (tokens, *advanced, found, where, kv.block_table, 4, 4 * kv.block_table.shape[1]),
        ),
    }


NAMES = list(every_call())


@pytest.mark.parametrize("name", NAMES)
def test_torch_may_trace_and_capture_the_op(name: str) -> None:
    """Its schema names what it writes, and it runs on fake tensors."""
    op, arguments = every_call()[name]
    torch.library.opcheck(op, arguments, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("name", NAMES)
def test_an_op_on_a_cpu_needs_no_interpreter_and_leaves_numbers(name: str) -> None:
    op, arguments = every_call()[name]
    out = arguments[0]
    assert isinstance(out, torch.Tensor)
    before = out.clone()
    if name not in ("linear_add", "pick_tokens", "pick_and_advance"):
        out.fill_(NAN)
    op(*arguments)
    assert not out.isnan().any()
    assert name.startswith("pick") or not out.equal(before)


@pytest.mark.parametrize("name", NAMES)
def test_a_misshapen_output_is_refused_in_one_line(name: str) -> None:
    op, (out, *rest) = every_call()[name]
    assert isinstance(out, torch.Tensor)
    with pytest.raises(ValueError, match=r"expected") as refused:
        op(torch.cat([out, out]), *rest)
    assert "\n" not in str(refused.value)


def test_what_does_not_fit_is_named() -> None:
    calls = every_call()
    op, arguments = calls["rms_norm"]
    with pytest.raises(ValueError, match="not contiguous"):
        op(rows(32, 3).T, *arguments[1:])
    op, arguments = calls["decode_attention"]
    with pytest.raises(ValueError, match="splits is 65, expected 1 to 64"):
        op(*arguments[:-1], 65)


def test_a_batch_too_large_for_a_kernel_is_told_what_to_use() -> None:
    x, norm_weight, weight = rows(5, 32), rows(32), rows(12, 32)
    with pytest.raises(ValueError, match=r"5 tokens > 4: use library_linear"):
        linear.linear_add(rows(5, 12), x, weight)
    parts, logits = torch.empty(5, head.num_programs(12, 32)), torch.empty(5, 12)
    with pytest.raises(ValueError, match=r"5 rows > 4"):
        head.norm_lm_head(parts, parts.int(), logits, x, norm_weight, weight, EPS)


# ---- programmatic dependent launch


def test_pdl_is_refused_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="needs a GPU of sm_90 or newer, not cpu"):
        launch_options(True, CPU)
    assert launch_options(False, CPU) == {"PDL": False}
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    with pytest.raises(ValueError, match="sm_80 has no"):
        launch_options(True, torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    assert launch_options(True, torch.device("cuda")) == {"PDL": True, "launch_pdl": True}


# ---- plans


@pytest.mark.parametrize("width", [16, 17, 64, 896, 1000, 1536, 4864, 8960, 11_008])
def test_chunks_cover_the_width_and_waste_little(width: int) -> None:
    for largest in (128, 2048):
        chunk = chunk_of(width, largest)
        covered = -(-width // chunk) * chunk
        assert width <= covered
        assert chunk == 16 or covered <= 1.15 * width
    assert GemvPlan(3, 4, 16, 1).num_programs(10) == 4
