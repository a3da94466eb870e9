"""What fits: bytes that can be counted by hand, and limits that are really the limits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.model.config import SHAPES, ModelConfig, named_shape
from mini_engine.step.capacity import (
    CapacityReport,
    activation_bytes,
    capacity,
    check_batch,
    logit_bytes,
)
from mini_engine.step.cards import DeviceSpec, load_spec
from mini_engine.step.step_model import StepModel
from mini_engine.step.storage import KV_DTYPE_BYTES, QUANTS, stored_as

H200, RTX4070 = load_spec("h200"), load_spec("rtx4070")
QWEN = named_shape("qwen3-1.7b")
LADDER = default_capture_sizes(256, 8192)

shapes = st.sampled_from(sorted(SHAPES)).map(named_shape)


def of_gib(gib: float) -> DeviceSpec:
    return replace(H200, vram_bytes=int(gib * 2**30))


def test_int4_counts_its_scales_and_leaves_the_embedding_alone() -> None:
    tiny = replace(
        QWEN, hidden_size=256, intermediate_size=300, num_layers=1, num_heads=2, num_kv_heads=1,
        head_dim=128, vocab_size=1000, eos_token_ids=(),
    )  # fmt: skip
    rows = {"qkv": (512, 256), "o": (256, 256), "gate_up": (600, 256), "down": (256, 300)}
    plain = 2 * (1000 * 256 + 3 * 256 + 2 * 128)  # embedding, norms, q and k norms
    nibbles = sum(n * k // 2 for n, k in rows.values())
    groups = 512 * 2 + 256 * 2 + 600 * 2 + 256 * 3  # of 128 inputs, the last one short
    assert stored_as(tiny, "int4").held == plain + nibbles + groups * 2.5
    bytes8 = sum(n * k for n, k in rows.values())
    assert stored_as(tiny, "int8").held == plain + bytes8 + 4 * (512 + 256 + 600 + 256)
    assert stored_as(tiny, "fp8").held == stored_as(tiny, "int8").held


@given(
    shapes,
    st.floats(0.5, 200.0),
    st.integers(1, 50_000),
    st.integers(1, 300),
    st.sampled_from(sorted(QUANTS)),
    st.sampled_from(sorted(KV_DTYPE_BYTES)),
    st.lists(st.integers(1, 600), max_size=5),
)
def test_the_items_add_up_and_the_limits_are_tight(
    config: ModelConfig,
    vram_gb: float,
    context: int,
    batch: int,
    quant: str,
    kv_dtype: str,
    sizes: list[int],
) -> None:
    card, stored = of_gib(vram_gb), stored_as(config, quant, kv_dtype)

    def report(context: int, batch: int) -> CapacityReport:
        return capacity(
            config, card, context=context, batch=batch, stored=stored, capture_sizes=sizes
        )

    asked = report(context, batch)
    whole, *items, left = [bytes for _, bytes, _ in asked.rows()]
    assert whole == card.vram_bytes == sum(items) + left
    assert asked.left_bytes == left
    assert asked.fits == (left >= 0) == (batch <= asked.max_batch)
    if asked.max_batch:
        assert report(context, asked.max_batch).fits
    assert not report(context, asked.max_batch + 1).fits
    if asked.max_context:
        assert report(asked.max_context, 1).fits
    assert not report(asked.max_context + 1, 1).fits


def test_graphs_hold_the_activations_of_the_largest_rung_and_nodes_for_every_rung() -> None:
    eager, graphs = (capacity(QWEN, H200, context=1, capture_sizes=s) for s in ((), LADDER))
    assert eager.graph_pool_bytes == eager.graph_node_bytes == 0
    assert graphs.graph_pool_bytes == activation_bytes(QWEN, 512) + 512 * logit_bytes(QWEN)
    nodes = 28 * 13 + 2  # of vLLM, without the seven that no graph contains
    assert graphs.graph_node_bytes == len(LADDER) * nodes * H200.graph_node_bytes
    denser = capacity(QWEN, H200, context=1, capture_sizes=range(1, 513))
    assert denser.graph_pool_bytes == graphs.graph_pool_bytes  # shared
    assert denser.graph_node_bytes > graphs.graph_node_bytes


def test_activations_are_the_widest_place_of_the_forward_pass() -> None:
    """Qwen3-1.7B: gate, up and their product, beside residual and normed row, in bf16."""
    assert activation_bytes(QWEN, 10) == 10 * (2 * 2048 + 3 * 6144) * 2
    attention = replace(QWEN, intermediate_size=64)
    assert activation_bytes(attention, 10) == 10 * (2 * 2048 + 2 * 2048 + 2 * 1024) * 2


def test_what_does_not_fit_says_so() -> None:
    report = capacity(named_shape("qwen3-8b"), of_gib(8), context=100)
    assert not report.fits
    assert (report.max_batch, report.max_context) == (0, 0)
    label, bytes, note = report.rows()[-1]
    assert label == "left"
    assert bytes < 0
    assert "does not fit" in note


@pytest.mark.parametrize(("name", "bad"), [("context", 0), ("batch", -1)])
def test_a_bad_number_is_refused_by_name_and_value(name: str, bad: int) -> None:
    with pytest.raises(ValueError, match=rf"{name}.* {bad!r}"):
        capacity(QWEN, H200, **{"context": 100, name: bad})  # type: ignore[arg-type]


def test_a_batch_that_does_not_fit_is_refused_and_one_that_fits_says_how_many_do() -> None:
    costs = StepModel(QWEN, RTX4070)
    room = check_batch(costs, 1, 10_000)
    assert check_batch(costs, room, 10_000) == room
    for batch, context in ((room + 1, 10_000), (1, 40_961)):
        with pytest.raises(ValueError, match=f"{batch if context == 10_000 else '40,961'}"):
            check_batch(costs, batch, context)
