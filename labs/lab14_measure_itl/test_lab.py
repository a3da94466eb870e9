"""Lab 14: measuring. The stopwatch is held against a GPU that is played on two clocks, intervals
against thousands of experiments whose truth is known."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from labs.lab14_measure_itl.processes import MAX_PROCESSES, STUDENT_T, pooled_interval, pooled_ratio
from mini_engine.bench import intervals
from mini_engine.bench.intervals import LEAST_US, held_out_percent, line, median_interval
from mini_engine.bench.timing import Lap, balanced_order, lap, paired_laps

TRUTH = 100.0


# ---------------------------------------------------------------- a GPU on two clocks


class TwoClocks:
    """Stands in for a backend: calls return at once, the device works on. Times in µs.

    To record an event costs the CPU time, and so does its way back when it had to wait: neither is
    the device's.
    """

    RECORD_US, WAKE_US = 1.5, 9.0

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cpu = self.gpu = 0.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.cpu * 1e-6)
        monkeypatch.setattr(time, "perf_counter_ns", lambda: int(self.cpu * 1e3))

    def queue(self, issue_us: float, work_us: float) -> None:
        """The CPU issues; the device begins when it has been issued and is free."""
        self.cpu += issue_us
        self.gpu = max(self.cpu, self.gpu) + work_us

    def synchronize(self) -> None:
        self.wait_until(self.gpu)

    def wait_until(self, done_us: float) -> None:
        if done_us > self.cpu:
            self.cpu = done_us + self.WAKE_US

    def Event(self, enable_timing: bool = False) -> Stamp:  # noqa: N802 (torch's name)
        assert enable_timing, "an event without enable_timing=True has no time"
        return Stamp(self)


class Stamp:
    """An event: the device notes when it gets to it."""

    def __init__(self, clocks: TwoClocks) -> None:
        self.clocks = clocks
        self.at_us: float | None = None

    def record(self, stream: Any = None) -> None:
        del stream
        self.clocks.cpu += self.clocks.RECORD_US
        self.at_us = max(self.clocks.cpu, self.clocks.gpu)

    def synchronize(self) -> None:
        assert self.at_us is not None, "an event was waited for that nobody recorded"
        self.clocks.wait_until(self.at_us)

    def elapsed_time(self, end: Stamp) -> float:
        assert self.at_us is not None and end.at_us is not None, "an event was not recorded"  # noqa: PT018
        assert self.clocks.cpu >= end.at_us, "asked before the last event was waited for"
        return (end.at_us - self.at_us) / 1e3


@dataclass
class Decode:
    """Something to time: each step takes `work_us`, and `drift` of it longer from lap to lap."""

    clocks: TwoClocks
    issue_us: float
    work_us: float
    steps_a_call: int = 1
    shared: list[int] | None = None  # laps so far, of all contestants
    drift: float = 0.0
    calls: int = 0
    rewinds: int = 0

    def rewind(self) -> None:
        self.rewinds += 1
        self.clocks.queue(3.0, 7.0)  # copies the first tokens back
        if self.shared is not None:
            self.shared.append(1)

    def step(self) -> None:
        self.calls += 1
        slower = 1 + self.drift * len(self.shared or ())
        self.clocks.queue(self.issue_us, self.work_us * self.steps_a_call * slower)


def chain_us(decode: Decode, calls: int) -> tuple[float, float]:
    """From an idle device until it is idle again, by the later of the two chains: what the device
    took between two events, and what a caller waits, from before the first to after the last."""
    record_us, wake_us = TwoClocks.RECORD_US, TwoClocks.WAKE_US
    began = issued = free = record_us  # the first event
    for _ in range(calls):
        issued += decode.issue_us
        free = max(issued, free) + decode.work_us * decode.steps_a_call
    issued += record_us
    last = max(issued, free)
    return last - began, last + wake_us if last > issued else issued


CASES = [(2.0, 50.0, 1), (20.0, 3.0, 1), (5.0, 5.0, 1), (4.0, 30.0, 8), (60.0, 2.0, 8)]


@pytest.mark.catches("calls-are-work", "the-clock-starts-at-the-event")
@pytest.mark.parametrize(("issue_us", "work_us", "k"), CASES)
def test_the_wall_clock_runs_from_before_the_first_event_until_the_device_is_idle_again(
    issue_us: float, work_us: float, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks = TwoClocks(monkeypatch)
    decode = Decode(clocks, issue_us, work_us, k)
    wall_us = lap(clocks, decode, 32).wall_us
    _, caller_us = chain_us(decode, 32 // k)
    assert wall_us == pytest.approx(caller_us / 32)


@pytest.mark.parametrize(("issue_us", "work_us", "k"), CASES)
def test_the_events_tell_what_the_device_took_waiting_included(
    issue_us: float, work_us: float, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks = TwoClocks(monkeypatch)
    decode = Decode(clocks, issue_us, work_us, k)
    event_us = lap(clocks, decode, 64).event_us
    device_us, _ = chain_us(decode, 64 // k)
    assert event_us == pytest.approx(device_us / 64)


@pytest.mark.catches("starts-on-a-busy-device", "waits-before-it-rewinds")
def test_what_was_queued_before_the_lap_and_the_rewind_itself_do_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clocks = TwoClocks(monkeypatch)
    decode = Decode(clocks, 2.0, 50.0)
    alone = lap(clocks, decode, 16)
    clocks.queue(1.0, 90_000.0)
    after_much_work = lap(clocks, decode, 16)
    device_us, caller_us = chain_us(decode, 16)
    assert after_much_work.wall_us == pytest.approx(alone.wall_us)
    assert after_much_work.event_us == pytest.approx(alone.event_us)
    assert alone.wall_us == pytest.approx(caller_us / 16)
    assert alone.event_us == pytest.approx(device_us / 16)
    assert decode.rewinds == 2


@pytest.mark.catches("a-call-is-a-step")
@pytest.mark.parametrize(("steps", "k", "calls"), [(32, 8, 4), (33, 8, 5), (1, 8, 1), (7, 1, 7)])
def test_whole_calls_are_made_and_the_time_is_for_each_step_really_done(
    steps: int, k: int, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks = TwoClocks(monkeypatch)
    decode = Decode(clocks, 1.0, 40.0, k)
    found = lap(clocks, decode, steps)
    device_us, caller_us = chain_us(decode, calls)
    assert decode.calls == calls
    assert found.event_us == pytest.approx(device_us / (calls * k))
    assert found.wall_us == pytest.approx(caller_us / (calls * k))


# ---------------------------------------------------------------- order


@pytest.mark.catches("alternating-is-balanced")
def test_each_comes_first_equally_often_and_their_places_add_up_to_the_same() -> None:
    for rounds in (2, 4, 6, 8, 20):
        order = balanced_order("A", "B", rounds)
        assert order.count("A") == order.count("B") == rounds
        firsts = order[::2]
        assert firsts.count("A") == firsts.count("B")
        assert all({*order[i : i + 2]} == {"A", "B"} for i in range(0, 2 * rounds, 2))
        places = {name: [i for i, n in enumerate(order) if n == name] for name in "AB"}
        assert sum(places["A"]) == sum(places["B"])
        assert order == ["A", "B", "B", "A"] * (rounds // 2), "one other, other one, one other …"
    assert balanced_order("ours", "theirs", 2) == ["ours", "theirs", "theirs", "ours"]
    assert balanced_order("theirs", "ours", 2) == ["theirs", "ours", "ours", "theirs"]


@pytest.mark.parametrize("rounds", [0, 1, 3, -2])
def test_an_order_that_cannot_be_balanced_is_refused(rounds: int) -> None:
    with pytest.raises(ValueError):
        balanced_order("A", "B", rounds)


@pytest.mark.catches("alternating-is-balanced")
def test_two_equal_variants_come_out_equal_on_a_gpu_that_gets_slower(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for rounds in (2, 4, 8):
        clocks, shared = TwoClocks(monkeypatch), []
        one, other = (Decode(clocks, 1.0, 50.0, 1, shared, drift=0.002) for _ in "AB")
        laps = paired_laps(clocks, one, other, steps=16, rounds=rounds)
        ours, theirs = (statistics.median(lap.event_us for lap in side) for side in laps)
        assert ours == pytest.approx(theirs, rel=1e-9)
        assert all(isinstance(one_lap, Lap) for side in laps for one_lap in side)
        assert [len(side) for side in laps] == [rounds, rounds]


# ---------------------------------------------------------------- how sure


def test_an_interval_holds_its_median_and_the_same_samples_give_the_same_one() -> None:
    rng = np.random.default_rng(1)
    for count in (1, 2, 5, 40):
        samples = tuple(rng.lognormal(3, 0.5, count).tolist())
        found = median_interval(samples)
        assert found == median_interval(samples)
        assert found.median == pytest.approx(float(np.median(samples)))
        little = 1e-12 * found.median  # a percentile between two equal medians may round
        assert min(samples) - little <= found.low <= found.median + little
        assert found.median - little <= found.high <= max(samples) + little
        assert found.samples == count


def test_more_draws_make_seeds_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """An end of an interval scatters from seed to seed with one over the root of RESAMPLES: 25
    times the draws, a fifth of the scatter. Whoever draws another number does not see it change."""
    samples = tuple(np.random.default_rng(15).normal(TRUTH, 5, 101).tolist())
    scatter_us = {}
    for draws in (40, 1000):
        monkeypatch.setattr(intervals, "RESAMPLES", draws)
        scatter_us[draws] = statistics.stdev(median_interval(samples, n).low for n in range(20))
    assert scatter_us[1000] < 0.5 * scatter_us[40]


def test_seven_samples_are_drawn_seven_at_a_time() -> None:
    """The median of seven draws is the smallest of the samples in 1.0% of all cases, the second or
    the smallest in 10.8%: so the 2.5th percentile is the second. Six draws, an even number, have
    medians between two samples there."""
    found = median_interval((32.0, 1.0, 4.0, 64.0, 8.0, 2.0, 16.0))
    assert (found.low, found.high) == (2.0, 32.0)


def test_four_samples_are_drawn_with_replacement() -> None:
    """In 13 of the 256 draws of four the smallest comes three times or more, and is the median.
    Without replacement it is drawn once."""
    found = median_interval((8.0, 1.0, 4.0, 2.0))
    assert (found.low, found.high) == (1.0, 8.0)


def test_no_samples_have_no_interval() -> None:
    with pytest.raises(ValueError):
        median_interval([])


def share_below(place: int, count: int) -> float:
    """Of all possible draws of `count` from 1, 2, … count, with replacement, those whose median is
    at most `place`: more than half of the draw is."""
    share = place / count
    return sum(
        math.comb(count, k) * share**k * (1 - share) ** (count - k)
        for k in range((count + 1) // 2, count + 1)
    )


@pytest.mark.catches("ninety-is-ninety-five", "wider-is-safer", "scatter-is-the-interval")
def test_two_and_a_half_percent_of_all_draws_have_a_median_below_and_as_many_above() -> None:
    """Exactly, since the draws of a small sample can be counted. A bootstrap of 2,000 draws is
    within 0.35 of a percent of it (one deviation); the mean of 20 within 0.1."""
    rng, count, below, above = np.random.default_rng(11), 101, [], []
    for seed in range(20):
        samples = tuple(float(n) for n in rng.permutation(np.arange(1, count + 1)))
        found = median_interval(samples, seed)
        # between two places of the sample: half of the way, as a percentile of 2,000 medians may be
        below.append(50 * (share_below(math.floor(found.low), count)
                           + share_below(math.ceil(found.low) - 1, count)))  # fmt: skip
        above.append(100 - 50 * (share_below(math.floor(found.high), count)
                                 + share_below(math.ceil(found.high) - 1, count)))  # fmt: skip
    percent_below, percent_above = statistics.fmean(below), statistics.fmean(above)
    assert percent_below == pytest.approx(2.5, abs=0.6)
    assert percent_above == pytest.approx(2.5, abs=0.6)


@pytest.fixture
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where hundreds of intervals are made, each of fewer draws: a loop over draws is in time."""
    monkeypatch.setattr(intervals, "RESAMPLES", 200)


