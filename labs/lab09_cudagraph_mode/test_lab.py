"""Lab 9: modes and dispatch. What you write is held against rules spelt out batch by batch."""

from __future__ import annotations

import random

import pytest

from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.dispatch.dispatcher import BatchDescriptor, GraphDispatcher, uniform_token_count
from mini_engine.dispatch.modes import (
    AttentionCGSupport,
    CompilationMode,
    CUDAGraphMode,
    resolve_mode,
)

NONE, PIECEWISE, FULL = CUDAGraphMode.NONE, CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL
# What a decode batch and a mixed batch run as: the table of chapter 8.
ANSWERS = {
    "NONE": (NONE, NONE),
    "PIECEWISE": (PIECEWISE, PIECEWISE),
    "FULL": (FULL, FULL),
    "FULL_DECODE_ONLY": (FULL, NONE),
    "FULL_AND_PIECEWISE": (FULL, PIECEWISE),
}
POWERS = [1, 2, 4, 8, 16]

# ---------------------------------------------------------------- what kind of batch is it?


@pytest.mark.catches("last-chunk-is-decode")
def test_the_last_token_of_a_prompt_is_no_decode() -> None:
    assert uniform_token_count([1, 1, 1], has_prefill=True) is None, "one of them is in prefill"
    assert uniform_token_count([4], has_prefill=True) is None, "a prompt chunk, not three drafts"


def test_a_batch_is_uniform_when_all_requests_bring_equally_many_tokens() -> None:
    rng = random.Random(1)
    for _ in range(300):
        lens = [rng.randint(1, 3) for _ in range(rng.randint(0, 5))]
        alike = lens[0] if lens and all(n == lens[0] for n in lens) else None
        assert uniform_token_count(lens) == alike, lens
        assert uniform_token_count(tuple(lens), has_prefill=True) is None, lens


# ---------------------------------------------------------------- one batch after another


@pytest.mark.catches("full-runs-anything")
@pytest.mark.parametrize("mode", ANSWERS)
def test_decode_batches_and_mixed_batches_run_as_the_mode_says(mode: str) -> None:
    dispatcher = GraphDispatcher(mode, POWERS, max_num_seqs=16)
    decode, mixed = ANSWERS[mode]
    for reqs in range(1, 17):
        assert dispatcher.dispatch(reqs, reqs, 1).mode is decode, f"{reqs} decodes"
        chosen = dispatcher.dispatch(reqs, 16, None)
        assert chosen.mode is mixed, f"{reqs} requests, 16 tokens, a prompt among them"


@pytest.mark.catches("full-runs-anything")
def test_a_graph_of_decodes_with_drafts_runs_no_batch_without_them() -> None:
    dispatcher = GraphDispatcher("FULL_DECODE_ONLY", [3, 6, 12], max_num_seqs=4, decode_query_len=3)
    assert dispatcher.dispatch(2, 6, 3).mode is FULL
    assert dispatcher.dispatch(6, 6, 1).mode is NONE, "one token each: another attention kernel"
    assert dispatcher.dispatch(3, 6, 2).mode is NONE


@pytest.mark.catches("largest-rung")
def test_a_batch_runs_at_the_smallest_rung_that_holds_it() -> None:
    rng = random.Random(2)
    for _ in range(60):
        sizes = sorted(rng.sample(range(1, 60), rng.randint(1, 9)))
        for mode in ("PIECEWISE", "FULL", "FULL_AND_PIECEWISE"):
            dispatcher = GraphDispatcher(mode, sizes, max_num_seqs=60)
            for tokens in range(1, sizes[-1] + 1):
                smallest = min(size for size in sizes if size >= tokens)
                for uniform in (1, None):
                    chosen = dispatcher.dispatch(tokens, tokens, uniform)
                    assert chosen.num_tokens == smallest, f"{mode} {sizes}: {tokens} tokens"


@pytest.mark.catches("above-the-top-is-padded")
def test_above_the_top_nothing_is_replayed() -> None:
    for mode in ANSWERS:
        dispatcher = GraphDispatcher(mode, [2, 8], max_num_seqs=64)
        for tokens in (9, 10, 16, 17, 500):
            for uniform in (1, None):
                chosen = dispatcher.dispatch(tokens, tokens, uniform)
                assert chosen.mode is NONE, f"{tokens} tokens on a ladder up to 8: {chosen}"


