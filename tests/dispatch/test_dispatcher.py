"""Which graph a batch runs in, and where a forward pass is cut: as vLLM 0.33 does, and beyond.

`vllm_0_33.json` holds vLLM 0.33.0's answers. An AssertionError there is a ValueError here.
"""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_engine.dispatch.dispatcher import BatchDescriptor, GraphDispatcher, uniform_token_count
from mini_engine.dispatch.modes import CUDAGraphMode
from mini_engine.dispatch.pieces import split_pieces
from tests.support.vllm_vectors import label, vectors

FULL, PIECEWISE, NONE = CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE, CUDAGraphMode.NONE
ATTENTION = "vllm::unified_attention_with_output"
KV_WRITE = "vllm::unified_kv_cache_update"
SPLITTING_OPS = vectors("splitting_ops_default")


# ── dispatch ─────────────────────────────────────────────────────────────────────────────────


def as_in_vector(descriptor):
    return {
        "cg_mode": descriptor.mode.name,
        "num_tokens": descriptor.num_tokens,
        "num_reqs": descriptor.num_reqs,
        "uniform_token_count": descriptor.uniform_token_count,
    }


def dispatcher_of(vector):
    dispatcher = GraphDispatcher(
        vector["cudagraph_mode"],
        vector["ladder"],
        vector["max_num_seqs"],
        vector["decode_query_len"],
    )
    dispatcher.graphs_captured = vector["graphs_captured"]
    return dispatcher


@pytest.mark.parametrize("vector", vectors("dispatch"), ids=label)
def test_graphs_are_captured_in_the_order_of_vllm_0_33(vector):
    order = [as_in_vector(descriptor) for descriptor in dispatcher_of(vector).descriptors()]
    assert order == vector["capture_order"]


@pytest.mark.parametrize("vector", vectors("dispatch"), ids=label)
def test_batches_are_dispatched_as_in_vllm_0_33(vector):
    dispatcher = dispatcher_of(vector)
    for case in vector["cases"]:
        assert as_in_vector(dispatcher.dispatch(**case["inputs"])) == case["expect"], case


def test_decode_batches_between_the_last_whole_rung_and_max_num_seqs_fall_off_a_cliff():
    """vLLM PR 57355: with max_num_seqs 6 off the ladder, batches of 5 and 6 lose their graph."""
    off_ladder = GraphDispatcher("FULL_DECODE_ONLY", [1, 2, 4, 8, 16], max_num_seqs=6)
    on_ladder = GraphDispatcher("FULL_DECODE_ONLY", [1, 2, 4, 6, 8, 16], max_num_seqs=6)
    assert [off_ladder.dispatch(n, n, 1).mode for n in (4, 5, 6)] == [FULL, NONE, NONE]
    assert [on_ladder.dispatch(n, n, 1).num_tokens for n in (4, 5, 6)] == [4, 6, 6]


modes = st.sampled_from(CUDAGraphMode)
ladders = st.sets(st.integers(1, 40), min_size=1, max_size=8).map(sorted)


@given(
    mode=modes,
    sizes=ladders,
    max_num_seqs=st.integers(1, 40),
    query_len=st.integers(1, 4),
    batch=st.lists(st.integers(1, 6), min_size=1, max_size=12),
)
def test_a_batch_runs_where_it_fits_or_eagerly_as_it_is(
    mode, sizes, max_num_seqs, query_len, batch
):
    dispatcher = GraphDispatcher(mode, sizes, max_num_seqs, query_len)
    num_reqs, num_tokens, uniform = len(batch), sum(batch), uniform_token_count(batch)
    chosen = dispatcher.dispatch(num_reqs, num_tokens, uniform)
    if chosen.mode is NONE:
        assert chosen == BatchDescriptor(NONE, num_tokens, num_reqs)
        return
    assert chosen in dispatcher.descriptors()
    assert chosen.num_tokens >= num_tokens
    assert chosen.num_reqs is None or num_reqs <= chosen.num_reqs <= max_num_seqs
    if mode.separate_routine() and chosen.mode is FULL:
        assert uniform == query_len, "a decode graph was given another batch"
    # Without decode graphs of their own, every rung serves every batch: the next rung is taken.
    if not mode.separate_routine():
        assert chosen.num_tokens == min(size for size in sizes if size >= num_tokens)