@pytest.mark.catches("scatter-is-the-interval")
@pytest.mark.usefixtures("few_draws")
def test_more_laps_narrow_the_interval() -> None:
    rng = np.random.default_rng(2)
    widths = {}
    for count in (25, 400):
        found = [median_interval(rng.normal(TRUTH, 5, count).tolist()) for _ in range(20)]
        widths[count] = statistics.fmean(one.high - one.low for one in found)
    assert widths[400] < 0.4 * widths[25]  # 16 times the laps: about a quarter


@pytest.mark.catches("scatter-is-the-interval")
@pytest.mark.usefixtures("few_draws")
def test_an_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng, covered = np.random.default_rng(3), 0
    for _ in range(60):  # no more: a loop over 2,000 draws in Python is slow, and right
        found = median_interval(rng.normal(TRUTH, 5, 25).tolist())
        covered += found.low <= TRUTH <= found.high
    # 95% of 60 is 57, one deviation 1.7; the scatter of the laps covers it each time
    assert 52 <= covered < 60


def some_processes(rng: np.random.Generator, count: int) -> list[tuple[float, ...]]:
    """Processes that differ by 1% of each other, their laps by half a µs."""
    offsets = TRUTH * (1 + 0.01 * rng.standard_normal(count))
    return [tuple(rng.normal(offset, 0.5, 20).tolist()) for offset in offsets]


