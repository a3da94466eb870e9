"""Claims about fleets: one replica is `serve`; no router loses a request or serves one twice."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_engine.fleet.fleet import ROUTERS, Arrival, Design, run, sized_as
from mini_engine.fleet.sweep import cards_of
from mini_engine.serving.replay import Replica, replay
from mini_engine.serving.report import Served
from mini_engine.serving.request_trace import TraceRequest, synthetic_trace, with_shared_prefix

DESIGN = Design("qwen3-8b", ("h100",))
each_router = pytest.mark.parametrize("router", list(ROUTERS))


def served_by(design: Design, trace: list[TraceRequest]) -> list[Served]:
    found: list[Served] = []
    run(design, trace, found.append)
    return found


@each_router
@pytest.mark.parametrize("caching", [False, True])
def test_a_fleet_of_one_is_serve_to_the_microsecond(router: str, caching: bool) -> None:
    trace = list(with_shared_prefix(synthetic_trace(150, 5), 300, 0.7))
    server = DESIGN.server("h100")
    sized = sized_as(server, DESIGN.mode)
    expected: list[Served] = []
    limits = replace(sized.limits, prefix_caching=caching)
    report = replay(trace, server.costs, limits, sized.dispatcher, on_served=expected.append)
    design, found = replace(DESIGN, router=router, prefix_caching=caching), list[Served]()
    fleet = run(design, trace, found.append)
    assert [one.number for one in found] == [one.number for one in expected]
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.first_token_us == pytest.approx(theirs.first_token_us, abs=1)
        assert mine.finished_us == pytest.approx(theirs.finished_us, abs=1)
    for name in ("requests", "ttft_p50_us", "ttft_p99_us", "itl_p50_us", "itl_p99_us",
                 "tokens_per_s", "prefix_hit_rate"):  # fmt: skip
        expected_value = getattr(report, name)
        assert getattr(fleet, name) == (expected_value and pytest.approx(expected_value))
    assert (fleet.cost_per_hour, fleet.most_replicas, fleet.cold_starts) == (1.0, 1, 0)


@st.composite
def designs(draw: st.DrawFn) -> tuple[Design, list[TraceRequest]]:
    """Small caches (qwen3-8b leaves an l40s some), many kinds of fleet, bursts."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    replicas = draw(st.integers(1, 5))
    scaled = draw(st.booleans())
    design = Design(
        "qwen3-0.6b", tuple(rng.choice(["l40s", "h100", "a10"]) for _ in range(replicas)),
        router=draw(st.sampled_from(list(ROUTERS))),
        prefill=0 if scaled else draw(st.integers(0, replicas - 1)),
        scale_at=rng.choice([1, 3]) if scaled else 0, boot_us=rng.choice([0.0, 5e6]),
        prefix_caching=draw(st.booleans()), link_gb_s=rng.choice([0.1, 50.0]),
        max_num_seqs=rng.choice([2, 16]), max_num_batched_tokens=rng.choice([64, 2048]),
        slo_us=(rng.choice([1e3, 1e5, math.inf]), rng.choice([2e3, math.inf])),
    )  # fmt: skip
    trace = [
        TraceRequest(
            rng.choice([0.0, rng.uniform(0, 60e6)]), rng.choice([1, 30, 700, 50_000]),
            rng.choice([1, 2, 40]), rng.choice([0, 64, 640]), rng.randint(0, 2),
        )
        for _ in range(rng.randint(0, 40))
    ]  # fmt: skip
    return design, sorted(trace, key=lambda one: one.arrival_us)


@given(case=designs())
def test_no_request_is_lost_or_served_twice(case: tuple[Design, list[TraceRequest]]) -> None:
    design, trace = case
    found: list[Served] = []
    report = run(design, trace, found.append)
    fits = [n for n, one in enumerate(trace) if one.prompt_tokens < 40_960]
    assert sorted(one.number for one in found) == fits
    assert report.requests == len(fits)
    assert report.refused == len(trace) - len(fits)
    for one in found:
        assert one.arrival_us == trace[one.number].arrival_us
        assert one.arrival_us < one.first_token_us <= one.finished_us
        if trace[one.number].output_tokens > 1:
            assert one.first_token_us < one.finished_us
    met = sum(
        one.first_token_us - one.arrival_us <= design.slo_us[0]
        and (one.finished_us - one.first_token_us) / max(1, trace[one.number].output_tokens - 1)
        <= design.slo_us[1]
        for one in found
    )
    assert report.content_share == pytest.approx(met / len(trace) if trace and fits else 0)
    assert report.most_replicas <= len(design.cards)
    if not design.scale_at and found:
        assert report.cost_per_hour == pytest.approx(len(design.cards))


