"""Lab 16: a real vLLM, by what it says. Logs are put together in its format (written_logs.py);
latencies are held against its own `calculate_metrics`, on requests that were made up.
"""

from __future__ import annotations

import json
import random
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labs.lab16_vllm.vllm_run import (
    VARIANTS,
    Setup,
    captured_graphs,
    expected_graphs,
    latency,
    read_startup,
    serve_command,
)
from labs.lab16_vllm.written_logs import (
    DOWNGRADED,
    NO_PIECES,
    VALUES,
    bar,
    given,
    overriding,
    setting,
    start_up,
)
from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.dispatch.modes import CUDAGraphMode

CASES = json.loads((Path(__file__).parent / "results_vllm_0_33.json").read_text(encoding="utf-8"))


# ---------------------------------------------------------------- three variants


def effect(words: list[str]) -> tuple[bool, bool]:
    """(compiles, has graphs): what vLLM 0.33 makes of these options, however they are spelt."""
    compiles = graphs = True
    options = list(words)
    for i, word in enumerate(options):
        name, _, value = word.partition("=")
        name = name.lstrip("-").replace("_", "-")
        if name == "enforce-eager":
            compiles = graphs = False
        if name in ("cc", "compilation-config"):
            config = json.loads(value or options[i + 1])
            graphs &= str(config.get("cudagraph_mode", "FULL")).upper() != "NONE"
            compiles &= str(config.get("mode", 3)).upper() not in ("NONE", "0")
        if name in ("cc.cudagraph-mode", "compilation-config.cudagraph-mode"):
            graphs &= (value or options[i + 1]).upper() != "NONE"
        if name in ("cc.mode", "compilation-config.mode"):
            compiles &= (value or options[i + 1]).upper() not in ("NONE", "0")
    return compiles, graphs


@pytest.mark.catches("eager-turns-off-graphs-only")
def test_neighbouring_variants_differ_by_one_thing_compiling_or_graphs() -> None:
    setup = Setup()
    assert effect(serve_command(setup, "eager")) == (False, False)
    assert effect(serve_command(setup, "compiled")) == (True, False)
    assert effect(serve_command(setup, "graphs")) == (True, True)


def test_all_else_is_the_same_for_every_variant_and_stands_in_the_command() -> None:
    setup = Setup("Qwen/Qwen3-1.7B", "qwen3-1.7b", 96, 4096, 2048, 9000)
    common = set.intersection(*(set(serve_command(setup, variant)) for variant in VARIANTS))
    for variant in VARIANTS:
        words = serve_command(setup, variant)
        assert words[:3] == ["vllm", "serve", setup.model]
        assert len(set(words) - common) <= 2
        given = " ".join(words).replace("=", " ").split()
        for name, value in (
            ("--max-num-seqs", "96"), ("--max-num-batched-tokens", "4096"),
            ("--max-model-len", "2048"), ("--port", "9000"), ("--host", "127.0.0.1"),
        ):  # fmt: skip
            assert given[given.index(name) + 1] == value
        assert "--no-enable-prefix-caching" in words
        assert all(isinstance(word, str) for word in words), "subprocess takes words only"
        assert "" not in words, "an empty word is an argument, too"
        names = [word.partition("=")[0] for word in words if word.startswith("-")]
        together = [name for name in names if " " in name]
        assert together == [], "an option and its value are two words, or joined by ="
    assert set(serve_command(setup, "graphs")) == common, "vLLM as it comes: graphs adds nothing"


def test_an_unknown_variant_is_refused() -> None:
    with pytest.raises(ValueError):
        serve_command(Setup(), "turbo")


# ---------------------------------------------------------------- the log


def test_modes_and_the_ladder_are_read_from_the_config_line() -> None:
    rng = random.Random(1)
    for cudagraph_mode in VALUES:
        sizes = sorted(rng.sample(range(1, 513), 9)) if cudagraph_mode != "NONE" else []
        start = read_startup(start_up("VLLM_COMPILE", cudagraph_mode, sizes))
        assert (start.version, start.compilation_mode) == ("0.33.0", "VLLM_COMPILE")
        assert (start.cudagraph_mode, start.capture_sizes) == (cudagraph_mode, tuple(sizes))
    eager = read_startup(start_up("NONE", "NONE", []))
    assert (eager.compilation_mode, eager.cudagraph_mode) == ("NONE", "NONE")
    assert eager.capture_sizes == ()


@pytest.mark.catches("any-list-of-sizes-will-do")
def test_the_ladder_is_not_the_list_of_another_feature() -> None:
    sizes = [1, 2, 4, 8, 16]
    for other in ([], [3, 5, 7]):
        start = read_startup(start_up("VLLM_COMPILE", "FULL_AND_PIECEWISE", sizes, other=other))
        assert start.capture_sizes == (1, 2, 4, 8, 16)


