"""The plan of the captures, their number and their memory: as vLLM 0.33 has them.

`vllm_0_33.json` holds vLLM 0.33.0's answers.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_engine.dispatch.capture_plan import (
    capture_events,
    extrapolate_graph_memory,
    piecewise_graph_count,
)
from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.dispatch.pieces import split_pieces
from tests.support.vllm_vectors import label, vectors


@pytest.mark.parametrize(
    "vector",
    vectors("capture_sequence"),
    ids=lambda v: f"{v['cudagraph_mode']}-{'breakable' if v['breakable'] else 'compiled'}",
)
def test_capture_goes_step_by_step_as_in_vllm_0_33(vector):
    sizes = vector["ladder"]
    dispatcher = GraphDispatcher(vector["cudagraph_mode"], sizes, max_num_seqs=max(sizes))
    events = capture_events(dispatcher.descriptors(), breakable=vector["breakable"])
    assert [list(event) for event in events] == vector["events"]
    owned = sum(event[0] == "graph_enter" for event in events)
    assert owned == vector["graphs_owned_by_manager"]


@pytest.mark.parametrize("vector", vectors("memory_extrapolation"), ids=label)
def test_graph_memory_is_extrapolated_as_in_vllm_0_33(vector):
    assert extrapolate_graph_memory(**vector["inputs"]) == vector["expect"]


@pytest.mark.parametrize("vector", vectors("piecewise_graph_count"), ids=label)
def test_piecewise_graphs_are_counted_as_in_vllm_0_33(vector):
    count = piecewise_graph_count(vector["layers"], vector["sizes"], vector["lora_cases"])
    assert count == vector["expect_piecewise_cuda_graphs"]


@given(layers=st.integers(1, 40), sizes=st.integers(1, 60))
def test_l_attention_layers_leave_l_plus_one_graphs_a_size(layers, sizes):
    ops = [
        "norm",
        "qkv",
        "vllm::unified_kv_cache_update",
        "vllm::unified_attention_with_output",
        "o_proj",
        "mlp",
    ] * layers
    captured = [piece for piece in split_pieces(ops) if not piece.splitting]
    assert piecewise_graph_count(layers, sizes) == len(captured) * sizes