@pytest.mark.catches("eager-is-padded")
def test_an_eager_batch_is_not_padded() -> None:
    dispatcher = GraphDispatcher("FULL_DECODE_ONLY", [4, 8], max_num_seqs=8)
    for reqs, tokens in ((1, 3), (2, 5), (3, 7), (8, 8), (8, 100)):
        chosen = dispatcher.dispatch(reqs, tokens, None)
        assert chosen == BatchDescriptor(NONE, tokens, reqs), "as many rows as came in"


@pytest.mark.catches("graphs-before-capture")
def test_until_the_graphs_are_captured_every_batch_runs_eagerly() -> None:
    for mode in ANSWERS:
        dispatcher = GraphDispatcher(mode, POWERS, max_num_seqs=16)
        dispatcher.graphs_captured = False
        for tokens in range(1, 17):
            assert dispatcher.dispatch(tokens, tokens, 1) == BatchDescriptor(NONE, tokens, tokens)
        dispatcher.graphs_captured = True
        assert dispatcher.dispatch(3, 3, 1).mode is ANSWERS[mode][0]


def test_a_step_without_tokens_replays_nothing() -> None:
    for mode in ANSWERS:
        dispatcher = GraphDispatcher(mode, POWERS, max_num_seqs=16)
        assert dispatcher.dispatch(0, 0, None) == BatchDescriptor(NONE, 0, 0)


@pytest.mark.catches("pieces-count-requests")
def test_pieces_are_the_same_whoever_brings_the_tokens() -> None:
    for mode in ("PIECEWISE", "FULL_AND_PIECEWISE"):
        dispatcher = GraphDispatcher(mode, [4, 8], max_num_seqs=6)
        pieces = [rung for rung in dispatcher.descriptors() if rung.mode is PIECEWISE]
        assert pieces == [BatchDescriptor(PIECEWISE, 8), BatchDescriptor(PIECEWISE, 4)], (
            "one a size"
        )
        for reqs in range(1, 8):
            chosen = dispatcher.dispatch(reqs, 7, None)
            assert chosen == BatchDescriptor(PIECEWISE, 8), f"{reqs} requests with 7 tokens in all"


# ---------------------------------------------------------------- the ladders


@pytest.mark.catches("widest-batch-eager")
def test_the_widest_batch_of_drafts_has_a_graph_wherever_a_size_rounds_up_to_it() -> None:
    # vLLM issue 54933: 6 requests of 7 tokens; a ladder that ends at 40 leaves them to eager
    for top, mode in ((40, NONE), (42, FULL), (48, FULL)):
        sizes = sorted({1, 2, 4, 8, 16, 24, 32, 40, top})
        dispatcher = GraphDispatcher("FULL_DECODE_ONLY", sizes, max_num_seqs=6, decode_query_len=7)
        assert dispatcher.dispatch(6, 42, 7).mode is mode, f"42 tokens, sizes {sizes}"
    for query_len in range(1, 7):
        for reqs in range(1, 33):
            widest = reqs * query_len
            for sizes in ([1, 2, 4, 8, 16, 24, 32, 64, 200], [widest - query_len + 1, 200]):
                dispatcher = GraphDispatcher("FULL_DECODE_ONLY", sizes, reqs, query_len)
                chosen = dispatcher.dispatch(reqs, widest, query_len)
                has_rung = any(widest - query_len < size <= widest for size in sizes)
                case = f"max_num_seqs {reqs}, {query_len} tokens a request, sizes {sizes}"
                assert (chosen.mode is FULL) == has_rung, case
                assert chosen == BatchDescriptor(
                    *((FULL, widest, reqs, query_len) if has_rung else (NONE, widest, reqs))
                ), case


@pytest.mark.catches("widest-batch-eager")
def test_with_vllms_own_ladder_no_full_batch_of_decodes_runs_eagerly() -> None:
    for drafts in (0, 1, 2, 6):
        for reqs in (1, 2, 3, 6, 7, 20):
            sizes = default_capture_sizes(reqs, 8192, num_speculative_tokens=drafts)
            dispatcher = GraphDispatcher("FULL_AND_PIECEWISE", sizes, reqs, 1 + drafts)
            chosen = dispatcher.dispatch(reqs, reqs * (1 + drafts), 1 + drafts)
            assert chosen.mode is FULL, f"{reqs} requests with {drafts} drafts each on {sizes}"