@pytest.mark.catches("laps-are-independent")
@pytest.mark.parametrize("count", [2, 3, 6])
def test_an_interval_over_processes_covers_what_processes_differ_by(count: int) -> None:
    rng, covered = np.random.default_rng(count), 0
    for _ in range(400):
        found = pooled_interval(some_processes(rng, count))
        covered += found.low <= TRUTH <= found.high
    assert 0.91 <= covered / 400 <= 0.99  # 95%, give or take three deviations of 400


@pytest.mark.catches("laps-are-independent")
def test_each_process_counts_once_whatever_number_of_laps_it_has() -> None:
    few, many = (90.0, 100.0, 140.0), (120.0,) * 60
    for medians, laps in (
        ([100.0, 120.0], (few, many)),
        ([100.0, 120.0, 170.0], (few, many, (190.0, 150.0))),
    ):
        found, n = pooled_interval(laps), len(medians)
        mean = statistics.fmean(medians)
        assert found.median == pytest.approx(mean), f"the mean of {medians}, each a median of laps"
        half = STUDENT_T[n - 2] * statistics.stdev(medians) / n**0.5
        assert (found.low, found.high) == pytest.approx((mean - half, mean + half))
        assert found.samples == sum(map(len, laps))


def test_one_process_has_the_interval_of_its_laps_and_none_or_too_many_are_refused() -> None:
    laps = [3.0, 1.0, 2.0, 5.0]
    assert pooled_interval([laps]) == median_interval(laps)
    alike = pooled_interval([laps] * MAX_PROCESSES)
    assert (alike.low, alike.high) == pytest.approx((2.5, 2.5)), "processes that do not differ"
    for groups in ([], [laps] * (MAX_PROCESSES + 1), [laps, []]):
        with pytest.raises(ValueError):
            pooled_interval(groups)


