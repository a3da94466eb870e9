"""The ladder: vLLM 0.33's default sizes, rungs and waste, and the best ladder for a workload.

`vllm_0_33.json` holds vLLM 0.33.0's answers. An AssertionError there is a ValueError here.
"""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_engine.dispatch.default_ladder import batch_defaults, default_capture_sizes
from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.dispatch.ladder import CaptureLadder, best_ladders, optimal_ladder
from mini_engine.dispatch.modes import CUDAGraphMode
from tests.support.vllm_vectors import label, vectors

# ── vLLM's default sizes ─────────────────────────────────────────────────────────────────────

OUR_NAMES = {"user_max": "max_capture_size", "user_sizes": "capture_sizes"}


@pytest.mark.parametrize("vector", vectors("ladder"), ids=label)
def test_the_default_ladder_is_that_of_vllm_0_33(vector):
    settings = {OUR_NAMES.get(name, name): value for name, value in vector["inputs"].items()}
    expect = vector["expect"]
    if "error" in expect:  # ValueError or AssertionError in vLLM, always ValueError here
        with pytest.raises(ValueError, match=r"give|largest"):
            default_capture_sizes(**settings)
        return
    sizes = default_capture_sizes(**settings)
    assert sizes == expect["sizes"]
    assert len(sizes) == expect["len"]
    assert sizes[-1] == expect["max_cudagraph_capture_size"]


@given(max_num_seqs=st.integers(1, 1500), max_tokens=st.integers(1, 20_000))
def test_every_decode_batch_up_to_the_top_has_a_full_graph_by_default(max_num_seqs, max_tokens):
    sizes = default_capture_sizes(max_num_seqs, max_tokens)
    assert CaptureLadder(sizes).sizes == tuple(sizes), "the default must be a lawful ladder"
    assert sizes[-1] <= min(max_tokens, 512)
    dispatcher = GraphDispatcher("FULL_AND_PIECEWISE", sizes, max_num_seqs)
    for reqs in range(1, min(max_num_seqs, sizes[-1]) + 1):
        assert dispatcher.dispatch(reqs, reqs, 1).mode is CUDAGraphMode.FULL


def test_speculation_leaves_the_widest_decode_batches_without_a_full_graph():
    """510 tokens fit below the top of 512, but 512 in whole requests of 3 would be 513."""
    sizes = default_capture_sizes(256, 8192, num_speculative_tokens=2)
    dispatcher = GraphDispatcher("FULL_AND_PIECEWISE", sizes, 256, decode_query_len=3)
    assert dispatcher.dispatch(168, 504, 3).mode is CUDAGraphMode.FULL
    assert dispatcher.dispatch(169, 507, 3).mode is CUDAGraphMode.PIECEWISE
    assert dispatcher.dispatch(170, 510, 3).mode is CUDAGraphMode.PIECEWISE


def test_no_ladder_where_nothing_is_captured():
    assert default_capture_sizes(256, 8192, mode="NONE") == []
    assert default_capture_sizes(256, 8192, mode="none", capture_sizes=[1, 2]) == []


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mode": "ALL"}, "unknown CUDAGraphMode 'ALL'"),
        ({"capture_sizes": [4, 0]}, r"capture sizes \[4, 0\]: give sizes from 1"),
        ({"capture_sizes": []}, r"capture sizes \[\]: give sizes from 1"),
        ({"max_capture_size": 0}, r"largest capture size 0"),
        ({"max_capture_size": 8, "capture_sizes": [1, 4]}, "max_capture_size 8, but the largest"),
    ],
)
def test_settings_without_a_ladder_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        default_capture_sizes(8, 64, **settings)


# ── rungs ────────────────────────────────────────────────────────────────────────────────────


def test_a_batch_is_padded_to_the_rung_of_vllm_0_33():
    table, samples = vectors("padding")
    ladder = CaptureLadder(table["ladder"])
    assert [ladder.rung(n) for n in range(len(table["table"]))] == table["table"]
    assert ladder.rung(ladder.top + 1) is None
    default = CaptureLadder(default_capture_sizes(256, 8192))
    for n, rung in samples["samples"].items():
        assert default.rung(int(n)) == rung