@pytest.mark.catches("asked-is-what-runs")
def test_a_mode_that_the_attention_backend_cannot_do_is_not_what_runs() -> None:
    sizes = [1, 2, 4, 8]
    start = read_startup(start_up("VLLM_COMPILE", "FULL_AND_PIECEWISE", sizes, DOWNGRADED))
    assert (start.cudagraph_mode, start.capture_sizes) == ("PIECEWISE", (1, 2, 4, 8))
    both = DOWNGRADED + NO_PIECES
    none = read_startup(start_up("VLLM_COMPILE", "FULL_AND_PIECEWISE", sizes, both))
    assert (none.cudagraph_mode, none.capture_sizes) == ("NONE", ())


@pytest.mark.catches("asked-is-what-runs")
def test_the_last_line_that_changes_the_mode_holds() -> None:
    rng = random.Random(5)
    for _ in range(20):
        modes = [rng.choice(list(VALUES)) for _ in range(rng.randint(1, 4))]
        lines = [rng.choice([setting, overriding])(mode) for mode in modes]
        start = read_startup(start_up("VLLM_COMPILE", "FULL_AND_PIECEWISE", [1, 2], "".join(lines)))
        last = modes[-1]
        assert start.cudagraph_mode == last
        assert start.capture_sizes == (() if last == "NONE" else (1, 2))


@pytest.mark.catches("any-line-changes-the-mode")
def test_what_was_changed_before_the_config_line_stands_in_it_already() -> None:
    for earlier in (setting("NONE"), overriding("FULL"), setting("FULL") + overriding("NONE")):
        start = read_startup(start_up("VLLM_COMPILE", "PIECEWISE", [1, 2], earlier=earlier))
        assert start.cudagraph_mode == "PIECEWISE"
        assert start.capture_sizes == (1, 2)


@pytest.mark.catches("given-is-what-runs")
def test_what_the_server_was_given_is_printed_before_in_the_same_words() -> None:
    """`non-default args`: what was asked for, before vLLM has filled in and corrected it."""
    for mode, asked in (("NONE", "FULL"), ("STOCK_TORCH_COMPILE", "FULL_DECODE_ONLY")):
        earlier = given(mode, asked, [3, 5, 7])
        start = read_startup(start_up("VLLM_COMPILE", "PIECEWISE", [1, 2], earlier=earlier))
        assert start.compilation_mode == "VLLM_COMPILE"
        assert start.cudagraph_mode == "PIECEWISE"
        assert start.capture_sizes == (1, 2)


@pytest.mark.catches("a-ladder-comes-sorted")
def test_the_ladder_rises_in_whatever_order_it_was_printed() -> None:
    rng = random.Random(6)
    for _ in range(10):
        sizes = rng.sample(range(1, 513), 12)
        rising = tuple(sorted(sizes))
        start = read_startup(start_up("VLLM_COMPILE", "FULL", sizes))
        assert start.capture_sizes == rising
        falling = read_startup(start_up("VLLM_COMPILE", "FULL", [*reversed(rising)]))
        assert falling.capture_sizes == rising


def test_a_log_that_never_got_that_far_is_refused() -> None:
    for log in ("", "(APIServer pid=1) ERROR 11-21 09:00:00 [x.py:1] no GPU\n", setting("FULL")):
        with pytest.raises(ValueError):
            read_startup(log)


# ---------------------------------------------------------------- captures


@pytest.mark.parametrize("end", ["\r", "\n"])
def test_bars_tell_how_many_captures_there_were_in_each_mode(end: str) -> None:
    rng = random.Random(2)
    for _ in range(20):
        pieces, full = rng.randint(1, 60), rng.randint(1, 60)
        log = bar("PIECEWISE", pieces, end=end) + bar("FULL", full, end=end)
        assert captured_graphs(log) == {"PIECEWISE": pieces, "FULL": full}
        older = bar("mixed prefill-decode, PIECEWISE", pieces, end=end)
        older += bar("decode, FULL", full, end=end)
        assert captured_graphs(older) == {"PIECEWISE": pieces, "FULL": full}
    assert captured_graphs(start_up("NONE", "NONE", [])) == {}


@pytest.mark.catches("practice-counts")
def test_the_captures_for_practice_are_thrown_away() -> None:
    finished = "(EngineCore pid=4711) INFO 11-21 09:00:20 [model_runner.py:1164] Graph capturing "
    finished += "finished in 1 secs, took 0.31 GiB\n"
    practice = bar("PIECEWISE", 51) + bar("FULL", 2) + finished
    real = bar("PIECEWISE", 51) + bar("FULL", 35) + finished
    assert captured_graphs(practice + real) == {"PIECEWISE": 51, "FULL": 35}