@pytest.mark.catches("ratio-of-medians")
def test_what_slows_both_laps_of_a_pair_cancels_in_their_ratio() -> None:
    rng = np.random.default_rng(4)
    ones = [rng.uniform(50, 500, 12).tolist() for _ in range(3)]
    found = pooled_ratio(ones, [[1.25 * us for us in one] for one in ones])
    assert (found.low, found.median, found.high) == pytest.approx((1.25, 1.25, 1.25))
    assert found.samples == 36


@pytest.mark.catches("ratio-of-medians")
def test_a_ratio_is_pooled_from_the_logarithms_of_its_pairs() -> None:
    rng = np.random.default_rng(14)
    for count in (1, 2, 5):
        ones, others = some_processes(rng, count), some_processes(rng, count)
        logs = [[math.log(b) - math.log(a) for a, b in zip(*pair, strict=True)]
                for pair in zip(ones, others, strict=True)]  # fmt: skip
        pooled, found = pooled_interval(logs), pooled_ratio(ones, others)
        assert found.median == pytest.approx(math.exp(pooled.median))
        assert found.low == pytest.approx(math.exp(pooled.low))
        assert found.high == pytest.approx(math.exp(pooled.high))
        assert found.samples == 20 * count


@pytest.mark.catches("ratio-of-medians")
def test_turning_a_ratio_round_gives_one_over_it() -> None:
    rng = np.random.default_rng(5)
    ones, others = some_processes(rng, 4), some_processes(rng, 4)
    there, back = pooled_ratio(ones, others), pooled_ratio(others, ones)
    turned = (1 / back.high, 1 / back.median, 1 / back.low)
    assert (there.low, there.median, there.high) == pytest.approx(turned)
    medians = [statistics.median(np.log(b) - np.log(a)) for a, b in zip(ones, others, strict=True)]
    assert np.log(there.median) == pytest.approx(statistics.fmean(medians))


