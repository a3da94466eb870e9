"""Claims about how a card's memory is shared out."""

from dataclasses import replace

import pytest

from mini_engine.model.config import named_shape
from mini_engine.serving.ladder_cost import size_server
from mini_engine.step.capacity import activation_bytes, logit_bytes
from mini_engine.step.cards import load_spec
from mini_engine.step.storage import stored_as

CONFIG, SPEC = named_shape("qwen3-0.6b"), load_spec("h200")


def test_what_nothing_else_needs_is_kv_cache() -> None:
    server = size_server(CONFIG, SPEC, "FULL_AND_PIECEWISE", [1, 2, 4, 8])
    seqs, tokens = SPEC.batch_defaults
    largest_step = activation_bytes(CONFIG, tokens) + seqs * logit_bytes(CONFIG)
    stored = stored_as(CONFIG)
    used = SPEC.reserved_bytes + stored.held + largest_step + server.graph_costs.memory_bytes
    kv_bytes = server.limits.num_blocks * 16 * stored.kv_bytes_per_token
    assert 0 <= SPEC.vram_bytes - used - kv_bytes < 16 * stored.kv_bytes_per_token
    assert server.limits.max_model_len == 40_960


def test_graphs_are_counted_as_they_are_captured() -> None:
    none, full, both = (
        size_server(CONFIG, SPEC, mode, [1, 2, 4])
        for mode in ("NONE", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")
    )
    nothing = none.graph_costs
    assert (nothing.graphs, nothing.memory_bytes, nothing.capture_us) == (0, 0, 0.0)
    # 28 layers leave 29 pieces at each of 3 sizes, beside the full ones
    assert (full.graph_costs.graphs, both.graph_costs.graphs) == (3, 3 + 3 * 29)
    # of 373 kernels a step, 7 are in no graph
    assert full.graph_costs.node_bytes == 3 * 366 * SPEC.graph_node_bytes
    assert none.limits.num_blocks > full.limits.num_blocks > both.limits.num_blocks
    assert both.graph_costs.capture_us > full.graph_costs.capture_us > 0


def test_the_pool_holds_the_largest_rung_once_and_logits_where_the_graph_computes_them() -> None:
    small = size_server(CONFIG, SPEC, "FULL_DECODE_ONLY", [8])
    more = size_server(CONFIG, SPEC, "FULL_DECODE_ONLY", [1, 2, 4, 8])
    assert small.graph_costs.pool_bytes == more.graph_costs.pool_bytes
    assert small.graph_costs.pool_bytes == activation_bytes(CONFIG, 8)  # vLLM's ends before them
    sglang = size_server(CONFIG, load_spec("h200", engine="sglang"), "FULL_DECODE_ONLY", [8])
    assert sglang.graph_costs.pool_bytes == activation_bytes(CONFIG, 8) + 8 * logit_bytes(CONFIG)


def test_piecewise_graphs_hold_no_logits() -> None:
    server = size_server(CONFIG, SPEC, "PIECEWISE", [4, 64])
    assert server.graph_costs.pool_bytes == activation_bytes(CONFIG, 64)


def test_a_model_that_does_not_fit_is_refused() -> None:
    small = replace(SPEC, vram_bytes=2 * 10**9)
    with pytest.raises(ValueError, match="qwen3-1"):
        size_server(named_shape("qwen3-1.7b"), small, "NONE", [])
