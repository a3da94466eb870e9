"""What your stopwatch, order, intervals and line say of a GPU that is played: its truth is known.

Its clock is a number of µs that this file advances: nothing is timed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np

from labs.lab14_measure_itl.processes import pooled_interval, pooled_ratio
from mini_engine.bench.intervals import held_out_percent, line, median_interval
from mini_engine.bench.timing import balanced_order, lap, paired_laps

WAKE_US = 12.0
TRUTH = 100.0


class Played:
    """A CPU that issues and a device that gets to it later, in the place of a backend."""

    cpu_us = device_us = 0.0

    def perf_counter(self) -> float:
        return self.cpu_us * 1e-6

    def queue(self, issue_us: float, work_us: float) -> None:
        self.cpu_us += issue_us
        self.device_us = max(self.cpu_us, self.device_us) + work_us

    def synchronize(self) -> None:
        self.wait_until(self.device_us)

    def wait_until(self, done_us: float) -> None:
        """The way back from the device takes a while."""
        if done_us > self.cpu_us:
            self.cpu_us = done_us + WAKE_US

    def Event(self, enable_timing: bool = False) -> Stamp:  # noqa: ARG002, N802 (torch's name)
        return Stamp(self)


@dataclass
class Stamp:
    """An event: when the device got to it."""

    played: Played
    at_us: float = 0.0

    def record(self) -> None:
        self.at_us = max(self.played.cpu_us, self.played.device_us)

    def synchronize(self) -> None:
        self.played.wait_until(self.at_us)

    def elapsed_time(self, end: Stamp) -> float:
        return (end.at_us - self.at_us) / 1e3


@dataclass
class Steps:
    """Decode steps of `work_us`. Each lap of anybody is 0.2% slower than the last."""

    played: Played
    work_us: float
    laps: list[int]
    steps_a_call: int = 1

    def rewind(self) -> None:
        self.laps.append(1)
        self.played.queue(3, 500)

    def step(self) -> None:
        work_us = self.work_us * self.steps_a_call * (1 + 0.002 * len(self.laps))
        self.played.queue(20, work_us)


def main() -> None:
    played = Played()
    backend: Any = played
    with mock.patch.object(time, "perf_counter", played.perf_counter):
        for work_us, a_call in ((5.0, 1), (100.0, 1), (100.0, 8)):
            one = lap(backend, Steps(played, work_us, [], a_call), 20)
            print(
                f"steps of {work_us:3.0f} µs, {a_call} a call, issued in 20 µs: "
                f"events {one.event_us:.2f} µs, wall {one.wall_us:.2f} µs"
            )
        laps: list[int] = []
        equal = [Steps(played, 100.0, laps) for _ in range(2)]
        ones, others = paired_laps(backend, *equal, steps=16, rounds=8)
    print(f"order: {''.join(balanced_order('A', 'B', 8))}")
    times = [[found.wall_us for found in each] for each in (ones, others)]
    null = pooled_ratio([times[0]], [times[1]])
    print(f"a device that gets hot, two equal variants: {null.median - 1:+.3%}\n")
    rng = np.random.default_rng(16)
    held = dict.fromkeys(("laps of one process, median", "three processes, mean"), 0)
    for _ in range(200):
        groups = (TRUTH + rng.normal(0, 1, (3, 1)) + rng.normal(0, 1, (3, 15))).tolist()
        alone = (TRUTH + rng.normal(0, 1, 15)).tolist()
        for name, found in zip(
            held, (median_interval(alone), pooled_interval(groups)), strict=True
        ):
            held[name] += found.low <= TRUTH <= found.high
    for name, often in held.items():
        print(f"{name}: the 95% interval holds the truth {often} times of 200")
    ratio = pooled_ratio([[10, 12, 11]] * 3, [[20, 24, 23], [21, 25, 22], [20, 25, 23]])
    print(f"about twice as long: {ratio.median:.3f} ({ratio.low:.3f} to {ratio.high:.3f})\n")
    counts, times_us = (1, 16, 64, 256, 1024), (2.6, 2.8, 3.1, 3.9, 9.9)
    base, slope = line(counts, times_us)
    print(f"line: {base:.3f} µs, and {slope * 1e3:.3f} ns a node")
    missed = ", ".join(f"{off:.1f}%" for off in held_out_percent(counts, times_us))
    print(f"left out, the points are missed by {missed or 'nothing'}")


if __name__ == "__main__":
    main()