def test_laps_without_a_partner_are_refused() -> None:
    with pytest.raises(ValueError):
        pooled_ratio([[1.0, 2.0]], [[1.0]])
    with pytest.raises(ValueError):
        pooled_ratio([[1.0], [2.0]], [[1.0]])
    with pytest.raises(ValueError):
        pooled_ratio([[1.0, 2.0], [1.0]], [[1.0], [1.0, 2.0]])
    with pytest.raises(ValueError):
        pooled_ratio([], [])


# ---------------------------------------------------------------- a line, and its error

NODES = (1, 16, 64, 256, 1024, 4096)


def best_line(counts: Sequence[int], times: Sequence[float]) -> tuple[float, float]:
    """Least relative squares by a solver: each row divided by its time."""
    times_us = np.asarray(times)
    rows = np.stack([np.ones(len(counts)), np.asarray(counts)], axis=1) / times_us[:, None]
    (base, slope), *_ = np.linalg.lstsq(rows, np.ones(len(counts)), rcond=None)
    return float(base), float(slope)


def noisy(
    rng: np.random.Generator, base: float, slope: float, noise: float = 0.03
) -> tuple[float, ...]:
    times = (base + slope * np.asarray(NODES)) * (1 + noise * rng.uniform(-1, 1, len(NODES)))
    return tuple(float(us) for us in times)


def test_a_straight_line_is_found_again() -> None:
    rng = np.random.default_rng(6)
    for _ in range(50):
        base, slope = rng.uniform(0.5, 20), rng.uniform(1e-3, 3)
        assert line(NODES, noisy(rng, base, slope, 0)) == pytest.approx((base, slope), rel=1e-6)


@pytest.mark.catches("large-graphs-drown-small-ones")
def test_what_a_launch_costs_at_all_is_found_beside_a_graph_that_is_a_thousand_times_longer() -> (
    None
):
    rng = np.random.default_rng(7)
    for _ in range(20):
        base, _ = line(NODES, noisy(rng, 2.5, 1.3))
        assert base == pytest.approx(2.5, rel=0.25)  # 3% of 3.8 µs, at one node, and a little more


@pytest.mark.catches("large-graphs-drown-small-ones")
def test_no_other_line_has_smaller_relative_misses() -> None:
    rng = np.random.default_rng(8)
    for _ in range(30):
        times = noisy(rng, rng.uniform(1, 20), rng.uniform(0.01, 2), 0.2)
        assert line(NODES, times) == pytest.approx(best_line(list(NODES), times), rel=1e-6)


