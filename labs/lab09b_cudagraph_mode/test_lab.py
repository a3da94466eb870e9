"""Lab 9b: modes and dispatch. What you write is held against rules spelt out batch by batch."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
import pytest

from labs.lab09b_cudagraph_mode.resolve import AttentionCGSupport, CompilationMode, resolve_mode
from labs.lab09b_cudagraph_mode.wrapper import Entry, ForwardContext, GraphWrapper, WeakBuffer
from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.dispatch.dispatcher import BatchDescriptor, GraphDispatcher, uniform_token_count
from mini_engine.dispatch.modes import CUDAGraphMode
from mini_engine.sim.capture import CaptureError
from mini_engine.sim.device import Device
from mini_engine.sim.kernels import add, scale
from mini_engine.sim.launch import Buffer, UseAfterFree
from mini_engine.step.cards import load_spec

NONE, PIECEWISE, FULL = CUDAGraphMode.NONE, CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL
# What a decode batch and a mixed batch run as: the table of chapter 9.
ANSWERS = {
    "NONE": (NONE, NONE),
    "PIECEWISE": (PIECEWISE, PIECEWISE),
    "FULL": (FULL, FULL),
    "FULL_DECODE_ONLY": (FULL, NONE),
    "FULL_AND_PIECEWISE": (FULL, PIECEWISE),
}
POWERS = [1, 2, 4, 8, 16]


def told(rung: BatchDescriptor | None) -> str:
    """A descriptor in a few words: `FULL: 42 tokens, 6 requests, 7 each`."""
    if rung is None:
        return "None"
    reqs = "" if rung.num_reqs is None else f", {rung.num_reqs} requests"
    each = "" if rung.uniform_token_count is None else f", {rung.uniform_token_count} each"
    return f"{rung.mode.name}: {rung.num_tokens} tokens{reqs}{each}"


# ---------------------------------------------------------------- what kind of batch is it?


@pytest.mark.catches("last-chunk-is-decode")
def test_the_last_token_of_a_prompt_is_no_decode() -> None:
    assert uniform_token_count((1, 1, 1), has_prefill=True) is None, "one of them is in prefill"
    assert uniform_token_count((4,), has_prefill=True) is None, "a prompt chunk, not three drafts"


def test_a_batch_is_uniform_when_all_requests_bring_equally_many_tokens() -> None:
    rng = random.Random(1)
    for _ in range(300):
        lens = tuple(rng.randint(0, 3) for _ in range(rng.randint(0, 5)))
        alike = lens[0] if lens and all(n == lens[0] for n in lens) else None
        assert uniform_token_count(lens) == alike, f"new tokens: {lens}"
        assert uniform_token_count(lens, has_prefill=True) is None, f"new tokens: {lens}"


# ---------------------------------------------------------------- does it fit a graph?


@pytest.mark.catches("full-runs-anything", "requests-need-no-room")
def test_a_batch_fits_where_tokens_and_requests_have_room_and_the_kind_is_the_same() -> None:
    rng = random.Random(8)
    for number in range(400):
        tokens, reqs, uniform = rng.randint(1, 9), rng.randint(1, 9), rng.choice([None, 1, 2, 3])
        graph = BatchDescriptor(
            rng.choice([PIECEWISE, FULL]), rng.randint(1, 9), rng.choice([None, 1, 4, 9]),
            rng.choice([None, 1, 2, 3]) if number % 2 else None,
        )  # fmt: skip
        refused = [
            *(["tokens"] if tokens > graph.num_tokens else []),
            *(["requests"] if graph.num_reqs and reqs > graph.num_reqs else []),
            *(["kind"] if graph.uniform_token_count not in (None, uniform) else []),
        ]
        fits, expected = bool(graph.fits(reqs, tokens, uniform)), not refused
        why = f" (too many or another: {', '.join(refused)})" if refused else ""
        case = f"{tokens} tokens, {reqs} requests, {uniform} each in {told(graph)}{why}"
        assert fits == expected, case


@pytest.mark.catches("requests-need-no-room")
def test_a_graph_of_six_requests_runs_no_batch_of_seven() -> None:
    graph = BatchDescriptor(FULL, 8, num_reqs=6)
    assert graph.fits(6, 7, None)
    assert not graph.fits(7, 7, None), "8 tokens hold 7, but there are block tables for 6 requests"


# ---------------------------------------------------------------- the ladders


def listed(mode: str, sizes: Sequence[int], seqs: int, query_len: int = 1) -> list[BatchDescriptor]:
    """What a dispatcher of these settings captures, in its order."""
    return GraphDispatcher(mode, tuple(sizes), seqs, query_len).descriptors()


@pytest.mark.catches("pieces-count-requests")
def test_there_is_one_graph_in_pieces_for_each_size_whoever_brings_the_tokens() -> None:
    for mode in ("PIECEWISE", "FULL_AND_PIECEWISE"):
        pieces = [told(rung) for rung in listed(mode, (4, 8), 6) if rung.mode is PIECEWISE]
        assert pieces == ["PIECEWISE: 8 tokens", "PIECEWISE: 4 tokens"], mode


def test_a_graph_for_any_batch_holds_as_many_requests_as_tokens_up_to_the_limit() -> None:
    found = [(rung.num_tokens, rung.num_reqs) for rung in listed("FULL", (1, 2, 4, 8, 16), 6)]
    assert found == [(16, 6), (8, 6), (4, 4), (2, 2), (1, 1)], "tokens and requests, FULL"


@pytest.mark.catches("widest-batch-eager")
def test_sizes_are_rounded_up_to_whole_requests_and_listed_once() -> None:
    for sizes, seqs, query_len, expected in (
        ((40, 42), 8, 7, [(42, 6)]),  # both sizes round up to 6 requests of 7
        ((40,), 8, 7, []),  # 42 is more than the largest size
        ((3, 6, 9, 12), 3, 3, [(9, 3), (6, 2), (3, 1)]),  # at most 3 requests
        ((1, 2, 8), 4, 4, [(8, 2), (4, 1)]),
        ((1, 2, 4), 4, 1, [(4, 4), (2, 2), (1, 1)]),
    ):
        rungs = listed("FULL_DECODE_ONLY", sizes, seqs, query_len)
        found = [(rung.num_tokens, rung.num_reqs) for rung in rungs]
        case = f"sizes {sizes}, {seqs} requests of {query_len} tokens"
        assert found == expected, case
        assert {rung.uniform_token_count for rung in rungs} <= {query_len}, case


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
        found = listed(mode, sizes, seqs, query_len)
        case = f"{mode}, sizes {sizes}, {seqs} requests of {query_len}"
        assert len(found) == len(set(found)), f"{case}: a graph is captured twice"
        expected = rungs(mode, sizes, seqs, query_len)
        missing, too_many = expected - set(found), set(found) - expected
        assert sorted(map(told, missing)) == [], f"{case}: graphs that are missing"
        assert sorted(map(told, too_many)) == [], f"{case}: graphs that there should not be"
        for kind in (FULL, PIECEWISE):
            tokens = [rung.num_tokens for rung in found if rung.mode is kind]
            assert tokens == sorted(tokens, reverse=True), f"{case}: largest first"


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
        chosen = told(dispatcher.dispatch(reqs, tokens, None))
        assert chosen == f"NONE: {tokens} tokens, {reqs} requests", "as many rows as came in"


@pytest.mark.catches("graphs-before-capture")
def test_until_the_graphs_are_captured_every_batch_runs_eagerly() -> None:
    for mode in ANSWERS:
        dispatcher = GraphDispatcher(mode, POWERS, max_num_seqs=16)
        dispatcher.graphs_captured = False
        for tokens in range(1, 17):
            chosen = told(dispatcher.dispatch(tokens, tokens, 1))
            assert chosen == f"NONE: {tokens} tokens, {tokens} requests", f"{mode}, not captured"
        dispatcher.graphs_captured = True
        assert dispatcher.dispatch(3, 3, 1).mode is ANSWERS[mode][0]


def test_a_step_without_tokens_replays_nothing() -> None:
    for mode in ANSWERS:
        dispatcher = GraphDispatcher(mode, POWERS, max_num_seqs=16)
        for reqs, uniform in ((0, None), (3, 0), (3, None)):  # three may be there and bring none
            chosen = told(dispatcher.dispatch(reqs, 0, uniform))
            assert chosen == f"NONE: 0 tokens, {reqs} requests", mode


@pytest.mark.catches("pieces-count-requests")
def test_pieces_run_any_number_of_requests() -> None:
    for mode in ("PIECEWISE", "FULL_AND_PIECEWISE"):
        dispatcher = GraphDispatcher(mode, (4, 8), max_num_seqs=6)
        for reqs in range(1, 8):
            chosen = told(dispatcher.dispatch(reqs, 7, None))
            assert chosen == "PIECEWISE: 8 tokens", f"{reqs} requests with 7 tokens in all"


@pytest.mark.catches("requests-need-no-room")
def test_more_requests_than_a_full_graph_holds_run_without_it() -> None:
    dispatcher = GraphDispatcher("FULL", (4, 8), max_num_seqs=3)
    assert told(dispatcher.dispatch(3, 7, None)) == "FULL: 8 tokens, 3 requests"
    assert told(dispatcher.dispatch(4, 7, None)) == "NONE: 7 tokens, 4 requests"


def test_a_batch_that_does_not_fit_the_smallest_rung_gets_no_larger_one() -> None:
    dispatcher = GraphDispatcher("FULL_AND_PIECEWISE", (2, 8), max_num_seqs=8)
    # more requests than tokens, as where some bring none
    assert told(dispatcher.dispatch(4, 2, None)) == "PIECEWISE: 2 tokens"
    only_full = GraphDispatcher("FULL", (2, 8), max_num_seqs=8)
    assert told(only_full.dispatch(4, 2, None)) == "NONE: 2 tokens, 4 requests"


def test_a_rung_that_is_dropped_later_runs_nothing_from_then_on() -> None:
    dispatcher = GraphDispatcher("FULL", (2, 8), max_num_seqs=8)
    assert told(dispatcher.dispatch(2, 2, 1)) == "FULL: 2 tokens, 2 requests"
    dispatcher.drop(FULL, [2])
    assert told(dispatcher.dispatch(2, 2, 1)) == "FULL: 8 tokens, 8 requests"


def test_rungs_that_found_no_memory_run_nothing() -> None:
    dispatcher = GraphDispatcher("FULL_AND_PIECEWISE", (2, 4, 8), max_num_seqs=8)
    dispatcher.drop(FULL, [2, 8])
    assert told(dispatcher.dispatch(2, 2, 1)) == "FULL: 4 tokens, 4 requests, 1 each"
    assert told(dispatcher.dispatch(2, 2, None)) == "PIECEWISE: 2 tokens"
    assert told(dispatcher.dispatch(5, 5, 1)) == "PIECEWISE: 8 tokens", "FULL ends at 4 now"
    dispatcher.drop(PIECEWISE, [8])
    assert told(dispatcher.dispatch(5, 5, 1)) == "NONE: 5 tokens, 5 requests"


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
                full = f"FULL: {widest} tokens, {reqs} requests, {query_len} each"
                expected = full if has_rung else f"NONE: {widest} tokens, {reqs} requests"
                assert told(chosen) == expected, case


@pytest.mark.catches("widest-batch-eager")
def test_with_vllms_own_ladder_no_full_batch_of_decodes_runs_eagerly() -> None:
    for drafts in (0, 1, 2, 6):
        for reqs in (1, 2, 3, 6, 7, 20):
            sizes = default_capture_sizes(reqs, 8192, num_speculative_tokens=drafts)
            dispatcher = GraphDispatcher("FULL_AND_PIECEWISE", sizes, reqs, 1 + drafts)
            chosen = dispatcher.dispatch(reqs, reqs * (1 + drafts), 1 + drafts)
            assert chosen.mode is FULL, f"{reqs} requests with {drafts} drafts each on {sizes}"


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
            chosen = dispatcher.dispatch(reqs, tokens, uniform)
            assert told(chosen) == told(expected), case


# ---------------------------------------------------------------- what a backend allows


TABLE = """
split, VLLM_COMPILE, one token a request
FULL                  ValueError  FULL_AND_PIECEWISE  FULL_AND_PIECEWISE  =
FULL_AND_PIECEWISE    PIECEWISE   =                   =                   =
FULL_DECODE_ONLY      PIECEWISE   =                   =                   =

