"""Op lists: the arithmetic of a step, and that transformers really launches what "hf56" says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_engine.model.config import ModelConfig, named_shape
from mini_engine.step.kernels import STYLES, OpCost, StepShape, step_ops, step_parts
from tests.support.checkpoint_helpers import num_parameters

QWEN = named_shape("qwen3-0.6b")
ONE = StepShape.decode(1, 1024)

configs = st.builds(
    lambda kv, group, **sizes: replace(
        QWEN, num_kv_heads=kv, num_heads=kv * group, eos_token_ids=(), **sizes
    ),
    kv=st.integers(1, 4),
    group=st.integers(1, 4),
    head_dim=st.sampled_from([2, 8, 64]),
    hidden_size=st.integers(1, 200),
    intermediate_size=st.integers(1, 300),
    num_layers=st.integers(1, 5),
    vocab_size=st.integers(1, 500),
    qkv_bias=st.booleans(),
    qk_norm=st.booleans(),
    dtype=st.sampled_from(["float32", "bfloat16"]),
)
requests = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 60)), min_size=1, max_size=6)


# ---- shapes


@given(st.integers(1, 50), st.integers(1, 50))
def test_decode_is_a_mixed_step_of_single_tokens(batch: int, context: int) -> None:
    assert StepShape.decode(batch, context) == StepShape.mixed([1] * batch, [context] * batch)


@given(requests)
def test_pairs_are_the_entries_of_the_causal_mask(lens: list[tuple[int, int]]) -> None:
    shape = StepShape.mixed([q for q, _ in lens], [q + past for q, past in lens])
    mask = sum(past + i + 1 for q, past in lens for i in range(q))
    assert shape.qk_pairs == mask
    assert shape.num_tokens == sum(q for q, _ in lens)
    assert shape.kv_tokens == sum(q + past for q, past in lens)
    assert shape.num_reqs == len(lens)


@pytest.mark.parametrize(("queries", "contexts"), [([1, 5], [9, 4]), ([0], [4]), ([1], [1, 2])])
def test_a_shape_that_cannot_be_is_refused(queries: list[int], contexts: list[int]) -> None:
    with pytest.raises(ValueError, match=r"request|argument"):
        StepShape.mixed(queries, contexts)


def test_an_unknown_style_is_refused() -> None:
    with pytest.raises(ValueError, match="no op list 'fused7': use one of hf56, vllm, "):
        step_ops(QWEN, ONE, "fused7")


# ---- counts and sums


@pytest.mark.parametrize(
    ("style", "a_layer", "a_step"),
    [
        ("hf56", 56, 1591), ("vllm", 13, 373), ("vllm-2025", 16, 457), ("sglang", 13, 384),
        ("nano-vllm", 14, 397), ("fused9", 9, 257), ("fused5", 5, 143),
    ],
)  # fmt: skip
def test_qwen3_0_6b_launches_as_many_kernels_as_its_style_says(
    style: str, a_layer: int, a_step: int
) -> None:
    assert len(step_parts(QWEN, ONE, style).layer) == a_layer
    assert len(step_ops(QWEN, ONE, style)) == a_step
    assert STYLES[style].source


@pytest.mark.parametrize("shape", [ONE, StepShape.mixed([3, 1], [3, 9])])
def test_fused9_costs_what_is_read_once_and_written_once(shape: StepShape) -> None:
    """The whole list for one shape, written out by hand."""
    c, (t, r) = named_shape("qwen2.5-0.5b"), (shape.num_tokens, shape.num_reqs)
    h, i, v, q, kv = 896, 4864, 151_936, 896, 128
    body = [
        ("qkv_proj", t * h + (q + 2 * kv) * h + t * (q + 2 * kv) + q + 2 * kv, 2 * t * h * 1152),
        ("rope_kv_write", t * 1152 + t * q + 2 * t * kv, 3.5 * t * (q + kv)),
        ("attention", 2 * t * q + 2 * kv * shape.kv_tokens, 4 * q * shape.qk_pairs),
        ("o_proj", t * q + h * q + t * h, 2 * t * h * q),
        ("add_rms_norm", 4 * t * h + h, 5 * t * h),
        ("gate_up_proj", t * h + 2 * i * h + 2 * t * i, 4 * t * h * i),
        ("silu_mul", 3 * t * i, 5 * t * i),
        ("down_proj", t * i + h * i + t * h, 2 * t * h * i),
        ("add_rms_norm", 4 * t * h + h, 5 * t * h),
    ]
    head = [("embed", 2 * t * h, 0), ("rms_norm", 2 * t * h + h, 4 * t * h)]
    tail = [
        ("select_rows", 2 * r * h, 0),
        ("lm_head", r * h + v * h + r * v, 2 * r * h * v),
        ("argmax", r * v, r * v),
    ]
    expected = [(name, 2 * elements, flops) for name, elements, flops in head + body * 24 + tail]
    assert [(op.name, op.bytes, op.flops) for op in step_ops(c, shape, "fused9")] == expected


def test_qk_norm_is_fused_into_the_rotation() -> None:
    t, q, kv = 1, 2048, 1024
    rope = next(op for op in step_ops(QWEN, ONE, "fused9") if "rope" in op.name)
    assert rope.name == "qk_norm_rope_kv_write"
    assert rope.bytes == (2 * t * (q + 2 * kv) + 2 * 128) * 2
    assert rope.flops == 7.5 * t * (q + kv)


@pytest.mark.parametrize("style", STYLES)
def test_what_splits_is_attention_and_what_has_a_row_for_each_request(style: str) -> None:
    """And, in engines that cut there, the KV write; attention has the sum of its parts with it."""
    parts = step_parts(QWEN, StepShape.mixed([5, 1], [5, 9]), style)
    own = {next(op.name for op in parts.layer if "attention" in op.name.split(".")[0])}
    assert {op.name for op in parts.layer if op.splitting} == own | set(STYLES[style].live)
    assert {op.name for op in parts.head if op.splitting} <= {"prepare"}
    assert all(op.splitting for op in parts.tail)


def test_a_reduction_follows_only_products_that_are_split() -> None:
    """Split-K at batch 1 on an H100 (sglang_h100_nsys): one product of 0.6B, two of 8B and 14B."""
    for model, reduced in (("qwen3-0.6b", ["down"]), ("qwen3-8b", ["o", "down"])):
        layer = [op.name for op in step_parts(named_shape(model), ONE, "sglang").layer]
        found = [name.removesuffix("_proj_reduce") for name in layer if "reduce" in name]
        assert found == reduced
        for name in reduced:
            at = layer.index(f"{name}_proj_reduce")
            assert layer[at - 1] == f"{name}_proj"


def test_a_norm_that_a_model_has_not_is_launched_by_none() -> None:
    names = [op.name for op in step_parts(named_shape("llama-3.2-1b"), ONE, "vllm-2025").layer]
    assert names[:3] == ["qkv_proj", "qk_rope", "kv_write"]


@given(configs, requests, st.sampled_from(list(STYLES)))
def test_every_style_reads_all_weights_and_all_keys_and_does_the_same_products(
    config: ModelConfig, lens: list[tuple[int, int]], style: str
) -> None:
    shape = StepShape.mixed([q for q, _ in lens], [q + past for q, past in lens])
    ops = step_ops(config, shape, style)
    e, t = config.dtype_bytes, shape.num_tokens
    embedding = config.vocab_size * config.hidden_size
    tables = 1 if config.tie_word_embeddings else 2
    weights = num_parameters(config) - (tables - 1) * embedding
    keys = 2 * config.num_layers * config.kv_size * shape.kv_tokens
    assert sum(op.bytes for op in ops) >= (weights + keys) * e
    matrices = weights - embedding - config.hidden_size  # head and final norm taken out
    matrices -= config.num_layers * 2 * config.hidden_size
    matrices -= config.num_layers * 2 * config.head_dim * config.qk_norm
    matrices -= config.num_layers * (config.q_size + 2 * config.kv_size) * config.qkv_bias
    products = 2 * t * matrices + 2 * shape.num_reqs * embedding
    products += 4 * config.num_layers * config.q_size * shape.qk_pairs
    # Everything else is a few operations an element: norms, rotation, SiLU, casts.
    widths = config.hidden_size + config.q_size + config.kv_size + config.intermediate_size
    rows = shape.num_reqs * (config.vocab_size + 4 * config.hidden_size)
    others = 20 * t * (config.num_layers + 1) * (widths + config.num_heads) + rows
    assert products <= sum(op.flops for op in ops) <= products + others


@given(configs, st.integers(1, 40), st.integers(1, 500))
def test_fusing_more_moves_fewer_bytes(config: ModelConfig, batch: int, context: int) -> None:
    shape = StepShape.decode(batch, context)
    hf, vllm, nine, five = (
        sum(op.bytes for op in step_ops(config, shape, style))
        for style in ("hf56", "vllm", "fused9", "fused5")
    )
    assert five < nine <= vllm
    assert five < hf


# ---- the count of transformers, again

ATEN = {
    "linear": {"mm", "addmm"},
    "to": {"_to_copy"},
    "pow": {"pow"},
    "mean": {"mean"},
    "sdpa": {"_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention"},
}


def dispatched(family: str, config: ModelConfig, batch: int, past: int) -> list[OpCost]:
    """One greedy decode step of transformers on the CPU: each op that is no view, and its bytes."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from mini_engine.bench.op_record import OpRecorder

    known = {"qwen3": "Qwen3", "qwen2": "Qwen2", "llama": "Llama"}[family]
    shape = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "max_position_embeddings": 64,
        "tie_word_embeddings": True,
    }
    if family == "qwen3":
        shape["head_dim"] = config.head_dim
    torch.manual_seed(0)
    hf = getattr(transformers, f"{known}Config")(**shape)
    hf._attn_implementation = "sdpa"
    model = getattr(transformers, f"{known}ForCausalLM")(hf).eval().to(torch.bfloat16)
    ids = torch.randint(0, config.vocab_size, (batch, past + 1))
    with torch.no_grad():
        cache = model(ids[:, :-1], use_cache=True).past_key_values
        with OpRecorder() as record:
            out = model(ids[:, -1:], past_key_values=cache, use_cache=True)
            out.logits[:, -1].argmax(-1)
    return record.ops


