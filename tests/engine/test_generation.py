"""generation.py: what a few prompts need of a cache and of graphs, and what they are told."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.dispatch.modes import CUDAGraphMode
from mini_engine.engine.batch import Request
from mini_engine.engine.engine import Engine
from mini_engine.engine.generation import dispatcher_for, limits_for, mode_of, with_blocks_for
from mini_engine.model.config import named_shape
from tests.support.fake_runner import FakeRunner

CONFIG = named_shape("qwen3-0.6b")


def request(number: int, prompt: int, new: int) -> Request:
    return Request(f"r{number}", [1] * prompt, new)


@given(sizes=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 20)), min_size=1, max_size=18))
def test_a_cache_sized_by_the_prompts_never_preempts(sizes: list[tuple[int, int]]) -> None:
    requests = [request(i, *size) for i, size in enumerate(sizes)]
    limits = with_blocks_for(limits_for(CONFIG, len(requests)), requests)
    engine = Engine(FakeRunner(limits), limits, GraphDispatcher("NONE", [], limits.max_num_seqs))
    assert all(done.num_preemptions == 0 for done in engine.run(requests))


def test_a_cache_has_blocks_for_prompt_and_new_tokens_and_no_more() -> None:
    requests = [request(0, 3, 48), request(1, 16, 16)]
    assert with_blocks_for(limits_for(CONFIG, 2), requests).num_blocks == 1 + 4 + 2
    many = [request(i, 8, 8) for i in range(40)]  # 16 run at once
    assert with_blocks_for(limits_for(CONFIG, 40), many).num_blocks == 1 + 16


def test_capture_sizes_that_no_step_reaches_are_named() -> None:
    said, limits = list[str](), limits_for(CONFIG, 2)
    assert dispatcher_for("FULL", limits, [99999999, 4, 65], said.append).sizes == (4,)
    assert said == ["capture sizes 65, 99999999 are dropped: a step has at most 64 tokens"]
    assert dispatcher_for("FULL", limits, [65], said.append).sizes == ()
    assert said[-1].endswith("; none is left, so every step runs eagerly")
    assert dispatcher_for("FULL", limits, None, pytest.fail).sizes
    assert dispatcher_for("NONE", limits, [65], pytest.fail).sizes == ()


@pytest.mark.parametrize(
    ("mode", "sizes", "left"),
    [
        ("FULL_AND_PIECEWISE", [1, 2], "FULL_AND_PIECEWISE"),
        ("FULL_AND_PIECEWISE", [64], "PIECEWISE"),
        ("FULL_AND_PIECEWISE", [], "NONE"),
        ("FULL_DECODE_ONLY", [64], "NONE"),
        ("FULL", [64], "FULL"),
        ("PIECEWISE", [], "NONE"),
        ("NONE", [], "NONE"),
    ],
)
def test_the_mode_is_what_its_graphs_leave_of_it(mode: str, sizes: list[int], left: str) -> None:
    limits = replace(limits_for(CONFIG, 2))
    assert mode_of(GraphDispatcher(mode, sizes, limits.max_num_seqs)) == left


def test_a_half_whose_rungs_found_no_memory_is_gone() -> None:
    dispatcher = GraphDispatcher("FULL_AND_PIECEWISE", [1, 2], 2)
    dispatcher.drop(CUDAGraphMode.PIECEWISE, [1, 2])
    assert mode_of(dispatcher) == "FULL_DECODE_ONLY"