@pytest.mark.parametrize("end", ["\r", "\n"])
def test_a_capture_that_did_not_end_is_no_count(end: str) -> None:
    rng = random.Random(7)
    for _ in range(10):
        total = rng.randint(2, 60)
        log = bar("PIECEWISE", 51, end=end) + bar("FULL", total, rng.randrange(total), end=end)
        with pytest.raises(ValueError):
            captured_graphs(log)
        with pytest.raises(ValueError):
            captured_graphs(bar("decode, FULL", total, total - 1, end=end) + bar("PIECEWISE", 51))


@pytest.mark.catches("a-hundred-percent-is-all")
def test_199_of_200_have_not_ended_though_the_bar_says_100_percent() -> None:
    log = bar("FULL", 200, done=199)
    assert "100%" in log
    with pytest.raises(ValueError):
        captured_graphs(log)


@pytest.mark.catches("practice-stands-in")
def test_a_practice_that_ended_does_not_stand_for_a_capture_that_did_not() -> None:
    practice = bar("PIECEWISE", 51) + bar("FULL", 2)
    for real in (
        bar("PIECEWISE", 51, done=50),
        bar("PIECEWISE", 51) + bar("FULL", 35, done=0),
        bar("PIECEWISE", 51) + bar("FULL", 35, done=34),
    ):
        with pytest.raises(ValueError):
            captured_graphs(practice + real)


@pytest.mark.catches("every-size-twice")
def test_as_many_captures_are_expected_as_the_engines_own_dispatcher_has_graphs() -> None:
    rng = random.Random(3)
    for _ in range(60):
        max_num_seqs = rng.choice([1, 3, 8, 20, 64, 256, 300])
        sizes = default_capture_sizes(max_num_seqs, rng.choice([256, 2048]))
        if rng.random() < 0.5:
            sizes = sorted(rng.sample(range(1, 600), rng.randint(1, 20)))
        for mode in CUDAGraphMode:
            graphs = GraphDispatcher(mode, sizes, max_num_seqs).descriptors()
            wanted: dict[str, int] = {}
            for graph in graphs:
                wanted[graph.mode.name] = wanted.get(graph.mode.name, 0) + 1
            assert expected_graphs(sizes, mode.name, max_num_seqs) == wanted, (sizes, mode)


# ---------------------------------------------------------------- latency


def without_summary(result: dict[str, Any]) -> dict[str, Any]:
    """As saved when no metric was selected; the lists are there."""
    return {name: value for name, value in result.items() if not name.endswith("_ms")}


def some_result(rng: random.Random, several: bool = False) -> dict[str, Any]:
    """Requests of 1 to 6 pieces, one in four failed; the seconds of a stream add up."""
    lists: dict[str, list[Any]] = {"itls": [], "ttfts": [], "latencies": [], "output_lens": []}
    for number in range(rng.randint(2, 12)):
        failed = number and rng.random() < 0.25
        gaps = [rng.uniform(0.001, 0.002) for _ in range(rng.randint(0 if number else 1, 5))]
        ttft = rng.uniform(0.02, 0.05)
        # as many pieces as gaps and one more; the first may hold several tokens, too
        tokens = sum(rng.randint(1, 3 if several else 1) for _ in range(len(gaps) + 1))
        lists["itls"].append(gaps)
        lists["ttfts"].append(ttft)
        broken_off = failed and rng.random() < 0.5  # its length tells that it failed, not its time
        lists["latencies"].append(0.0 if broken_off else ttft + sum(gaps))
        lists["output_lens"].append(0 if failed else tokens)
    return lists


def ended(result: dict[str, Any]) -> list[tuple[list[float], float, float, int]]:
    """(gaps, ttft, latency, tokens) of the requests that did not fail."""
    names = ("itls", "ttfts", "latencies", "output_lens")
    return [row for row in zip(*(result[name] for name in names), strict=True) if row[3]]


def test_a_request_of_two_tokens_has_one_gap_and_a_tpot() -> None:
    two = {"itls": [[0.003]], "ttfts": [0.05], "latencies": [0.053], "output_lens": [2]}
    found = latency(two)
    assert (found.gaps, found.tokens_per_gap) == (1, 1)
    assert found.mean_itl_ms == pytest.approx(3)
    assert found.mean_tpot_ms == pytest.approx(3)


