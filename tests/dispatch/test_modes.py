"""Modes, and what they become on a backend that supports less: as vLLM 0.33 answers.

`vllm_0_33.json` holds vLLM 0.33.0's answers. An AssertionError there is a ValueError here.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labs.lab09b_cudagraph_mode.resolve import (
    AttentionCGSupport,
    CompilationMode,
    resolve_mode,
    without_piecewise,
)
from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.dispatch.modes import CUDAGraphMode
from tests.support.vllm_vectors import vectors

FULL, PIECEWISE, NONE = CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE, CUDAGraphMode.NONE


@pytest.mark.parametrize("vector", vectors("modes"), ids=lambda v: v["mode"])
def test_a_mode_answers_as_in_vllm_0_33(vector):
    mode = CUDAGraphMode[vector["mode"]]
    assert mode.decode_mode().name == vector["decode_mode"]
    assert mode.mixed_mode().name == vector["mixed_mode"]
    assert without_piecewise(mode).name == vector["without_piecewise"]
    assert mode.separate_routine() is vector["separate_routine"]
    answers = {mode.decode_mode(), mode.mixed_mode()}
    for other, expected in vector["has_mode"].items():
        assert (CUDAGraphMode[other] in answers) is expected


def test_a_mode_that_does_not_exist_is_refused_with_the_names_that_do():
    with pytest.raises(ValueError, match="unknown CUDAGraphMode 'PARTIAL': give one of NONE, "):
        GraphDispatcher("PARTIAL", [1, 2], max_num_seqs=2)


def test_a_mode_is_resolved_as_in_vllm_0_33():
    for vector in vectors("mode_resolution"):
        inputs = dict(vector["inputs"])
        mode, support = inputs.pop("cudagraph_mode"), inputs.pop("min_cg_support")
        if vector["expect"] == "ValueError":
            refusal = f"mode {mode} .* support NEVER: ask for PIECEWISE"
            with pytest.raises(ValueError, match=refusal):
                resolve_mode(mode, support, **inputs)
        else:
            assert resolve_mode(mode, support, **inputs).name == vector["expect"], vector


@given(
    mode=st.sampled_from(CUDAGraphMode),
    support=st.sampled_from(AttentionCGSupport),
    split=st.booleans(),
    compilation_mode=st.sampled_from(CompilationMode),
    query_len=st.integers(1, 5),
    available=st.booleans(),
)
def test_a_resolved_mode_asks_nothing_that_is_not_there(
    mode, support, split, compilation_mode, query_len, available
):
    settings = {
        "attention_in_splitting_ops": split,
        "compilation_mode": compilation_mode,
        "uniform_decode_query_len": query_len,
        "piecewise_capture_available": available,
    }
    try:
        resolved = resolve_mode(mode, support, **settings)
    except ValueError:
        assert (mode, support) == (FULL, AttentionCGSupport.NEVER)
        return
    if resolved.mixed_mode() is FULL:
        assert support is AttentionCGSupport.ALWAYS
    if resolved.decode_mode() is FULL:
        needed = AttentionCGSupport.UNIFORM_BATCH if query_len > 1 else 1
        assert support >= needed
    if resolved.mixed_mode() is PIECEWISE:
        assert available
    assert resolve_mode(resolved, support, **settings) is resolved, "resolving twice differs"
