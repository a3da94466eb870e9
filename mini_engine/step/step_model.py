"""Steps of one model on one device, for those who ask for many of them.

In:  a model, a device, a list of kernels; then the mode and the shapes of steps.
Out: what `step_cost.step_time` says of each. A kernel's costs are affine in how much the step
     computes, so the kernels' bytes are one matrix, and thousands of steps are one product.

    costs = StepModel(named_shape("qwen3-0.6b"), load_spec("h200"))
    costs.itl_us("full", StepShape.decode(batch=8, context=1000))
    costs.itls_us("full", sizes, served)               # (n, 5) sizes, as in `StepShape.sizes`
    costs.lines("full", num_tokens=8, num_reqs=8)      # ((us, us for each key), ...)

Every layer launches the same work, so the layers are a power of one `Run`. Runs only add times and
take the later of two. So a step's time is the highest of a few sums of its kernels' times, and
which sums these are depends on the mode alone (`Sums`): they are found once, by running the step on
kernels whose times are unknown. In decode, the time of attention grows with the number of keys in a
straight line, and so the step's time is the highest of a few lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from mini_engine.model.config import ModelConfig
from mini_engine.step.hardware import DeviceSpec
from mini_engine.step.oplists import StepShape, part_costs
from mini_engine.step.step_cost import (
    Mode,
    Run,
    StepTime,
    Us,
    Work,
    around,
    gb_s_of,
    graph_of,
    input_copy,
    joined,
    run_of,
    step_us,
    works_of,
)
from mini_engine.step.storage import Stored, as_it_is

Line = tuple[float, float]  # us without keys, and us for each key that attention reads
# Where a line is read: at one key, since a copy of no keys is no kernel, and far from it.
PROBE_KEYS = (1, 1 << 20)
ALONE = 200  # steps of a model that are computed one by one before their sums are found


class StepModel:
    """Costs of the steps of one model on one device. Remembers the lines that it was asked for."""

    def __init__(
        self,
        config: ModelConfig,
        spec: DeviceSpec,
        style: str | None = None,
        stored: Stored | None = None,
    ) -> None:
        """`style`: the op list, the engine's own where none is given. `stored`: as it is."""
        self.config, self.spec, self.style = config, spec, style or spec.ops
        self.stored = stored or as_it_is(config)
        self._parts = part_costs(config, self.style, self.stored)
        gb_s = np.array([gb_s_of(kind, spec) for part in self._parts for kind in part.kinds])
        # µs for each of `oplists.PER`: (2 * kernels, 5), as 1 GB/s is 1e3 bytes a µs
        memory_us = np.vstack([part.bytes for part in self._parts]) / (gb_s[:, None] * 1e3)
        compute_us = np.vstack([p.flops for p in self._parts]) / (spec.product_tflops * 1e6)
        self._rates_us = np.vstack([memory_us, compute_us])  # first all memory, then all compute
        self._alone = 0  # steps that were asked for one by one
        self._sums: dict[Mode, tuple[Sums, Sums]] = {}
        self._lines: dict[tuple[Mode, int, int, int], tuple[Line, ...]] = {}

    def itl_us(self, mode: Mode, shape: StepShape) -> float:
        """What `step_time` says. Raises ValueError for an unknown mode."""
        times_us = self._times_us(np.array(shape.sizes))
        if mode not in self._sums and self._alone < ALONE:
            self._alone += 1  # one step by itself: its run is found sooner than the sums
            run = self._run(mode, self._in_parts(times_us.tolist()))
            return float(step_us(run, self.spec, shape.served))
        return float(self._step_us(mode, times_us, shape.served))

    def itls_us(
        self, mode: Mode, sizes: NDArray[np.float64], served: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Many steps at once: a row of `sizes` (`StepShape.sizes`) and the requests that are no
        padding, for each."""
        itls: NDArray[np.float64] = self._step_us(mode, self._times_us(sizes), served)
        return itls

    def steps(self, mode: Mode, shapes: Sequence[StepShape]) -> list[StepTime]:
        """What `step_time` says of each of these steps."""
        sizes = np.array([shape.sizes for shape in shapes], dtype=float)
        served = np.array([shape.served for shape in shapes], dtype=float)
        times = self._in_parts(list(self._times_us(sizes)))
        busy_us: Us = sum(times[0]) + self.config.num_layers * sum(times[1]) + sum(times[2])
        launches = self._launches(mode)
        issued_us = sum(work.cpu_us for work in launches)
        kernels = sum(work.kernels for work in launches)
        around_us: Us = sum(around(self.spec, served))
        itl_us = step_us(self._run(mode, times), self.spec, served)
        cpu_us = around_us + issued_us
        rows = zip(itl_us, cpu_us, busy_us + self.spec.kernel_floor_us, strict=True)
        return [
            StepTime(float(itl), float(cpu), float(busy), len(launches), kernels)
            for itl, cpu, busy in rows
        ]

    def launch_bound(self, shape: StepShape) -> bool:
        """Launched eagerly, does the CPU take longer to issue the kernels than the GPU takes to
        run them, gaps included?"""
        head, layer, tail = self._in_parts(self._times_us(np.array(shape.sizes)).tolist())
        layers, spec = self.config.num_layers, self.spec
        kernels = len(head) + layers * len(layer) + len(tail)
        gpu_us: float = sum(head) + layers * sum(layer) + sum(tail)
        return gpu_us + kernels * spec.stream_gap_us < kernels * spec.cpu_op_us

    def lines(
        self, mode: Mode, num_tokens: int, num_reqs: int, served: int | None = None
    ) -> tuple[Line, ...]:
        """A decode step for any contexts: ITL is the highest of us + us_per_key * kv_tokens.

        From the flattest to the steepest, and none that is nowhere the highest. `served`: the
        requests among num_reqs that are no padding; all where it is None.
        """
        asked = mode, num_tokens, num_reqs, num_reqs if served is None else served
        if asked not in self._lines:
            sizes = [StepShape(num_tokens, num_reqs, keys, keys).sizes for keys in PROBE_KEYS]
            near, far = self._times_us(np.array(sizes, dtype=float)).T
            per_key = (far - near) / (PROBE_KEYS[1] - PROBE_KEYS[0])
            both, issue = self._sums_of(mode)
            before_us, beside_us = around(self.spec, asked[3])
            us = before_us + self.spec.sync_us
            lines = both.lines(near - PROBE_KEYS[0] * per_key, per_key, us)
            lines += issue.lines(near - PROBE_KEYS[0] * per_key, per_key, us + beside_us)
            self._lines[asked] = upper_envelope(lines)
        return self._lines[asked]

    # ------------------------------------------------------------ parts

    def _times_us(self, sizes: NDArray[np.float64]) -> NDArray[np.float64]:
        """`step_cost.kernel_us` of each kernel of head, layer and tail: (kernels, steps)."""
        us, kernels = self._rates_us @ sizes.T, len(self._rates_us) // 2
        slower_us = np.maximum(us[:kernels], us[kernels:])
        times: NDArray[np.float64] = slower_us + self.spec.kernel_floor_us * (slower_us > 0)
        return times

    def _step_us(self, mode: Mode, times_us: NDArray[np.float64], served: Us) -> Us:
        """`step_cost.step_us`, from the times of the kernels: (kernels,) or (kernels, steps)."""
        both, issue = self._sums_of(mode)
        before_us, beside_us = around(self.spec, served)
        ready_us = np.maximum(both.at(times_us), issue.at(times_us) + beside_us)
        return before_us + ready_us + self.spec.sync_us

    def _sums_of(self, mode: Mode) -> tuple[Sums, Sums]:
        """When the GPU has ended a step's work, and when the CPU has issued it."""
        if mode not in self._sums:
            kernels = len(self._rates_us) // 2
            unknown = [Sums(row[None]) for row in np.eye(1 + kernels)[1:]]
            run = self._run(mode, self._in_parts(unknown))
            self._sums[mode] = unknown[0].also(run.both), unknown[0].also(run.issue)
        return self._sums[mode]

    def _in_parts(self, times: list[Us]) -> list[list[Us]]:
        """Of all kernels: those of head, layer and tail."""
        head, layer, _ = (len(part.names) for part in self._parts)
        return [times[:head], times[head : head + layer], times[head + layer :]]

    def _run(self, mode: Mode, times_us: Sequence[Sequence[Us]]) -> Run:
        """A whole step, from the GPU times of the kernels of head, layer and tail."""
        spec, layers = self.spec, self.config.num_layers
        before, turned, after = self._turned(mode, times_us)
        begin = joined(work.alone(spec) for work in (input_copy(spec), *before))
        if layers > 1 and turned:
            begin = begin.then(joined(work.alone(spec) for work in turned).times(layers - 1))
        return begin.then(run_of(after, spec))

    def _launches(self, mode: Mode) -> list[Work]:
        """The works of a step, without their times on the GPU."""
        nothing = [[0.0] * len(part.names) for part in self._parts]
        before, turned, after = self._turned(mode, nothing)
        return [input_copy(self.spec), *before, *turned * (self.config.num_layers - 1), *after]

    def _turned(self, mode: Mode, times_us: Sequence[Sequence[Us]]) -> tuple[list[Work], ...]:
        """The works of a step in three: up to the first attention, from one attention to the next,
        and from the last one on. Cut there, a graph that spans two layers stays whole."""
        head, layer, tail = times_us
        cuts = [part.splitting for part in self._parts]
        if mode == "full":
            layers = self.config.num_layers
            nodes = len(head) + len(layer) * layers + len(tail)
            return [], [], [graph_of(nodes, sum(head) + layers * sum(layer) + sum(tail), self.spec)]
        at = cuts[1].index(True)

        def works(times: Sequence[Us], cut: Sequence[bool]) -> list[Work]:
            return list(works_of(times, cut, self.spec, mode))

        return (
            works([*head, *layer[:at]], [*cuts[0], *cuts[1][:at]]),
            works([*layer[at:], *layer[:at]], [*cuts[1][at:], *cuts[1][:at]]),
            works([*layer[at:], *tail], [*cuts[1][at:], *cuts[2]]),
        )


# ---------------------------------------------------------------- times that are sums


class Sums:
    """A time that is the highest of some sums of kernels' times, which are not known yet.

    `rows`: (sums, 1 + kernels), the constant of each sum and how often it counts each kernel.
    """

    def __init__(self, rows: NDArray[np.float64]) -> None:
        self.rows = np.unique(rows, axis=0)
        self._constant, self._counts = self.rows[:, 0].copy(), self.rows[:, 1:].copy()

    def at(self, times_us: NDArray[np.float64]) -> Us:
        """The time for kernels that take so long: (kernels,) or (kernels, steps)."""
        return ((self._counts @ times_us).T + self._constant).max(axis=-1)

    def lines(
        self, us: NDArray[np.float64], per_key: NDArray[np.float64], more_us: float
    ) -> list[Line]:
        """Each sum as a line, for kernels that take us + per_key * keys; and `more_us`."""
        start_us = self._counts @ us + self._constant + more_us
        return list(zip(start_us.tolist(), (self._counts @ per_key).tolist(), strict=True))

    def also(self, time: Sums | float) -> Sums:
        """A time as sums over the same kernels: a number is one without any."""
        return time if isinstance(time, Sums) else Sums(time * np.eye(1, self.rows.shape[1]))

    def __add__(self, other: Sums | float) -> Sums:
        """Of two such times: every sum of the one and every sum of the other."""
        rows = self.rows[:, None] + self.also(other).rows
        return Sums(rows.reshape(-1, self.rows.shape[1]))

    __radd__ = __add__

    def __rmul__(self, n: float) -> Sums:
        return Sums(n * self.rows)

    @staticmethod
    def later(a: Sums | float, b: Sums | float) -> Sums:
        one = a if isinstance(a, Sums) else b
        assert isinstance(one, Sums)
        return Sums(np.vstack([one.also(a).rows, one.also(b).rows]))


def upper_envelope(lines: Iterable[Line]) -> tuple[Line, ...]:
    """The lines that are the highest somewhere at 0 or more keys, from the flattest on."""
    kept: list[Line] = []
    for us, slope in sorted(lines, key=itemgetter(1, 0)):
        while kept and kept[-1][0] <= us:  # less steep, and lower from the start
            kept.pop()
        while len(kept) > 1 and _cross(kept[-2], (us, slope)) <= _cross(kept[-2], kept[-1]):
            kept.pop()
        kept.append((us, slope))
    return tuple(kept)


def _cross(flat: Line, steep: Line) -> float:
    """At how many keys the steeper line overtakes the flatter one."""
    return (flat[0] - steep[0]) / (steep[1] - flat[1])