histograms = st.dictionaries(st.integers(1, 14), st.integers(0, 50), min_size=1)
ladders = st.sets(st.integers(1, 20), min_size=1, max_size=8).map(
    lambda s: CaptureLadder(sorted(s))
)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ([], "needs at least one rung"),
        ([1, 4, 2], "rung 2 after 4"),
        ([1, 2, 2], "rung 2 after 2"),
        ([0, 2], "rung 0 after 0"),
    ],
)
def test_a_ladder_refuses_rungs_that_are_none(sizes, words):
    with pytest.raises(ValueError, match=words):
        CaptureLadder(sizes)


# ── waste ────────────────────────────────────────────────────────────────────────────────────


@given(ladder=ladders, histogram=histograms)
def test_waste_is_what_counting_every_step_gives(ladder, histogram):
    steps = [rows for rows, times in histogram.items() for _ in range(times)]
    in_graph = [rows for rows in steps if rows <= ladder.top]
    eager = [rows for rows in steps if rows > ladder.top]
    waste = ladder.waste(histogram)
    assert waste.real_rows == sum(steps)
    assert waste.padded_rows == sum(ladder.rung(rows) - rows for rows in in_graph)
    assert (waste.eager_rows, waste.eager_steps) == (sum(eager), len(eager))
    computed = sum(ladder.rung(rows) for rows in in_graph) + sum(eager)
    assert waste.wasted_fraction == (waste.padded_rows / computed if computed else 0.0)


# ── the best ladder for a workload ───────────────────────────────────────────────────────────


def work(ladder, histogram, cost):
    """What the steps that fit cost on this ladder."""
    served = {rows: times for rows, times in histogram.items() if 0 < rows <= ladder.top}
    return sum(times * cost(ladder.rung(rows)) for rows, times in served.items())


def every_ladder(rungs, top):
    """All ladders of at most `rungs` rungs that end at `top`."""
    for count in range(min(rungs, top)):
        for below in itertools.combinations(range(1, top), count):
            yield CaptureLadder([*below, top])


@given(
    histogram=histograms,
    rungs=st.integers(1, 4),
    top=st.integers(1, 12),
    costs=st.lists(st.integers(0, 9), min_size=13, max_size=13),
)
def test_no_ladder_costs_less_whatever_a_rung_costs(histogram, rungs, top, costs):
    """Costs that fall as well as rise: a kernel may run 16 rows faster than 15."""
    best = optimal_ladder(histogram, rungs, cost=costs.__getitem__, top=top)
    assert best.top == top
    least = min(
        (work(ladder, histogram, costs.__getitem__), len(ladder))
        for ladder in every_ladder(rungs, top)
    )
    assert (work(best, histogram, costs.__getitem__), len(best)) == least


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (({4: 1}, 0, float, None), "a ladder of 0 rungs"),
        (({}, 2, float, None), "the histogram has no steps"),
        (({4: 0}, 2, float, None), "the histogram has no steps"),
        (({4: 1}, 2, float, 0), "top rung 0"),
        (({4: -1}, 2, float, None), "histogram entry 4: -1"),
    ],
)
def test_a_workload_that_says_nothing_is_refused(arguments, words):
    histogram, rungs, cost, top = arguments
    with pytest.raises(ValueError, match=words):
        optimal_ladder(histogram, rungs, cost=cost, top=top)


@given(histogram=histograms, max_rungs=st.integers(1, 8), top=st.integers(1, 16))
def test_a_denser_ladder_pads_less(histogram, max_rungs, top):
    found = best_ladders(histogram, max_rungs, top=top)
    padded = [ladder.waste(histogram).padded_rows for ladder in found]
    for rungs, ladder in enumerate(found, 1):
        assert ladder == optimal_ladder(histogram, rungs, top=top)
        assert len(ladder) == rungs
    assert all(dense < sparse for sparse, dense in itertools.pairwise(padded))
    # They end where asked, or where every batch has a rung of its own.
    assert len(found) == max_rungs or padded[-1] == 0


def test_a_rung_that_saves_nothing_adds_no_ladder():
    found = best_ladders({1: 5, 7: 5, 8: 1}, 3, cost=lambda rung: 10.0 if rung < 8 else 9.0)
    assert found == [(8,)]


@pytest.mark.parametrize(
    ("card", "gib", "expected"),
    [("h200", 141, (1024, 8192)), ("h100", 80, (1024, 8192)), ("a100", 80, (256, 2048)),
     ("rtx4090", 24, (256, 2048)), ("rtxpro6000", 96, (1024, 8192))],
)  # fmt: skip
def test_the_limits_of_a_server_follow_the_card(
    card: str, gib: int, expected: tuple[int, int]
) -> None:
    assert batch_defaults(card, gib << 30) == expected