@pytest.mark.catches("the-first-gap-is-warm-up", "the-first-token-is-a-gap", "itl-is-tpot")
def test_tpot_is_the_mean_over_requests_of_all_that_follows_the_first_token() -> None:
    rng = random.Random(8)
    for several in (False, True) * 10:
        result = some_result(rng, several)
        rows = [row for row in ended(result) if row[3] > 1]
        wanted = statistics.fmean(1e3 * sum(gaps) / (tokens - 1) for gaps, _, _, tokens in rows)
        # a stream's seconds were added up to its latency and are taken apart again: rounding
        assert latency(result).mean_tpot_ms == pytest.approx(wanted, rel=1e-9)


@pytest.mark.catches("itl-is-tpot", "failed-requests-count", "the-first-token-is-a-gap")
def test_itl_is_over_all_gaps_of_the_requests_that_succeeded() -> None:
    rng = random.Random(9)
    for several in (False, True) * 10:
        result = some_result(rng, several)
        gaps_ms = [1e3 * gap for gaps, *_ in ended(result) for gap in gaps]
        found = latency(result)
        assert found.gaps == len(gaps_ms)
        assert found.mean_itl_ms == pytest.approx(statistics.fmean(gaps_ms))
        assert found.median_itl_ms == pytest.approx(statistics.median(gaps_ms))
        assert found.p99_itl_ms == pytest.approx(np.percentile(gaps_ms, 99))
        tokens = sum(tokens - 1 for *_, tokens in ended(result))
        assert found.tokens_per_gap == pytest.approx(tokens / len(gaps_ms))


@pytest.mark.catches("itl-is-tpot", "failed-requests-count", "the-first-token-is-a-gap")
@pytest.mark.parametrize("name", [name for name in CASES if name != "_meta"])
def test_itl_and_tpot_are_those_of_vllms_own_summary(name: str) -> None:
    result = CASES[name]
    found = latency(without_summary(result))
    assert found.mean_itl_ms == pytest.approx(result["mean_itl_ms"])
    assert found.median_itl_ms == pytest.approx(result["median_itl_ms"])
    assert found.p99_itl_ms == pytest.approx(result["p99_itl_ms"])
    assert found.mean_tpot_ms == pytest.approx(result["mean_tpot_ms"])


@pytest.mark.catches("itl-is-tpot")
def test_a_stall_is_seen_in_p99_and_hidden_in_the_mean_of_each_request() -> None:
    rng = np.random.default_rng(4)
    gaps = rng.uniform(0.0010, 0.0012, (20, 50))
    gaps[7, 20] = 0.400
    whole = {
        "itls": gaps.tolist(), "ttfts": [0.03] * 20, "output_lens": [51] * 20,
        "latencies": (0.03 + gaps.sum(axis=1)).tolist(), "errors": [""] * 20,
    }  # fmt: skip
    found = latency(whole)
    assert found.gaps == 1000
    assert found.median_itl_ms == pytest.approx(1.1, rel=0.02)
    assert found.mean_itl_ms == pytest.approx(1e3 * gaps.mean())
    stretched = [statistics.fmean(request) for request in gaps.tolist()]
    assert found.mean_tpot_ms == pytest.approx(1e3 * statistics.fmean(stretched))
    assert max(gaps.ravel()) > 300 * found.median_itl_ms / 1e3


def test_it_is_noticed_when_a_piece_of_the_stream_holds_several_tokens() -> None:
    assert latency(CASES["steady"]).tokens_per_gap == 1
    assert latency(CASES["several tokens a chunk"]).tokens_per_gap > 1.2
    doubled = dict(CASES["steady"])
    doubled["output_lens"] = [2 * n - 1 for n in doubled["output_lens"]]
    assert latency(doubled).tokens_per_gap == 2


def test_a_file_without_the_gaps_is_refused() -> None:
    summary = {k: v for k, v in CASES["steady"].items() if k not in ("itls", "ttfts")}
    with pytest.raises(ValueError):
        latency(summary)
    alone = {"itls": [[]], "ttfts": [0.1], "latencies": [0.1], "output_lens": [1], "errors": [""]}
    with pytest.raises(ValueError):
        latency(alone)
    failed = {"itls": [[0.1]], "ttfts": [0.1], "latencies": [0.0], "output_lens": [0]}
    with pytest.raises(ValueError):
        latency(failed)


@pytest.mark.parametrize("name", ["itls", "ttfts", "latencies", "output_lens"])
def test_a_file_whose_lists_are_not_of_one_length_is_refused(name: str) -> None:
    cut_short = CASES["steady"] | {name: CASES["steady"][name][:-1]}
    with pytest.raises(ValueError):
        latency(cut_short)