@given(
    mode=modes,
    sizes=ladders,
    max_num_seqs=st.integers(1, 40),
    query_len=st.integers(1, 3),
    data=st.data(),
)
def test_a_dropped_rung_might_never_have_been_there(mode, sizes, max_num_seqs, query_len, data):
    dispatcher = GraphDispatcher(mode, sizes, max_num_seqs, query_len)
    everything = dispatcher.descriptors()
    if not everything:
        return
    gone = data.draw(st.sampled_from(everything))
    dispatcher.drop(gone.mode, [gone.num_tokens])
    assert dispatcher.descriptors() == [rung for rung in everything if rung != gone]
    for num_reqs in range(1, max_num_seqs + 1):
        chosen = dispatcher.dispatch(num_reqs, num_reqs * query_len, query_len)
        first_fit = {
            rung.mode: rung  # largest first, so the last one kept is the smallest that holds it
            for rung in dispatcher.descriptors()
            if rung.num_tokens >= num_reqs * query_len
        }
        fits = [
            first_fit[mode]
            for mode in (FULL, PIECEWISE)
            if mode in first_fit and (first_fit[mode].num_reqs or num_reqs) >= num_reqs
        ]
        assert chosen == [*fits, BatchDescriptor(NONE, num_reqs * query_len, num_reqs)][0]


def test_a_dispatcher_refuses_limits_below_one():
    with pytest.raises(ValueError, match="max_num_seqs 0, decode_query_len 1"):
        GraphDispatcher("FULL", [1], max_num_seqs=0)
    with pytest.raises(ValueError, match="max_num_seqs 1, decode_query_len 0"):
        GraphDispatcher("FULL", [1], max_num_seqs=1, decode_query_len=0)


@pytest.mark.parametrize("vector", vectors("uniform_decode_predicate"), ids=label)
def test_uniform_decode_is_judged_as_in_vllm_0_33(vector):
    """Both of vLLM 0.33's model runners: v1 compares with a fixed length, v2 reports the length."""
    lens, fixed = vector["inputs"]["query_lens"], vector["inputs"]["uniform_decode_query_len"]
    assert (uniform_token_count(lens) == fixed) is vector["expect_mrv1_uniform_decode"]
    assert uniform_token_count(lens) == vector["expect_mrv2_uniform_token_count_if_eligible"]
    with_prefill = uniform_token_count(lens, has_prefill=True)
    assert with_prefill == vector["expect_mrv2_if_has_prefill"]


# ── piecewise split ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("vector", vectors("piecewise_split"), ids=label)
def test_a_forward_pass_is_split_as_in_vllm_0_33(vector):
    pieces = split_pieces(vector["ops"], SPLITTING_OPS)
    expect = vector["expect"]
    as_dicts = [{"id": p.id, "splitting": p.splitting, "ops": list(p.ops)} for p in pieces]
    assert as_dicts == expect["pieces"]
    assert len(pieces) == expect["num_pieces"]
    assert sum(not piece.splitting for piece in pieces) == expect["num_capturable"]
    assert sum(piece.splitting for piece in pieces) == expect["num_splitting"]


@given(st.lists(st.sampled_from(["norm", "mlp", "empty", ATTENTION, KV_WRITE]), max_size=20))
def test_splitting_loses_no_op_and_captures_no_splitting_op(ops):
    pieces = split_pieces(ops, SPLITTING_OPS)
    positions = [at for piece in pieces for at in piece.positions]
    assert sorted(positions) == list(range(len(ops)))
    for piece in pieces:
        assert piece.ops == [ops[at] for at in piece.positions]
        assert {op in SPLITTING_OPS for op in piece.ops} == {piece.splitting}
        assert piece.positions == sorted(piece.positions)
    ids = [piece.id for piece in pieces]
    assert ids == sorted(set(ids))
    if "empty" not in ops:  # only an allocation moves, so without one the order stays
        assert positions == list(range(len(ops)))
        assert all(a.splitting != b.splitting for a, b in itertools.pairwise(pieces))


def test_an_allocation_with_no_captured_piece_before_it_stays_where_it_is():
    pieces = split_pieces([KV_WRITE, "empty", ATTENTION, "mlp"], SPLITTING_OPS)
    assert [(piece.id, piece.ops) for piece in pieces] == [
        (1, [KV_WRITE]),
        (2, ["empty"]),
        (3, [ATTENTION]),
        (4, ["mlp"]),
    ]


def test_two_allocations_are_a_piece_worth_capturing():
    pieces = split_pieces(["qkv", KV_WRITE, "empty", "empty", ATTENTION], SPLITTING_OPS)
    assert [piece.ops for piece in pieces][2] == ["empty", "empty"]


def test_only_the_default_overload_goes_by_the_name_of_its_op():
    def cuts(op, *splitting_ops):
        return split_pieces([op], splitting_ops)[0].splitting

    assert cuts("x::y.default", "x::y")
    assert not cuts("x::y.out", "x::y")
    assert cuts("x::y.out", "x::y.out")