not split, VLLM_COMPILE, one token a request
FULL                  ValueError  FULL_DECODE_ONLY    FULL_DECODE_ONLY    =
FULL_AND_PIECEWISE    NONE        =                   =                   =
FULL_DECODE_ONLY      NONE        =                   =                   =

split, VLLM_COMPILE, several tokens a request
FULL                  ValueError  PIECEWISE           FULL_AND_PIECEWISE  =
FULL_AND_PIECEWISE    PIECEWISE   PIECEWISE           =                   =
FULL_DECODE_ONLY      PIECEWISE   PIECEWISE           =                   =

split, no VLLM_COMPILE, several tokens a request
FULL                  ValueError  PIECEWISE           FULL_AND_PIECEWISE  =
FULL_AND_PIECEWISE    NONE        PIECEWISE           =                   =
FULL_DECODE_ONLY      NONE        PIECEWISE           =                   =

not split, no VLLM_COMPILE, several tokens a request
FULL                  ValueError  NONE                FULL_DECODE_ONLY    =
FULL_AND_PIECEWISE    NONE        NONE                =                   =
FULL_DECODE_ONLY      NONE        NONE                =                   =

split, VLLM_COMPILE, one token a request, no piecewise capture
FULL                  ValueError  FULL_DECODE_ONLY    FULL_DECODE_ONLY    =
FULL_AND_PIECEWISE    NONE        FULL_DECODE_ONLY    FULL_DECODE_ONLY    FULL_DECODE_ONLY
FULL_DECODE_ONLY      NONE        =                   =                   =
PIECEWISE             NONE        NONE                NONE                NONE
"""

NEVER, SINGLE, UNIFORM, ALWAYS = AttentionCGSupport
COMPILED, PLAIN = CompilationMode.VLLM_COMPILE, CompilationMode.NONE


def resolved(
    mode: str,
    support: AttentionCGSupport | str,
    *,
    split: bool = True,
    compilation: CompilationMode | int | str = COMPILED,
    query_len: int = 1,
    pieces: bool = True,
) -> str:
    return resolve_mode(
        mode,
        support,
        attention_in_splitting_ops=split,
        compilation_mode=compilation,
        uniform_decode_query_len=query_len,
        piecewise_capture_available=pieces,
    ).name


def lines_of_the_table() -> list[tuple[str, str, AttentionCGSupport, str]]:
    """(settings, mode, support, outcome) of each cell."""
    cells, settings = [], ""
    for line in filter(None, TABLE.splitlines()):
        if line.startswith(("split", "not split")):
            settings = line
            continue
        mode, *outcomes = line.split()
        for support, outcome in zip(AttentionCGSupport, outcomes, strict=True):
            cells.append((settings, mode, support, outcome.replace("=", mode)))
    return cells


@pytest.mark.catches("support-is-yes-or-no", "drafts-are-one-token", "pieces-from-nothing")
def test_each_cell_of_the_table() -> None:
    for settings, mode, support, outcome in lines_of_the_table():
        if outcome == "ValueError":
            continue  # the next test
        found = resolved(
            mode,
            support,
            split=not settings.startswith("not split"),
            compilation=PLAIN if "no VLLM_COMPILE" in settings else COMPILED,
            query_len=3 if "several" in settings else 1,
            pieces="no piecewise capture" not in settings,
        )
        assert found == outcome, f"{mode} on {support.name}: {settings}"


def test_full_without_graph_support_is_refused_and_the_refusal_says_what_to_ask_for() -> None:
    for split, pieces, query_len in product((True, False), (True, False), (1, 3)):
        with pytest.raises(ValueError) as refused:
            resolved("FULL", NEVER, split=split, pieces=pieces, query_len=query_len)
        assert "PIECEWISE" in str(refused.value)


@pytest.mark.catches("support-is-yes-or-no")
def test_full_stays_full_only_on_a_backend_that_bears_every_batch() -> None:
    assert resolved("FULL", ALWAYS) == "FULL"
    for support in (SINGLE, UNIFORM):
        assert resolved("FULL", support) == "FULL_AND_PIECEWISE", support.name
        assert resolved("FULL", support, split=False) == "FULL_DECODE_ONLY", support.name


@pytest.mark.catches("support-is-yes-or-no")
def test_without_graph_support_decodes_lose_their_full_graphs() -> None:
    for mode in ("FULL_AND_PIECEWISE", "FULL_DECODE_ONLY"):
        for compilation in CompilationMode:
            for split in (True, False):
                cut = split and compilation is COMPILED
                found = resolved(mode, NEVER, split=split, compilation=compilation)
                assert found == ("PIECEWISE" if cut else "NONE"), (mode, compilation.name, split)


@pytest.mark.catches("drafts-are-one-token")
def test_a_backend_of_single_tokens_bears_no_full_graph_of_drafts() -> None:
    for mode in ("FULL", "FULL_AND_PIECEWISE", "FULL_DECODE_ONLY"):
        for split, expected in ((True, "PIECEWISE"), (False, "NONE")):
            for query_len in (2, 5):
                found = resolved(mode, SINGLE, split=split, query_len=query_len)
                assert found == expected, f"{mode}, {query_len} tokens a request, split: {split}"


@pytest.mark.catches("pieces-from-nothing")
def test_what_nothing_cuts_has_no_pieces() -> None:
    for support in (SINGLE, UNIFORM, ALWAYS):
        for mode, expected in (("PIECEWISE", "NONE"), ("FULL_AND_PIECEWISE", "FULL_DECODE_ONLY")):
            found = resolved(mode, support, pieces=False, compilation=PLAIN)
            assert found == expected, f"{mode} on {support.name}"
    assert resolved("FULL", UNIFORM, pieces=False) == "FULL_DECODE_ONLY"
    assert resolved("FULL", SINGLE, pieces=False, query_len=3) == "NONE"


@pytest.mark.catches("support-is-yes-or-no", "drafts-are-one-token")
def test_each_kind_of_batch_keeps_what_the_backend_bears_and_gets_what_cuts_instead() -> None:
    bears = {NEVER: 0, SINGLE: 1, UNIFORM: 99, ALWAYS: 99}  # tokens of a decode, at most
    modes = {answers: mode for mode, answers in ANSWERS.items()}
    for case in product(ANSWERS, AttentionCGSupport, (True, False), CompilationMode, (1, 2, 7),
                        (True, False)):  # fmt: skip
        mode, support, split, compilation, query_len, pieces = case
        decode, mixed = ANSWERS[mode]
        if mode == "FULL" and support is NEVER:
            continue
        if mixed is FULL and support is not ALWAYS:
            mixed = PIECEWISE if split else NONE
        if decode is FULL and query_len > bears[support]:
            cut = split and (compilation is COMPILED or support is not NEVER)
            decode = mixed = PIECEWISE if cut else NONE
        if not pieces:
            decode, mixed = (NONE if m is PIECEWISE else m for m in (decode, mixed))
        expected = modes[decode, mixed]
        found = resolved(
            mode, support, split=split, compilation=compilation, query_len=query_len, pieces=pieces
        )
        assert found == expected, (
            f"{mode} on {support.name}, split: {split}, {compilation.name}, "
            f"{query_len} tokens a request, piecewise capture: {pieces}"
        )


# ---------------------------------------------------------------- who captures, who replays


class Rig:
    """A wrapper around y = reqs · a + b, where reqs is what the context says while the function
    runs; so a graph that was captured for another batch gives another answer."""

    def __init__(
        self, mode: CUDAGraphMode = PIECEWISE, *, debug: bool = False, weak: bool = True
    ) -> None:
        self.device, self.context = Device(load_spec("h200"), memory_bytes=2**26), ForwardContext()
        self.calls = 0
        self.wrapper = self.wrap(self.function, mode, debug=debug, weak=weak)
        self.a, self.b = self.upload(1, 2, 3), self.upload(10, 20, 30)

    def wrap(
        self,
        function: Callable[..., Buffer],
        mode: CUDAGraphMode,
        *,
        pool: int | None = None,
        debug: bool = False,
        weak: bool = True,
    ) -> GraphWrapper:
        return GraphWrapper(
            self.device, function, mode, self.context, pool=pool, weak_output=weak, debug=debug
        )

    def upload(self, *values: float) -> Buffer:
        return self.device.upload(np.array(values, np.float32))

    def function(self, a: Buffer, b: Buffer) -> Buffer:
        self.calls += 1
        asked = self.context.descriptor
        scratch, out = self.device.empty(a.shape), self.device.empty(a.shape)
        self.device.launch(scale, scratch, a, by=float((asked and asked.num_reqs) or 1))
        self.device.launch(add, out, scratch, b)
        self.device.free(scratch)
        return out

    def call(self, descriptor: BatchDescriptor | None, *inputs: Buffer) -> Buffer:
        with self.context.holding(descriptor):
            return self.wrapper(*(inputs or (self.a, self.b)))

    def did(self, descriptor: BatchDescriptor | None, *inputs: Buffer) -> tuple[str, list[float]]:
        """What a call did, and what stands where its output is, whoever has the memory now."""
        calls, graphs = self.calls, self.device.counters.graphs
        output = self.device.read(WeakBuffer(self.call(descriptor, *inputs)))
        called, launched = self.calls - calls, self.device.counters.graphs - graphs
        kinds = {(1, 0): "ran", (0, 1): "replayed"}
        kind = kinds.get((called, launched), f"called {called} times, launched {launched} graphs")
        return "captured" if kind == "ran" and np.isnan(output).all() else kind, output.tolist()


def batch(mode: CUDAGraphMode, tokens: int = 4, reqs: int | None = 2) -> BatchDescriptor:
    return BatchDescriptor(mode, tokens, reqs)


@pytest.mark.catches("no-context-is-a-batch")
def test_a_call_that_no_runner_has_announced_runs_eagerly_every_time() -> None:
    for mode in (PIECEWISE, FULL):
        rig = Rig(mode)
        for _ in range(3):
            assert rig.did(None) == ("ran", [11, 22, 33])


@pytest.mark.catches("any-mode-is-mine")
@pytest.mark.parametrize(("mine", "other"), [(PIECEWISE, FULL), (FULL, PIECEWISE)])
def test_a_batch_of_another_mode_runs_as_if_there_were_no_wrapper(
    mine: CUDAGraphMode, other: CUDAGraphMode
) -> None:
    rig = Rig(mine)
    for mode in (other, NONE, other, NONE):
        assert rig.did(batch(mode)) == ("ran", [12, 24, 36]), mode.name
    assert rig.device.memory.reserved_bytes(rig.wrapper.pool) == 0
    rig.call(batch(mine))
    assert rig.did(batch(other)) == ("ran", [12, 24, 36]), "nor does it end what was captured"


@pytest.mark.catches("first-call-runs")
def test_a_first_call_records_the_function_and_runs_nothing() -> None:
    for mode in (PIECEWISE, FULL):
        rig = Rig(mode, weak=False)
        did, _ = rig.did(batch(mode))
        assert rig.calls == 1, "called to be recorded, and for nothing else"
        assert rig.device.counters.graphs == 0, "recorded, and not launched"
        assert did == "captured", "garbage, until the second call"


@pytest.mark.catches("replay-runs-python")
def test_the_function_is_called_for_the_capture_and_never_again() -> None:
    rig = Rig()
    for _ in range(4):
        rig.call(batch(PIECEWISE))
        assert rig.calls == 1


def test_a_replay_is_one_launch_and_waits_for_nothing() -> None:
    rig = Rig()
    rig.call(batch(PIECEWISE))
    rig.device.synchronize()
    began, launches = rig.device.cpu_us, rig.device.counters.launches
    rig.call(batch(PIECEWISE))
    took_us, ahead_us = rig.device.cpu_us - began, rig.device.gpu_us - rig.device.cpu_us
    assert rig.device.counters.launches - launches == 1, "launches and copies of a replay"
    assert ahead_us > 0, f"the CPU took {took_us:.1f} µs: it has waited for the GPU"


@pytest.mark.catches("tokens-are-the-key")
def test_batches_of_equally_many_tokens_have_graphs_of_their_own() -> None:
    rig = Rig(FULL, weak=False)
    same = [BatchDescriptor(FULL, 6, n, uniform) for n, uniform in ((2, 3), (6, 1), (2, None))]
    for descriptor in same:
        assert rig.did(descriptor)[0] == "captured", descriptor
    for descriptor in reversed(same):
        reqs = descriptor.num_reqs or 1
        assert rig.did(descriptor)[1] == [reqs + 10, 2 * reqs + 20, 3 * reqs + 30], descriptor


@pytest.mark.catches("output-is-the-answer")
def test_a_replay_answers_for_what_the_inputs_hold_now() -> None:
    rig, rng = Rig(weak=False), random.Random(6)
    rig.call(batch(PIECEWISE))
    for _ in range(4):
        a, b = ([rng.randint(-9, 9) for _ in range(3)] for _ in range(2))
        rig.device.copy_(rig.a, np.array(a, np.float32))
        rig.device.copy_(rig.b, np.array(b, np.float32))
        expected = [2 * x + y for x, y in zip(a, b, strict=True)]
        assert rig.did(batch(PIECEWISE))[1] == expected


@pytest.mark.catches("moved-input-is-noticed")
def test_an_input_that_has_moved_is_neither_refused_nor_captured_anew() -> None:
    rig = Rig(weak=False)
    rig.call(batch(PIECEWISE))
    moved = rig.upload(100, 100, 100)
    for inputs in ((moved, rig.b), (rig.a, moved), (rig.b, rig.a)):
        did = rig.did(batch(PIECEWISE), *inputs)
        assert did == ("replayed", [12, 24, 36]), "what the inputs of the capture give"


@pytest.mark.catches("debug-only-logs")
def test_while_debugging_a_moved_input_is_refused_and_one_in_place_is_not() -> None:
    rig = Rig(debug=True)
    moved = rig.upload(100, 100, 100)
    rig.call(batch(PIECEWISE))
    rig.call(batch(PIECEWISE, 8), moved, rig.b)  # another graph has other addresses
    for inputs in ((moved, rig.b), (rig.a, moved), (rig.b, rig.a)):
        graphs = rig.device.counters.graphs
        with pytest.raises(AssertionError):
            rig.call(batch(PIECEWISE), *inputs)
        assert rig.device.counters.graphs == graphs, "refused before anything was launched"
        rig.call(batch(PIECEWISE), rig.a[:3], rig.b)  # the same memory, cut out anew
        rig.call(batch(PIECEWISE, 8), moved, rig.b)


def test_a_capture_that_fails_leaves_nothing_to_replay_and_the_next_call_captures() -> None:
    rig = Rig()
    waiting = True

    def function(a: Buffer, b: Buffer) -> Buffer:
        if waiting:
            rig.device.synchronize()
        return rig.function(a, b)

    rig.wrapper = rig.wrap(function, PIECEWISE, weak=False)
    for _ in range(2):
        with pytest.raises(CaptureError):
            rig.call(batch(PIECEWISE))
        kept = [entry for entry in rig.wrapper.entries.values() if entry != Entry()]
        assert kept == [], "of a capture that did not end well nothing is kept"
    waiting = False
    assert rig.did(batch(PIECEWISE))[0] == "captured"
    assert rig.did(batch(PIECEWISE)) == ("replayed", [12, 24, 36])


@pytest.mark.catches("capture-while-serving")
def test_an_engine_that_serves_captures_nothing_more_and_runs_what_it_has() -> None:
    rig = Rig(weak=False)
    rig.call(batch(PIECEWISE, 8))
    rig.context.capturing_enabled = False
    for _ in range(2):
        calls = rig.calls
        with pytest.raises(RuntimeError) as refused:
            rig.call(batch(PIECEWISE, 4))
        assert not isinstance(refused.value, NotImplementedError)
        assert rig.calls == calls, "refused before anything was recorded"
        rig.call(batch(PIECEWISE, 8))
        for others in (batch(NONE, 4), batch(FULL, 4), None):  # nothing to be captured here
            rig.call(others)
        assert rig.calls == calls + 3, "run by the function, as ever"
    rig.context.capturing_enabled = True
    assert rig.did(batch(PIECEWISE, 4))[0] == "captured"


def test_the_memory_of_a_weak_output_goes_to_the_next_capture_of_the_pool() -> None:
    rig = Rig()
    pool = rig.device.memory.new_pool()
    wrappers = [rig.wrap(rig.function, mode, pool=pool) for mode in (PIECEWISE, FULL, PIECEWISE)]
    addresses = set()
    for wrapper in wrappers:
        for tokens in (8, 4):
            with rig.context.holding(batch(wrapper.mode, tokens)):
                garbage = wrapper(rig.a, rig.b)
                assert np.isnan(rig.device.read(garbage)).all(), "recorded, not run"
                output = wrapper(rig.a, rig.b)
            addresses.add(output.address)
            assert rig.device.read(output).tolist() == [12, 24, 36]
            assert rig.device.memory.allocated_bytes(pool) == 0
    assert len(addresses) == 1, "each in the place that the one before it gave back"
    assert rig.device.memory.reserved_bytes() == 2 * rig.device.memory.reserved_bytes(pool)


@pytest.mark.catches("every-output-is-weak")
def test_an_output_that_a_later_piece_reads_keeps_its_memory_until_the_caller_frees_it() -> None:
    rig = Rig()
    pool = rig.device.memory.new_pool()
    first = rig.wrap(rig.function, PIECEWISE, pool=pool, weak=False)
    second = rig.wrap(rig.function, PIECEWISE, pool=pool)
    with rig.context.holding(batch(PIECEWISE)):
        kept = between = first(rig.a, rig.b)
        second(between, between)
        between = first(rig.a, rig.b)
        output = second(between, between)
    assert rig.device.read(output).tolist() == [3 * 12, 3 * 24, 3 * 36], "2 (2a + b) + (2a + b)"
    rig.device.free(kept)
    assert rig.device.memory.allocated_bytes(pool) == 0
    with pytest.raises(UseAfterFree):  # it was the output itself, and not a weak one
        rig.device.read(kept)


@pytest.mark.catches("the-entry-owns-its-output")
def test_a_replay_answers_after_the_output_of_its_capture_was_freed() -> None:
    rig = Rig(weak=False)
    output = rig.call(batch(PIECEWISE))
    rig.call(batch(PIECEWISE))
    rig.device.free(output)
    for n in (4, 5):
        rig.device.copy_(rig.a, np.array([n, n, n], np.float32))
        answer = rig.call(batch(PIECEWISE))
        assert rig.device.read(answer).tolist() == [2 * n + 10, 2 * n + 20, 2 * n + 30]


def test_of_nested_wrappers_only_the_ones_that_are_meant_have_graphs() -> None:
    rig = Rig()
    pool, live = rig.device.memory.new_pool(), rig.upload(0, 0, 0)
    first, second = (
        rig.wrap(rig.function, PIECEWISE, pool=pool, weak=weak) for weak in (False, True)
    )

    def forward(a: Buffer, b: Buffer) -> Buffer:
        between = first(a, b)
        rig.device.copy_(live, between)  # where attention would run
        return second(live, between)

    rig.wrapper = rig.wrap(forward, FULL, pool=pool)
    for mode, graphs in ((FULL, 1), (NONE, 0), (PIECEWISE, 2), (FULL, 1), (PIECEWISE, 2)):
        descriptor = batch(mode, 4, 3)
        if mode is not NONE:
            rig.call(descriptor)  # perhaps a capture
        before = rig.device.counters.graphs
        assert rig.device.read(rig.call(descriptor)).tolist() == [4 * 13, 4 * 26, 4 * 39]
        assert rig.device.counters.graphs - before == graphs, mode.name


def test_random_calls_run_capture_and_replay_as_a_list_of_what_was_captured_says() -> None:
    rng = random.Random(7)
    for mode, debug in ((PIECEWISE, False), (FULL, True), (FULL, False)):
        rig = Rig(mode, debug=debug, weak=rng.random() < 0.5)
        inputs = [rig.upload(n, 2 * n, -n) for n in range(1, 5)]
        captured: dict[BatchDescriptor, tuple[int, int]] = {}
        for _ in range(60):
            asked = rng.choice([None, *(batch(m, t, r) for m in (NONE, PIECEWISE, FULL)
                                        for t in (4, 8) for r in (1, 2))])  # fmt: skip
            known = captured.get(asked) if asked else None
            one, other = known if known and rng.random() < 0.6 else rng.sample(range(4), 2)
            n = rng.randint(-50, 50)
            rig.device.copy_(inputs[one], np.array([n, 2 * n, -n], np.float32))
            given = (inputs[one], inputs[other])
            reqs = (asked and asked.num_reqs) or 1
            if asked is None or asked.mode is not mode:
                left, right = (float(rig.device.read(x)[0]) for x in given)
                expected = ("ran", [(reqs * left + right) * sign for sign in (1, 2, -1)])
            elif known is None:
                captured[asked] = (one, other)
                assert rig.did(asked, *given)[0] == "captured", asked
                continue
            elif debug and known != (one, other):
                with pytest.raises(AssertionError):
                    rig.call(asked, *given)
                continue
            else:
                left, right = (float(rig.device.read(inputs[at])[0]) for at in known)
                expected = ("replayed", [(reqs * left + right) * sign for sign in (1, 2, -1)])
            assert rig.did(asked, *given) == expected, asked