@given(seed=st.integers(0, 2**32), router=st.sampled_from(list(ROUTERS)))
def test_a_router_answers_with_one_of_the_replicas_and_changes_none(seed: int, router: str) -> None:
    rng, server = random.Random(seed), DESIGN.server("h100")
    sized = sized_as(server, "FULL")
    limits = replace(sized.limits, prefix_caching=rng.random() < 0.5)
    replicas = [Replica(server.costs, limits, sized.dispatcher) for _ in range(rng.randint(1, 4))]
    choose, now_us = ROUTERS[router](), 0.0
    for number in range(12):
        now_us += rng.expovariate(1 / 3e4)
        request = TraceRequest(
            now_us, rng.randint(1, 400), 20, rng.choice([0, 100]), rng.randint(0, 1)
        )
        for one in replicas:
            one.advance_to(now_us)
        before = [one.outstanding for one in replicas]
        chosen = choose(replicas, Arrival(number, now_us, request))
        assert [one.outstanding for one in replicas] == before
        at = next(i for i, one in enumerate(replicas) if one is chosen)
        if router == "round-robin":
            assert at == number % len(replicas)
        if router == "least":
            assert before[at] == min(before)
        chosen.submit(number, request)


def test_a_prefix_goes_where_its_blocks_are() -> None:
    trace = [TraceRequest(i * 2e6, 1100, 4, 1024, i % 4) for i in range(40)]
    shared = replace(DESIGN, cards=("h100",) * 4, prefix_caching=True)
    rates = {}
    for router in ("prefix", "two"):
        rates[router] = run(replace(shared, router=router), trace).prefix_hit_rate
    # each of the four prefixes is computed once, and then found 9 times of 10
    assert rates["prefix"] == pytest.approx(0.9 * 1024 / 1100)
    assert rates["two"] < rates["prefix"]


def test_prompts_of_a_prefill_pool_disturb_no_answer() -> None:
    trace = list(synthetic_trace(300, 2, requests_per_s=12.0, median_prompt_tokens=3000))
    together = run(replace(DESIGN, cards=("h100",) * 4), trace)
    apart = run(replace(DESIGN, cards=("h100",) * 4, prefill=2), trace)
    assert apart.itl_p99_us < together.itl_p99_us / 2
    slow = run(replace(DESIGN, cards=("h100",) * 4, prefill=2, link_gb_s=0.2), trace)
    assert slow.ttft_p50_us == apart.ttft_p50_us  # the first token needs no link
    assert slow.tokens_per_s < apart.tokens_per_s


def test_what_crosses_the_link_waits_for_what_crosses_before_it() -> None:
    """Two prompts of 1,000 tokens at once; a token of qwen3-8b is 147,456 bytes."""
    design = replace(DESIGN, cards=("h100", "h100"), prefill=1, link_gb_s=1.0)
    first, second = sorted(
        served_by(design, [TraceRequest(0.0, 1000, 2), TraceRequest(0.0, 1000, 2)]),
        key=lambda one: one.finished_us,
    )
    assert first.finished_us > first.first_token_us + 147_456.0
    assert second.finished_us - first.finished_us == pytest.approx(147_456.0, rel=0.01)


def test_an_autoscaler_pays_for_cold_starts_and_stops_what_idles() -> None:
    rush = [TraceRequest(i * 1e4, 500, 300) for i in range(400)]
    calm = [TraceRequest(10e6 + i * 10e6, 500, 300) for i in range(30)]
    design = replace(DESIGN, cards=("h100",) * 6, scale_at=32)
    scaled = run(design, rush + calm)
    fixed = run(replace(design, scale_at=0), rush + calm)
    server = design.server("h100")
    cold_us = 30e6 + server.stored.held / 2e3 + sized_as(server, design.mode).graph_costs.capture_us
    assert scaled.cold_start_us == pytest.approx(cold_us)
    assert scaled.cold_starts >= 5
    assert scaled.most_replicas == 6
    assert scaled.cost_per_hour < fixed.cost_per_hour == 6
    assert scaled.ttft_p99_us > fixed.ttft_p99_us
    eager = run(replace(design, mode="NONE"), rush + calm)
    assert eager.cold_start_us < cold_us - 1e6  # nothing is captured


def test_a_fleet_is_read_from_words_and_wrong_ones_are_named() -> None:
    assert cards_of("2xh100+1xl40s") == ("h100", "h100", "l40s")
    for words in ("h100", "2x", "0xh100", "2xh100+", "x", "-1xh100"):
        with pytest.raises(ValueError, match="NxCARD"):
            cards_of(words)
    with pytest.raises(ValueError, match="router"):
        replace(DESIGN, router="fastest")
    with pytest.raises(ValueError, match="compute prompts"):
        replace(DESIGN, prefill=1)
    with pytest.raises(ValueError, match="choose one"):
        replace(DESIGN, cards=("h100",) * 2, prefill=1, scale_at=3)
    with pytest.raises(ValueError, match="h100"):
        run(replace(DESIGN, cards=("h10",)), [TraceRequest(0.0, 1, 1)])