def rungs(mode: str, sizes: list[int], seqs: int, query_len: int) -> set[BatchDescriptor]:
    """Every graph that may be captured, found by trying all of them."""
    decode, mixed = ANSWERS[mode]
    found = set()
    if PIECEWISE in (decode, mixed):
        found |= {BatchDescriptor(PIECEWISE, size) for size in sizes}
    if mode == "FULL":
        found |= {BatchDescriptor(FULL, size, num_reqs=min(size, seqs)) for size in sizes}
    elif decode is FULL:
        for reqs in range(1, seqs + 1):
            tokens = reqs * query_len
            if tokens <= max(sizes) and any(tokens - query_len < s <= tokens for s in sizes):
                found.add(BatchDescriptor(FULL, tokens, reqs, query_len))
    return found


def random_settings(seed: int, number: int) -> list[tuple[str, list[int], int, int]]:
    rng = random.Random(seed)
    return [
        (
            rng.choice(list(ANSWERS)),
            sorted(rng.sample(range(1, 41), rng.randint(1, 8))),
            rng.randint(1, 40),
            rng.randint(1, 4),
        )
        for _ in range(number)
    ]


@pytest.mark.catches("pieces-count-requests", "widest-batch-eager")
def test_the_graphs_to_capture_are_those_that_one_finds_by_trying_all() -> None:
    for mode, sizes, seqs, query_len in random_settings(3, 300):
        listed = GraphDispatcher(mode, sizes, seqs, query_len).descriptors()
        case = f"{mode}, sizes {sizes}, {seqs} requests of {query_len}"
        assert len(listed) == len(set(listed)), f"{case}: a graph is captured twice"
        assert set(listed) == rungs(mode, sizes, seqs, query_len), case
        tokens = [rung.num_tokens for rung in listed if rung.mode is FULL]
        assert tokens == sorted(tokens, reverse=True), f"{case}: largest first"


@pytest.mark.catches("full-runs-anything", "largest-rung")
def test_random_batches_run_where_the_rules_say() -> None:
    rng = random.Random(4)
    for mode, sizes, seqs, query_len in random_settings(5, 200):
        dispatcher = GraphDispatcher(mode, sizes, seqs, query_len)
        for _ in range(12):
            reqs = rng.randint(1, min(seqs, 12))
            same = rng.random() < 0.5
            lens = [query_len if same else rng.randint(1, 5) for _ in range(reqs)]
            uniform, tokens = uniform_token_count(lens), sum(lens)
            expected = BatchDescriptor(NONE, tokens, reqs)
            for kind in (PIECEWISE, FULL):  # FULL, where it can run the batch, has the last word
                holds = [
                    rung
                    for rung in rungs(mode, sizes, seqs, query_len)
                    if rung.mode is kind and rung.num_tokens >= tokens
                ]
                if not holds:
                    continue
                smallest = min(holds, key=lambda rung: rung.num_tokens)
                wanted = smallest.uniform_token_count
                if (smallest.num_reqs or reqs) >= reqs and (wanted or uniform) == uniform:
                    expected = smallest
            case = f"{mode}, sizes {sizes}, {seqs} requests of {query_len}: batch {lens}"
            assert dispatcher.dispatch(reqs, tokens, uniform) == expected, case


# ---------------------------------------------------------------- what a backend allows

NEVER, SINGLE, UNIFORM, ALWAYS = AttentionCGSupport
COMPILED, PLAIN = CompilationMode.VLLM_COMPILE, CompilationMode.NONE


def resolved(mode: str, support: AttentionCGSupport, **other: object) -> str:
    settings = {"attention_in_splitting_ops": True, "compilation_mode": COMPILED} | other
    return resolve_mode(mode, support, **settings).name  # type: ignore[arg-type]