def test_a_line_may_fall_and_may_begin_below_zero() -> None:
    """What counts cannot do, a line may: it is the best one, and not one that was put right."""
    rng = np.random.default_rng(17)
    for _ in range(10):
        times = sorted(rng.uniform(5, 50, 6).tolist(), reverse=True)
        assert line(NODES, times) == pytest.approx(best_line(NODES, times), rel=1e-6)
    assert line((1, 10, 100), (0.5, 10.0, 190.0))[0] < 0
    # 10 and 100 nodes say 2 µs a node and -10 µs at all, so -8 µs for one node
    missed = held_out_percent((1, 10, 100), (5.0, 10.0, 190.0))[0]
    assert missed == pytest.approx(100 * (-8 / 5 - 1))


@pytest.mark.catches("no-time-divides")
@pytest.mark.parametrize("least_us", [0.0, LEAST_US / 100])
def test_a_time_that_no_clock_sees_is_no_division_by_zero(least_us: float) -> None:
    """It counts as LEAST_US there, so the line goes through it as closely as it can."""
    base, slope = line((1, 2, 3), (least_us, 4.0, 7.0))
    divisors = (LEAST_US, 4.0, 7.0)
    rows = np.array([[1, n] for n in (1, 2, 3)]) / np.array(divisors)[:, None]
    wanted = np.linalg.lstsq(rows, np.array([least_us / LEAST_US, 1.0, 1.0]), rcond=None)[0]
    assert [base, slope] == pytest.approx(wanted.tolist(), rel=1e-4, abs=1e-4)


def test_times_below_the_least_all_divide_alike() -> None:
    """So the best line through them is the plain one, whatever they are; 0 is not the only one."""
    counts, times = (1, 2, 3, 5), (0.01 * LEAST_US, 0.8 * LEAST_US, 0.0, 0.2 * LEAST_US)
    slope, base = np.polyfit(counts, times, 1)
    assert line(counts, times) == pytest.approx((base, slope), rel=1e-6)


@pytest.mark.catches("judged-where-it-was-fitted")
def test_a_point_is_judged_by_the_line_through_the_others() -> None:
    rng = np.random.default_rng(9)
    for _ in range(30):
        times = noisy(rng, rng.uniform(1, 20), rng.uniform(0.01, 2), 0.1)
        wanted = []
        for i in range(len(NODES)):
            others = [n for n in NODES if n != NODES[i]]
            base, slope = best_line(others, times[:i] + times[i + 1 :])
            wanted.append(100 * ((base + slope * NODES[i]) / times[i] - 1))
        assert held_out_percent(NODES, times) == pytest.approx(wanted, abs=1e-6)


def test_three_points_on_a_line_tell_each_other_and_two_tell_nothing() -> None:
    assert held_out_percent((1, 10, 100), [3.0, 12.0, 102.0]) == pytest.approx([0, 0, 0], abs=1e-9)
    for few in ((), (1,), (1, 10)):
        assert held_out_percent(few, [3.0, 12.0][: len(few)]) == []


def test_two_counts_measured_twice_each_tell_each_other() -> None:
    missed = held_out_percent((1, 1, 10, 10), [3.0, 3.0, 12.0, 24.0])
    assert missed == pytest.approx([0, 0, 100, -50], abs=1e-6)


@pytest.mark.catches("no-time-divides")
@pytest.mark.parametrize("least_us", [0.0, LEAST_US / 100])
def test_a_point_of_no_time_is_missed_by_a_percentage_of_the_least_one(least_us: float) -> None:
    missed = held_out_percent((1, 2, 3), (least_us, 4.0, 7.0))
    predicted = 1.0  # by the line through the others
    # (p / m - 1) and (p - m) / m are one formula until m is 0: here they are a thousandth apart.
    assert missed[0] == pytest.approx(100 * (predicted / LEAST_US - 1), rel=2e-3)


@pytest.mark.catches("judged-where-it-was-fitted")
def test_a_bend_at_the_end_shows_where_it_was_not_fitted() -> None:
    bent = [3.0, 12.0, 150.0]  # the last is half as long again as the others say
    assert held_out_percent((1, 10, 100), bent)[-1] == pytest.approx(100 * (102 / 150 - 1))
