"""The order of the captures and the number of graphs: as vLLM 0.33 has them.

`vllm_0_33.json` holds vLLM 0.33.0's answers.
"""

import pytest

from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.dispatch.pieces import split_pieces
from tests.support.capture_events import capture_events
from tests.support.vllm_vectors import label, vectors

LAYER = ["norm", "qkv", "kv_update", "attention", "o_proj", "mlp"]


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


def captured_pieces(layers):
    pieces = split_pieces(LAYER * layers, {"kv_update", "attention"})
    return sum(not piece.splitting for piece in pieces)


@pytest.mark.parametrize("vector", vectors("piecewise_graph_count"), ids=label)
def test_piecewise_graphs_are_counted_as_in_vllm_0_33(vector):
    graphs = captured_pieces(vector["layers"]) * vector["sizes"] * vector["lora_cases"]
    assert graphs == vector["expect_piecewise_cuda_graphs"]
