"""The decode step taken apart: each kernel alone at its place, and the step without it.

In:  a `DecodeSetup`. Out: one `Link` for each kernel of the five-kernel step.

    alone      a graph with nothing but this kernel, once for each layer, on every layer's own
               weights: bytes a second, and what it takes beyond its bytes at the speed of a copy
               (its latency). No cache keeps the weights of a whole model; but keys and values of
               512 tokens (17 to 59 MB) may come from L2 where nothing runs between two attentions,
               and of attention "left out" says more.
    left out   the whole step minus the step without the kernel. Less than alone, where it hides
               behind its neighbours; more, where they wait for it.

Both are differences of laps in turns, AB BA, as in `timing.py`: alone against a step that launches
none of our kernels (the embedding is left), the whole step against the step without one. A graph
holds several steps: one embedding alone takes less time than the CPU needs to launch its graph, and
a difference of launches would say nothing. A kernel that reads what a left-out one should have
written finds random numbers there: its time does not depend on them, and zeros would cost less
power than numbers do. They are put there once, after the capture. In it they would be kernels
themselves, between the head and the product before it, where the real step has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mini_engine.bench.decode_setup import DecodeSetup
from mini_engine.bench.intervals import median_interval
from mini_engine.bench.our_variants import FusedGraph
from mini_engine.bench.timing import paired_laps
from mini_engine.cuda.graphs.backend import GraphBackend
from mini_engine.cuda.path import no_pdl
from mini_engine.records.rows import Interval, six
from mini_engine.step.oplists import OpCost, StepShape, step_parts

OURS = "launch_bound::"  # how the ops of `mini_engine/cuda/kernels` begin
PRODUCTS = ("norm_qkv_proj", "o_proj_add", "norm_gate_up_silu_mul", "down_proj_add")
ATTENTION, HEAD, PICK = "rope_kv_write_attention", "norm_lm_head", "argmax"
KERNELS = (PRODUCTS[0], ATTENTION, *PRODUCTS[1:], HEAD, PICK)  # names of the op list "fused5"
STEPS_A_CALL = 8


@dataclass(frozen=True)
class Link:
    """One kernel of the chain. Times in µs for one launch of it, with 95% intervals."""

    kernel: str
    launches: int  # a step
    bytes: float  # that one launch must move
    alone: Interval
    left_out: Interval
    gb_s: float  # alone; 0: its time is lost in the noise
    latency_us: float  # alone, beyond its bytes at the speed of a copy

    def as_json(self) -> dict[str, Any]:
        whole = {**asdict(self), "alone": self.alone.as_dict(), "left_out": self.left_out.as_dict()}
        return {name: six(v) if isinstance(v, float) else v for name, v in whole.items()}


class Kept(TorchDispatchMode):
    """`with Kept(names, down):` only the kernels of these names run. Whatever the step allocates
    holds random numbers, or zeros where they are indices: at once, or after a
    capture, from `put_numbers` on all that was `made` in it."""

    def __init__(
        self,
        names: frozenset[str],
        down: frozenset[int],
        capturing: Callable[[], bool] = lambda: False,
    ) -> None:
        """`down`: the addresses of the weights of down, whose op is the same as O's."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.names, self.down, self.capturing = names, down, capturing
        self.made: list[Tensor] = []  # in the graph's memory: while they are held, it is theirs

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        if func.name().startswith(OURS) and self.name_of(func.name(), args) not in self.names:
            return None
        out = func(*args, **(kwargs or {}))
        if "new_empty" in func.name():
            if self.capturing():
                self.made.append(out)
            else:
                put_numbers(out)
        return out

    def name_of(self, op: str, args: Any) -> str:
        """The kernel's name in the op list "fused5"."""
        word = op.removeprefix(OURS).partition(".")[0]
        if word == "linear_add":
            return PRODUCTS[3] if args[2].data_ptr() in self.down else PRODUCTS[1]
        return NAMES.get(word, word)


def put_numbers(tensor: Tensor) -> None:
    """Random ones, or zeros where they are indices: a token, a row."""
    tensor.normal_() if tensor.is_floating_point() else tensor.zero_()


NAMES = {"norm_linear": PRODUCTS[0], "pick_and_advance": PICK}  # others: by their own


class ChainGraph(FusedGraph):
    """`FusedGraph` with some of its kernels."""

    def __init__(
        self, setup: DecodeSetup, names: frozenset[str], pdl: bool, steps_a_call: int = STEPS_A_CALL
    ) -> None:
        super().__init__(setup, 5, pdl, steps_a_call)
        downs = [layer.down for layer in self.model.weights.layers]
        down = frozenset(matrix.data_ptr() for matrix in downs if isinstance(matrix, Tensor))
        self.kept = Kept(names, down, setup.backend.is_current_stream_capturing)

    def prepare(self) -> None:
        super().prepare()
        for tensor in self.kept.made:
            put_numbers(tensor)

    def release(self) -> None:
        self.kept.made.clear()
        super().release()

    def _forward(self, rung: int) -> Tensor:
        with self.kept:
            return super()._forward(rung)


def kernels_of(setup: DecodeSetup) -> Mapping[str, tuple[OpCost, int]]:
    """Each kernel of the step and how often a step launches it, in order."""
    parts = step_parts(setup.model.config, StepShape.decode(setup.batch, setup.context), "fused5")
    layers = {op.name: (op, parts.num_layers) for op in parts.layer}
    return layers | {op.name: (op, 1) for op in parts.tail}


def chain(
    backend: GraphBackend,
    setup: DecodeSetup,
    copy_gb_s: float,
    names: Sequence[str],
    *,
    steps: int = 32,
    rounds: int = 6,
) -> Iterator[Link]:
    """A link for each of these kernels, as soon as it is known. With PDL where the card has it."""
    if not names:
        return
    a_call = min(steps, STEPS_A_CALL)
    kernels, pdl = kernels_of(setup), no_pdl(backend) is None
    everything = frozenset(kernels)
    with torch.no_grad():
        whole = _made(setup, everything, pdl, a_call)
        nothing = _made(setup, frozenset(), pdl, a_call)
        for kernel in names:
            (op, launches), found = kernels[kernel], []
            for kept, other in ((frozenset({kernel}), nothing), (everything - {kernel}, whole)):
                graph = _made(setup, kept, pdl, a_call)
                more, less = (graph, other) if other is nothing else (other, graph)
                laps = paired_laps(backend, more, less, steps=steps, rounds=rounds)
                pairs = zip(*laps, strict=True)
                differ = [(m.event_us - l.event_us) / launches for m, l in pairs]
                found.append(median_interval(differ).rounded())
                graph.release()
            yield _link(op, launches, found[0], found[1], copy_gb_s)
        whole.release()
        nothing.release()


def _made(setup: DecodeSetup, names: frozenset[str], pdl: bool, steps_a_call: int) -> ChainGraph:
    graph = ChainGraph(setup, names, pdl, steps_a_call)
    graph.prepare()
    return graph


def _link(op: OpCost, launches: int, alone: Interval, left_out: Interval, copy_gb_s: float) -> Link:
    """No rate where the noise of the laps was larger than the kernel."""
    rate = op.bytes / alone.median / 1e3 if alone.low > 0 else 0.0
    latency_us = alone.median - op.bytes / copy_gb_s / 1e3
    return Link(op.name, launches, op.bytes, alone, left_out, rate, latency_us)