def tiny(family: str, **sizes: Any) -> ModelConfig:
    return replace(
        QWEN,
        **{"num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "hidden_size": 64}
        | {"intermediate_size": 48, "vocab_size": 96, "eos_token_ids": ()}
        | {"qk_norm": family == "qwen3", "qkv_bias": family == "qwen2"}
        | sizes,
    )


@pytest.mark.parametrize(("family", "a_layer"), [("qwen3", 56), ("qwen2", 40), ("llama", 40)])
def test_transformers_launches_the_ops_of_hf56_in_this_order(family: str, a_layer: int) -> None:
    """Counted on transformers 5.23 with torch 2.13. The list is claimed for 5.17 up to 6."""
    transformers = pytest.importorskip("transformers")
    version = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    if not (5, 17) <= version < (6, 0):
        pytest.skip(f"hf56 speaks for transformers 5.17 to 5.x, here is {transformers.__version__}")
    config = tiny(family)
    seen = [op.name for op in dispatched(family, config, batch=1, past=7)]
    ours = [op.name.split(".")[1] for op in step_ops(config, StepShape.decode(1, 8), "hf56")]
    for name, mine in zip(seen, ours, strict=True):
        assert name in ATEN.get(mine, {mine})
    assert len(ours) == 23 + 2 * a_layer


def test_the_bytes_of_hf56_are_those_of_the_tensors_of_transformers() -> None:
    """In all ops but those that the rotary tables or the rows of the embedding go into."""
    config, batch, past = tiny("qwen3", num_layers=1), 3, 5
    seen = dispatched("qwen3", config, batch, past)
    ours = step_ops(config, StepShape.decode(batch, past + 1), "hf56")
    compared = 0
    for theirs, op in zip(seen, ours, strict=True):
        place = op.name.split(".")[0]
        tables = place in ("embed", "rotary") or (place.startswith("rope") and theirs.name == "mul")
        if tables or theirs.name in ("argmax", "_scaled_dot_product_flash_attention_for_cpu"):
            continue  # argmax writes an index, and sdpa its log-sum-exp: index arrays are left out
        # rotate_half negates one half: its input is a view of that half.
        assert op.bytes == theirs.bytes, op.name
        compared += 1
    assert compared >= 56