@pytest.mark.catches("support-is-yes-or-no")
def test_full_stays_full_only_on_a_backend_that_bears_every_batch() -> None:
    assert resolved("FULL", ALWAYS) == "FULL"
    for support in (SINGLE, UNIFORM):
        assert resolved("FULL", support) == "FULL_AND_PIECEWISE", support.name
        unsplit = resolved("FULL", support, attention_in_splitting_ops=False)
        assert unsplit == "FULL_DECODE_ONLY", support.name


def test_full_on_a_backend_that_bears_none_is_refused_and_says_what_to_ask_for() -> None:
    for split in (True, False):
        with pytest.raises(ValueError, match="PIECEWISE"):
            resolved("FULL", NEVER, attention_in_splitting_ops=split)


@pytest.mark.catches("support-is-yes-or-no")
def test_without_graph_support_decodes_lose_their_full_graphs() -> None:
    for mode in ("FULL_AND_PIECEWISE", "FULL_DECODE_ONLY"):
        for compilation in CompilationMode:
            for split in (True, False):
                cut = split and compilation is COMPILED
                kept = resolved(
                    mode, NEVER, attention_in_splitting_ops=split, compilation_mode=compilation
                )
                assert kept == ("PIECEWISE" if cut else "NONE"), (mode, compilation.name, split)


@pytest.mark.catches("drafts-are-one-token")
def test_a_backend_of_single_tokens_bears_no_full_graph_of_drafts() -> None:
    for mode in ("FULL", "FULL_AND_PIECEWISE", "FULL_DECODE_ONLY"):
        for split, kept in ((True, "PIECEWISE"), (False, "NONE")):
            for query_len in (2, 5):
                settings = {"attention_in_splitting_ops": split}
                settings |= {"uniform_decode_query_len": query_len}
                case = f"{mode}, drafts of {query_len} tokens, split {split}"
                assert resolved(mode, SINGLE, **settings) == kept, case
                assert "FULL" in resolved(mode, UNIFORM, **settings), case
        assert "FULL" in resolved(mode, SINGLE, uniform_decode_query_len=1)


@pytest.mark.catches("pieces-from-nothing")
def test_what_nothing_cuts_has_no_pieces() -> None:
    for support in (SINGLE, UNIFORM, ALWAYS):
        uncut = {"piecewise_capture_available": False, "compilation_mode": PLAIN}
        assert resolved("PIECEWISE", support, **uncut) == "NONE"
        assert resolved("FULL_AND_PIECEWISE", support, **uncut) == "FULL_DECODE_ONLY"
    assert resolved("FULL", UNIFORM, piecewise_capture_available=False) == "FULL_DECODE_ONLY"
    drafts = {"uniform_decode_query_len": 3, "piecewise_capture_available": False}
    assert resolved("FULL", SINGLE, **drafts) == "NONE"


def test_what_asks_for_no_full_graphs_is_left_as_it_is() -> None:
    for mode in ("NONE", "PIECEWISE"):
        for support in AttentionCGSupport:
            for split in (True, False):
                for query_len in (1, 4):
                    settings = {"attention_in_splitting_ops": split}
                    settings |= {"uniform_decode_query_len": query_len}
                    assert resolved(mode, support, **settings) == mode


@pytest.mark.catches("support-is-yes-or-no", "drafts-are-one-token")
def test_no_kind_of_batch_runs_in_a_full_graph_that_the_backend_does_not_bear() -> None:
    bears_decodes = {NEVER: 0, SINGLE: 1, UNIFORM: 99, ALWAYS: 99}  # tokens a request, at most
    for mode in ANSWERS:
        for support in AttentionCGSupport:
            for split in (True, False):
                for query_len in (1, 2, 7):
                    if mode == "FULL" and support is NEVER:
                        continue
                    settings = {"attention_in_splitting_ops": split}
                    settings |= {"uniform_decode_query_len": query_len}
                    decode, mixed = ANSWERS[resolved(mode, support, **settings)]
                    case = f"{mode} on {support.name}, split {split}, {query_len} tokens a request"
                    assert decode is not FULL or query_len <= bears_decodes[support], case
                    assert mixed is not FULL or support is ALWAYS, case
                    lost = ANSWERS[mode][0] is FULL and query_len <= bears_decodes[support]
                    assert decode is FULL or not lost, f"{case}: decodes lost a graph they may have"
