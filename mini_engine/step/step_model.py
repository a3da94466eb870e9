"""ITL of one model on one device, for simulators that take many steps.

In:  a model, a device, an op list; then the mode and the shape of each step.
Out: what `step_cost.step_time` says of the step, in a fraction of the time; and for decode, a few
     straight lines that give the ITL for any contexts.

    costs = StepModel(named_shape("qwen3-0.6b"), load_spec("h200"))
    costs.itl_us("full", StepShape.decode(batch=8, context=1000))
    costs.lines("full", num_tokens=8, num_reqs=8)      # ((us, us for each key), ...)

Every layer launches the same work, so the ops of two layers are enough to know the work of all of
them. In decode, the time of attention grows with the number of keys in a straight line. The
recursion only adds to times and takes the later of two, so each of its times, too, is the highest
of a few lines: `lines` runs the recursion of `step_cost.run` on lines instead of numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, repeat
from operator import itemgetter

import numpy as np

from mini_engine.model.config import ModelConfig
from mini_engine.step.hardware import DeviceSpec
from mini_engine.step.oplists import StepShape, step_parts
from mini_engine.step.step_cost import (
    Mode,
    Work,
    around,
    graph_work,
    input_copy,
    itl_us,
    kernel_us,
    launched,
)
from mini_engine.step.stored import Stored, as_it_is

Line = tuple[float, float]  # us without keys, and us for each key that attention reads
# Where a line is read: at one key, since a copy of no keys is no kernel, and far from it.
PROBE_KEYS = (1, 1 << 20)


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
        self._lines: dict[tuple[Mode, int, int, int], tuple[Line, ...]] = {}

    def itl_us(self, mode: Mode, shape: StepShape) -> float:
        """What `step_time` says. Raises ValueError for an unknown mode."""
        if mode == "eager":
            return self._eager_us(shape)
        return itl_us(self._works(mode, shape), self.spec, shape.served)

    def _eager_us(self, shape: StepShape) -> float:
        """The recursion as one maximum: all is issued up to some op, and from there on the ops run
        back to back. A queue that is too short for the step delays the CPU too: then it is run."""
        spec, parts = self.spec, step_parts(self.config, shape, self.style, self.stored)
        head, layer, tail = (
            [kernel_us(op, spec) for op in ops] for ops in (parts.head, parts.layer, parts.tail)
        )
        gpu_us = [spec.kernel_floor_us, *head, *layer * parts.num_layers, *tail]
        if len(gpu_us) > spec.queue_depth:
            return itl_us(self._works("eager", shape), spec, shape.served)
        rest_us = np.array(gpu_us[::-1]).cumsum()[::-1]  # this op and all after it
        steps = np.arange(len(gpu_us))
        issued_us = spec.copy_us + spec.cpu_op_us * steps
        ends_us = issued_us + rest_us + spec.stream_gap_us * steps[::-1]
        before_us, beside_us = around(spec, shape.served)
        ready_us = max(float(ends_us.max()), float(issued_us[-1]) + beside_us)
        return before_us + ready_us + spec.sync_us

    def lines(
        self, mode: Mode, num_tokens: int, num_reqs: int, served: int | None = None
    ) -> tuple[Line, ...]:
        """A decode step for any contexts: ITL is the highest of us + us_per_key * kv_tokens.

        From the flattest to the steepest, and none that is nowhere the highest. `served`: the
        requests among num_reqs that are no padding; all where it is None.
        """
        asked = mode, num_tokens, num_reqs, num_reqs if served is None else served
        if asked not in self._lines:
            self._lines[asked] = self._run_on_lines(*asked)
        return self._lines[asked]

    def _run_on_lines(
        self, mode: Mode, num_tokens: int, num_reqs: int, served: int
    ) -> tuple[Line, ...]:
        """`step_cost.run` with every time as an upper envelope."""
        near, far = (
            self._works(mode, StepShape(num_tokens, num_reqs, keys, keys)) for keys in PROBE_KEYS
        )
        spec = self.spec
        before_us, beside_us = around(spec, served)
        cpu: tuple[Line, ...] = ((0.0, 0.0),)
        end: tuple[Line, ...] = ()  # the first work waits for none
        ends: list[tuple[Line, ...]] = []
        rooms = chain(repeat((), spec.queue_depth), ends)
        for work, probed, room in zip(near, far, rooms, strict=False):
            cpu = _later(upper_envelope([*cpu, *room]) if room else cpu, work.cpu_us)
            start = upper_envelope([*cpu, *_later(end, spec.stream_gap_us)])
            per_key = (probed.gpu_us - work.gpu_us) / (PROBE_KEYS[1] - PROBE_KEYS[0])
            end = _later(start, work.gpu_us - PROBE_KEYS[0] * per_key, per_key)
            ends.append(end)
        ready = upper_envelope([*end, *_later(cpu, beside_us)])
        return _later(ready, before_us + spec.sync_us)

    def _works(self, mode: Mode, shape: StepShape) -> list[Work]:
        """What `step_time` runs, with the first of two layers repeated."""
        spec, parts = self.spec, step_parts(self.config, shape, self.style, self.stored)
        if mode == "full":
            head, layer, tail = (
                [kernel_us(op, spec) for op in ops] for ops in (parts.head, parts.layer, parts.tail)
            )
            graph = graph_work([*head, *layer * parts.num_layers, *tail], spec)
            return [input_copy(spec), graph]
        two = launched([*parts.head, *parts.layer * 2, *parts.tail], spec, mode)
        begin = 1 if mode == "piecewise" else len(parts.head)  # the first graph holds the head
        period = (len(two) - begin - len(parts.tail)) // 2
        layers = two[begin : begin + period] * (parts.num_layers - 1)
        return [input_copy(spec), *two[:begin], *layers, *two[begin + period :]]


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


def _later(lines: tuple[Line, ...], us: float, per_key: float = 0.0) -> tuple[Line, ...]:
    return tuple((before + us, slope + per_key) for before, slope in lines)
