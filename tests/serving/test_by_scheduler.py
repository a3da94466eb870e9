"""Claims about serving with a prefix cache and with swapping. That strides are exact, and that the
report is what the engine measures, is shown in test_simulate.py."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course.draw.ch09_swap import cost
from mini_engine.engine.scheduler import SchedulerLimits
from mini_engine.serving.by_scheduler import OWN_TOKENS, PromptIds, simulate_by_scheduler
from mini_engine.serving.plan import without_idle_blocks
from mini_engine.serving.report import ServeReport
from mini_engine.serving.request_trace import TraceRequest, synthetic_trace, with_shared_prefix
from mini_engine.serving.simulate import simulate
from mini_engine.step.swap_cost import SwapCost

ROOMY = SchedulerLimits(256, 8192, 40_000, 16, 40_960)
COPIES = cost("qwen3-0.6b", "PCIe 5.0")
TRACE = list(synthetic_trace(200, seed=3, requests_per_s=50.0))


def serve(
    trace: list[TraceRequest], limits: SchedulerLimits, copies: SwapCost | None = None
) -> ServeReport:
    copies = copies or cost("qwen3-0.6b", "PCIe 5.0")
    return simulate(trace, copies.steps, limits, copies.dispatcher, copies=copies)


def test_prompts_are_alike_where_it_is_declared_and_nowhere_else() -> None:
    one, other = TraceRequest(0.0, 20, 1, shared_tokens=12), TraceRequest(0.0, 9, 1, 12)
    assert PromptIds(3, one)[:12] == list(range(12))
    assert [*PromptIds(4, other)] == list(range(9))
    assert not set(PromptIds(3, one)[12:]) & set(PromptIds(5, one)[12:])
    assert len(PromptIds(3, one)) == 20


@given(
    number=st.integers(0, 9),
    tokens=st.integers(1, 30),
    shared=st.integers(0, 40),
    start=st.integers(0, 35),
    stop=st.integers(0, 35),
)
def test_a_prompt_is_sliced_as_the_list_of_its_tokens(
    number: int, tokens: int, shared: int, start: int, stop: int
) -> None:
    prompt = PromptIds(number, TraceRequest(0.0, tokens, 1, shared))
    own = (number + 1) * OWN_TOKENS
    ids = [*range(min(shared, tokens)), *range(own, own + max(0, tokens - shared))]
    assert [prompt[at] for at in range(-tokens, tokens)] == ids + ids
    assert prompt[start:stop] == ids[start:stop]
    with pytest.raises(IndexError):
        prompt[tokens]
    with pytest.raises(ValueError, match="with step 2: expected 1"):
        prompt[::2]


def test_the_declared_share_is_found_and_nothing_else() -> None:
    shared = list(with_shared_prefix(TRACE, 512, 0.6, seed=1))
    alike = [r for r in shared if r.shared_tokens]
    assert 0.5 < len(alike) / len(shared) < 0.7
    report = serve(shared, replace(ROOMY, prefix_caching=True))
    # whole blocks, not the last token; and somebody has to be the first
    blocks = [(min(512, r.prompt_tokens) - (r.prompt_tokens <= 512)) // 16 for r in alike]
    found = sum(blocks) - max(blocks)
    assert 0.97 * 16 * found <= report.prefill_tokens_saved <= 16 * found
    asked = sum(r.prompt_tokens for r in shared)
    assert report.prefix_hit_rate == pytest.approx(report.prefill_tokens_saved / asked)
    nothing = serve(TRACE, replace(ROOMY, prefix_caching=True))
    assert (nothing.prefill_tokens_saved, nothing.prefix_hit_rate) == (0, 0.0)


def test_without_a_prefix_cache_a_share_changes_nothing() -> None:
    shared = list(with_shared_prefix(TRACE, 512, 1.0))
    assert serve(shared, ROOMY) == serve(TRACE, ROOMY)


def test_a_cache_that_finds_nothing_serves_as_without_one() -> None:
    """An independent way to the same numbers: there the scheduler, here the counts."""
    there, here = serve(TRACE, replace(ROOMY, prefix_caching=True)), serve(TRACE, ROOMY)
    assert there.steps_by_rung == here.steps_by_rung
    assert there.busy_us == pytest.approx(here.busy_us, rel=1e-9)
    assert there.ttft_p99_us == here.ttft_p99_us


@given(
    seed=st.integers(0, 10_000),
    num_blocks=st.integers(60, 100_000),
    block_size=st.sampled_from([1, 4, 16]),
    prefix_caching=st.booleans(),
    preemption=st.sampled_from(["recompute", "swap"]),
    max_model_len=st.integers(50, 3000),
)
def test_blocks_that_no_request_could_fill_change_nothing(
    seed: int,
    num_blocks: int,
    block_size: int,
    prefix_caching: bool,
    preemption: str,
    max_model_len: int,
) -> None:
    trace = list(with_shared_prefix(synthetic_trace(12, seed=seed), 128, 0.5, seed=seed))
    limits = SchedulerLimits(
        8, 512, num_blocks, block_size, max_model_len, prefix_caching=prefix_caching,
        preemption=preemption, host_blocks=0 if preemption == "recompute" else 50_000,
    )  # fmt: skip
    fewer = without_idle_blocks(limits, [(r.prompt_tokens, r.output_tokens) for r in trace])
    assert fewer.num_blocks <= limits.num_blocks
    assert fewer.host_blocks <= limits.host_blocks
    here, there = (
        simulate_by_scheduler(trace, COPIES.steps, held, COPIES.dispatcher, copies=COPIES)
        for held in (fewer, limits)
    )
    assert replace(here, kv_blocks=num_blocks - 1) == there


def test_a_roomy_cache_is_simulated_with_the_blocks_of_its_requests() -> None:
    fewer = without_idle_blocks(replace(ROOMY, num_blocks=10**8), [(17, 16), (32, 1), (50_000, 9)])
    assert fewer.num_blocks == 1 + 3 + 3 + 40_960 // 16  # the last one ends with the context
    assert without_idle_blocks(ROOMY, [(40_000, 1)] * 100) == ROOMY
    assert without_idle_blocks(ROOMY, []).num_blocks == 2  # what a pool has at least


def tight(preemption: str) -> SchedulerLimits:
    host_blocks = 0 if preemption == "recompute" else 10_000
    return SchedulerLimits(
        64, 2048, 1200, 16, 16_384, preemption=preemption, host_blocks=host_blocks
    )  # fmt: skip


@pytest.mark.parametrize(
    ("model", "link", "swaps"),
    [("qwen3-8b", "PCIe 5.0", (0.8, 1.0)), ("qwen3-0.6b", "PCIe 4.0", (0.1, 0.9))],
)
def test_cheaper_waits_no_longer_than_the_better_of_both(
    model: str, link: str, swaps: tuple[float, float]
) -> None:
    copies = cost(model, link)
    ways = {way: serve(TRACE, tight(way), copies) for way in ("recompute", "swap", "cheaper")}
    again, swapped, cheaper = ways.values()
    assert again.preemptions > 20
    assert (again.swaps, again.swapped_bytes) == (0, 0)
    assert (swapped.swaps, swapped.recomputed_tokens) == (swapped.preemptions, 0)
    low, high = swaps
    assert low <= cheaper.swaps / cheaper.preemptions <= high
    assert cheaper.swap_saved_us >= 0
    # A step that computes again may carry a new prompt as well, which the estimate cannot know: so
    # the sum of many choices that are each the cheaper one is bounded only nearly.
    assert cheaper.busy_us <= 1.01 * min(again.busy_us, swapped.busy_us)


def test_what_goes_out_comes_back() -> None:
    report = serve(TRACE, tight("swap"))
    block_bytes = cost("qwen3-0.6b", "PCIe 5.0").block_bytes
    blocks = report.swapped_bytes // block_bytes
    assert blocks * block_bytes == report.swapped_bytes > 0
    assert blocks % 2 == 0
    assert report.swap_us == pytest.approx(cost("qwen3-0.6b", "PCIe 5.0").copy_us(blocks))


def test_swapping_without_its_cost_is_refused() -> None:
    copies = cost("qwen3-0.6b", "PCIe 5.0")
    with pytest.raises(ValueError, match="preemption 'swap' copies blocks: give `copies`"):
        simulate(TRACE, copies.steps, tight("swap"), copies.dispatcher)
