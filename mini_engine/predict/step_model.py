"""ITL of one model on one device in a few additions, for simulators that take many steps.

In:  a model, a device, an op list; then mode and shape of each step.
Out: what `step_cost.step_time` says of it, in microseconds instead of milliseconds.

    costs = StepModel(named_shape("qwen3-0.6b"), load_spec("h200"))
    costs.itl_us("full", StepShape.decode(batch=8, context=1000))
    costs.lines("full", num_tokens=8, num_reqs=8)      # decode: ((us, us for each key), ...)

Why it can be done. Going back from the end of a step, the GPU was busy without a wait until some
piece of work that had to be waited for: the CPU had just issued it. So a step is as long as the
longest of these *chains*, one for each work: the CPU's time up to its issue, then the GPU's time
to the end. Each chain is a line in the number of keys that attention reads. From one layer to the
next the chain of the same work grows evenly, so that the first or the last layer has the longest:
two layers are enough to know them all. Of the lines only those that can win are kept, a handful.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from mini_engine.model.config import ModelConfig
from mini_engine.predict.hardware import DeviceSpec
from mini_engine.predict.launch_model import graph_launch_us
from mini_engine.predict.oplists import StepParts, StepShape, step_ops, step_parts
from mini_engine.predict.step_cost import (
    Line,
    Mode,
    Work,
    input_copy,
    kernel_us,
    launched,
    step_time,
)

PROBE_KEYS = 1 << 20  # where the slope of a line is read; any number does, lines are straight


class StepModel:
    """Costs of steps of one model on one device. Remembers each num_tokens and num_reqs it saw."""

    def __init__(self, config: ModelConfig, spec: DeviceSpec, style: str = "fused9") -> None:
        self.config, self.spec, self.style = config, spec, style
        # numpy on a CPU has no queue: CPU and device take turns, so that all is one chain.
        self._turns = spec.queue_depth == 1
        self._gap_us = 0.0 if self._turns else spec.stream_gap_us
        self._bodies: dict[tuple[Mode, int], _Body] = {}
        self._tails: dict[tuple[Mode, int], _Tail] = {}
        self._queue_binds: dict[Mode, bool] = {}

    def itl_us(self, mode: Mode, shape: StepShape) -> float:
        """What `step_time` says, to rounding.

        The prefill of "hf56" is only near: its copies of the cache are scaled as attention is.
        """
        if self._queue_may_bind(mode):
            return step_time(step_ops(self.config, shape, self.style), self.spec, mode).itl_us
        body, tail = self._body(mode, shape.num_tokens), self._tail(mode, shape.num_reqs)
        keys = body.attention.keys(shape)
        us = max(us + per_key * keys for us, per_key in body.lines) + tail.gpu_us
        return max(us, body.issued_us + tail.longest_us) + self.spec.sync_us

    def lines(self, mode: Mode, num_tokens: int, num_reqs: int) -> tuple[Line, ...]:
        """A decode step for any contexts: ITL is the highest of us + us_per_key * kv_tokens.

        From the flattest to the steepest, and none that is nowhere the highest. A queue that fills
        (see `_queue_may_bind`) is left out.
        """
        body, tail = self._body(mode, num_tokens), self._tail(mode, num_reqs)
        sync_us = self.spec.sync_us
        lines = [(us + tail.gpu_us + sync_us, per_key) for us, per_key in body.lines]
        return winners([*lines, (body.issued_us + tail.longest_us + sync_us, 0.0)])

    def linear(self, mode: Mode, num_tokens: int, num_reqs: int) -> tuple[float, float, float]:
        """(cpu_us, gpu_us, gpu_us_per_kv_token): the same by its two outermost chains alone.

        The first begins after the last attention op, so the CPU was late up to there; the second
        before the first one, so it was early from there on. max(cpu_us, gpu_us + per_kv_token *
        kv_tokens) is never above the ITL, and below it by at most the time of one layer (the
        CPU's or the GPU's, whichever is more). A full graph has one chain: there it is exact.
        """
        body, tail = self._body(mode, num_tokens), self._tail(mode, num_reqs)
        cpu_us = max(body.flat_us + tail.gpu_us, body.issued_us + tail.longest_us)
        gpu_us, per_key = body.steep
        return cpu_us + self.spec.sync_us, gpu_us + tail.gpu_us + self.spec.sync_us, per_key

    # -- the part on num_tokens rows -------------------------------------------------------------

    def _body(self, mode: Mode, tokens: int) -> _Body:
        if (mode, tokens) not in self._bodies:
            full = mode == "full"
            body = self._one_graph(tokens) if full else self._many_works(mode, tokens)
            self._bodies[mode, tokens] = body
        return self._bodies[mode, tokens]

    def _many_works(self, mode: Mode, tokens: int) -> _Body:
        """Eager or piecewise: the chains of two layers, pulled apart to the depth of the model."""
        bare, probe = self._parts(tokens, 0), self._parts(tokens, PROBE_KEYS)
        one, two = (self._works(mode, bare, probe, layers) for layers in (1, 2))
        start_us = self.spec.host_step_us
        issued_us = start_us + sum(w.cpu_us for w, _ in one)
        chains = _chains(one, start_us, self._gap_us)
        if (more := self.config.num_layers - 2) >= 0:
            period = len(two) - len(one)
            cpu_us = sum(w.cpu_us for w, _ in two) + start_us - issued_us
            gpu_us = sum(w.gpu_us for w, _ in two) - sum(w.gpu_us for w, _ in one)
            gpu_us += period * self._gap_us
            per_key = sum(k for _, k in two) - sum(k for _, k in one)
            both = _chains(two, start_us, self._gap_us)
            first = [(us + more * gpu_us, k + more * per_key) for us, k in both[: len(one)]]
            last = [(us + more * cpu_us, k) for us, k in both[period:]]
            chains, issued_us = first + last, issued_us + (more + 1) * cpu_us
        attention = _Attention.of(bare, probe, self.spec)
        return _Body(
            lines=winners(chains),
            steep=max(chains, key=lambda line: (line[1], line[0])),
            flat_us=max(us for us, per_key in chains if per_key == 0),
            issued_us=issued_us,
            attention=attention,
        )

    def _one_graph(self, tokens: int) -> _Body:
        """Full: one chain, in which the launch or the copy of the inputs comes first."""
        spec, layers = self.spec, self.config.num_layers
        bare, probe = self._parts(tokens, 0), self._parts(tokens, PROBE_KEYS)
        nodes = len(bare.head) + layers * len(bare.layer)
        head_us = sum(kernel_us(op, spec) for op in bare.head)
        layer_us, probe_us = (sum(kernel_us(op, spec) for op in p.layer) for p in (bare, probe))
        graph_us = head_us + layers * layer_us + (nodes - 1) * spec.graph_gap_us
        per_key = layers * (probe_us - layer_us) / PROBE_KEYS
        launch = Work(graph_launch_us(nodes + len(bare.tail), spec), graph_us, 0.0, nodes)
        works = [(self._in_turn(w), 0.0) for w in (input_copy(spec), launch)]
        us = max(us for us, _ in _chains(works, spec.host_step_us, self._gap_us))
        issued_us = spec.host_step_us + spec.copy_us + launch.cpu_us
        attention = _Attention.of(bare, probe, spec)
        return _Body(((us, per_key),), (us, per_key), issued_us, issued_us, attention)

    def _works(
        self, mode: Mode, bare: StepParts, probe: StepParts, layers: int
    ) -> list[tuple[Work, float]]:
        """The works of head and layers, each with its time for each key."""
        spec = self.spec
        ops, probe_ops = ([*p.head, *p.layer * layers] for p in (bare, probe))
        works, probes = launched(ops, spec, mode), launched(probe_ops, spec, mode)
        slopes = [(p.gpu_us - w.gpu_us) / PROBE_KEYS for w, p in zip(works, probes, strict=True)]
        return [
            (self._in_turn(w), k)
            for w, k in zip([input_copy(spec), *works], [0.0, *slopes], strict=True)
        ]

    def _parts(self, tokens: int, keys: int) -> StepParts:
        return step_parts(self.config, StepShape(tokens, 1, keys, keys), self.style)

    # -- the part on num_reqs rows ---------------------------------------------------------------

    def _tail(self, mode: Mode, rows: int) -> _Tail:
        if (mode, rows) not in self._tails:
            spec = self.spec
            ops = step_parts(self.config, StepShape(1, rows, 1, 1), self.style).tail
            if mode == "full":  # more nodes of the graph that is running
                gpu_us = sum(kernel_us(op, spec) + spec.graph_gap_us for op in ops)
                self._tails[mode, rows] = _Tail(gpu_us, 0.0)
            else:
                works = [(self._in_turn(w), 0.0) for w in launched(ops, spec, mode)]
                gpu_us = sum(w.gpu_us + self._gap_us for w, _ in works)
                longest_us = max(us for us, _ in _chains(works, 0.0, self._gap_us))
                self._tails[mode, rows] = _Tail(gpu_us, longest_us)
        return self._tails[mode, rows]

    # -- the queue -------------------------------------------------------------------------------

    def _in_turn(self, work: Work) -> Work:
        """Where CPU and device take turns, issuing is a part of the work."""
        if not self._turns:
            return work
        gpu_us = work.gpu_us + max(work.cpu_us, self.spec.stream_gap_us)
        return work._replace(cpu_us=0.0, gpu_us=gpu_us)

    def _queue_may_bind(self, mode: Mode) -> bool:
        """Could a full queue leave the GPU without work later in the step?

        Not when the shortest time that a full queue lasts covers issuing all that is to come.
        """
        if mode not in self._queue_binds:
            spec = self.spec
            works = launched(step_ops(self.config, StepShape(1, 1, 1, 1), self.style), spec, mode)
            to_come = max(0, len(works) + 1 - spec.queue_depth) * max(w.cpu_us for w in works)
            lasts_us = (spec.queue_depth - 1) * (spec.kernel_floor_us + spec.stream_gap_us)
            self._queue_binds[mode] = not self._turns and to_come > lasts_us
        return self._queue_binds[mode]


# ---------------------------------------------------------------- parts


@dataclass(frozen=True, slots=True)
class _Body:
    """Head and layers of a step: chains to the end of the last layer."""

    lines: tuple[Line, ...]  # those that are the longest for some number of keys
    steep: Line  # the longest that begins before any attention
    flat_us: float  # the longest that begins after all attention
    issued_us: float  # when the CPU has issued it all
    attention: _Attention


@dataclass(frozen=True, slots=True)
class _Tail:
    gpu_us: float  # what it adds to a chain that has begun before it
    longest_us: float  # the longest chain that begins in it, from when its first issue begins


@dataclass(frozen=True, slots=True)
class _Attention:
    """GPU time of the attention op beside its floor, for a fixed num_tokens."""

    memory: Line  # us without keys, us for each key
    compute: Line  # us without (query, key) pairs, us for each pair
    bare_us: float = 0.0  # without either
    us_per_key: float = 1.0  # of the lines of the step: a key in decode is also a pair

    @classmethod
    def of(cls, bare: StepParts, probe: StepParts, spec: DeviceSpec) -> _Attention:
        """From a step with no key and one with PROBE_KEYS."""
        zero, many = (next(op for op in p.layer if op.splitting) for p in (bare, probe))
        memory, compute = 1 / (spec.copy_bandwidth_gb_s * 1e3), 1 / (spec.peak_tflops * 1e6)
        plain = cls(
            (zero.bytes * memory, (many.bytes - zero.bytes) / PROBE_KEYS * memory),
            (zero.flops * compute, (many.flops - zero.flops) / PROBE_KEYS * compute),
        )
        bare_us = plain.us(0, 0)
        per_key = (plain.us(PROBE_KEYS, PROBE_KEYS) - bare_us) / PROBE_KEYS
        return replace(plain, bare_us=bare_us, us_per_key=per_key)

    def us(self, keys: float, pairs: float) -> float:
        (memory_us, per_key), (compute_us, per_pair) = self.memory, self.compute
        return max(memory_us + per_key * keys, compute_us + per_pair * pairs)

    def keys(self, shape: StepShape) -> float:
        """How many keys of decode take as long: kv_tokens itself, unless arithmetic is slower."""
        return (self.us(shape.kv_tokens, shape.qk_pairs) - self.bare_us) / self.us_per_key


def _chains(works: Sequence[tuple[Work, float]], start_us: float, gap_us: float) -> list[Line]:
    """For each work: CPU time up to its issue, then GPU time to the end of the last work."""
    issued_us = start_us + sum(work.cpu_us for work, _ in works)
    gpu_us, per_key = -gap_us, 0.0
    chains = []
    for work, own_per_key in reversed(works):
        gpu_us += gap_us + work.gpu_us
        per_key += own_per_key
        chains.append((issued_us + gpu_us, per_key))
        issued_us -= work.cpu_us
    chains.reverse()
    return chains


def winners(lines: Iterable[Line]) -> tuple[Line, ...]:
    """The lines that are the highest somewhere at 0 or more keys: their upper envelope."""
    kept: list[Line] = []
    for us, slope in sorted(lines, key=lambda line: (line[1], line[0])):
        while kept and kept[-1][0] <= us:  # less steep, and lower from the start
            kept.pop()
        while len(kept) > 1 and _cross(kept[-2], (us, slope)) <= _cross(kept[-2], kept[-1]):
            kept.pop()
        kept.append((us, slope))
    return tuple(kept)


def _cross(flat: Line, steep: Line) -> float:
    """At how many keys the steeper line overtakes the flatter one."""
    return (flat[0] - steep[0]) / (steep[1] - flat[1])
