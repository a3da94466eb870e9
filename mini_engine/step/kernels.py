"""What one step of a decoder launches: lists of kernels, each with its bytes and flops.

    step_ops(named_shape("qwen3-0.6b"), StepShape.decode(1, 1024), "vllm")        # 373 kernels

A kernel is a group of primitive ops (`ops.py`). It reads each value that it has not made itself,
and writes each one that is needed after it, once: these are all the bytes there are. The styles are
groupings of one list; `styles.json` says for each kernel how the names of its ops begin, from
"hf56", where every op is a kernel, to "fused5", everything fused that can be. "vllm" is vLLM since
October 2025, and "fused9" is what this course's simulated engine launches, name for name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from mini_engine.files import read_object, typed
from mini_engine.model.config import ModelConfig
from mini_engine.step import ops
from mini_engine.step.ops import Kind, Op, Value
from mini_engine.step.storage import Stored, stored_as

PER = get_args(ops.Per)  # costs are counted once, or for each
# Who launches a kernel: the engine's model; a bare op of PyTorch, which no graph contains; or the
# library's call that has launched the kernel before it.
Launcher = Literal["engine", "torch", "library"]
LAUNCHERS: tuple[Launcher, ...] = get_args(Launcher)


class OpCost(NamedTuple):
    """One kernel. `splitting`: it stays out of piecewise graphs. Attention does, as its metadata
    changes every step, and all that works on num_reqs rows, as num_tokens chooses the graph."""

    name: str
    bytes: float
    flops: float
    splitting: bool = False
    kind: Kind = "other"
    by: Launcher = "engine"
    ranks: int = 1  # GPUs that the step runs on


@dataclass(frozen=True)
class StepShape:
    num_tokens: int  # rows of the hidden state
    num_reqs: int  # rows that get logits
    kv_tokens: int  # keys to read: context lengths, this step's tokens included, summed
    qk_pairs: int  # (query, key) pairs under the causal mask
    real_reqs: int | None = None  # of num_reqs, those that are no padding; None: all of them
    touched: float | None = None  # experts of a layer; None: what is expected of so many tokens

    @property
    def served(self) -> int:
        return self.num_reqs if self.real_reqs is None else self.real_reqs

    def sizes(self, config: ModelConfig) -> tuple[float, ...]:
        """How many there are of each of `PER`: a kernel's costs are a product with this vector.
        Padded rows are all alike, so that they touch the experts of one more token."""
        touched = self.touched or 0.0
        if config.experts and self.touched is None:
            padded = self.num_reqs - self.served
            touched = config.experts.touched(self.num_tokens - padded + (padded > 0))
        return 1, self.num_tokens, self.num_reqs, self.kv_tokens, self.qk_pairs, touched

    @classmethod
    def decode(cls, batch: int, context: int) -> StepShape:
        """`batch` requests, one token each; `context` counts that token. ValueError below 1."""
        if batch < 1 or context < 1:
            raise ValueError(f"batch {batch}, context {context}: both must be 1 or more")
        return cls(batch, batch, batch * context, batch * context)

    @classmethod
    def mixed(cls, query_lens: Sequence[int], context_lens: Sequence[int]) -> StepShape:
        """One entry a request: its tokens in this step, and its context with them included. Token
        i of q, from 1 on, attends to context - q + i keys. ValueError unless 1 <= q <= context."""
        for i, (q, context) in enumerate(zip(query_lens, context_lens, strict=True)):
            if not 1 <= q <= context:
                lengths = f"query_len {q}, context_len {context}"
                raise ValueError(f"request {i}: {lengths}; expected 1 <= query_len <= context_len")
        pairs = (q * c - q * (q - 1) // 2 for q, c in zip(query_lens, context_lens, strict=True))
        return cls(sum(query_lens), len(query_lens), sum(context_lens), sum(pairs))


Groups = dict[str, tuple[str, ...]]  # of each kernel: how the names of its ops begin


@dataclass(frozen=True)
class Style:
    """How one kind of engine cuts a step into kernels. None: every op is a kernel of its own. A
    kernel without ops passes once more over what the kernel before it wrote: it copies or casts it,
    or sums up the parts in which it was written. It is launched only where that one is."""

    source: str  # where the kernels were counted
    head: Groups | None = None
    layer: Groups | None = None
    tail: Groups | None = None
    norm_first: bool = False  # a layer's first norm runs in its own layer, not in the one before
    live: tuple[str, ...] = ()  # what piecewise graphs leave out beside attention
    outside: tuple[str, ...] = ()  # what no graph contains
    library: tuple[str, ...] = ()  # what the call that launched the kernel before it launches, too
    prepares: int = 0  # small kernels around the graph that prepare a step, outside of it
    split_k: int = 0  # a product of so many inputs is split, and a "reduce" sums up its parts


_FILE = Path(__file__).with_name("styles.json")
STYLES = {name: typed(Style, of, f"{_FILE}: {name}") for name, of in read_object(_FILE).items()}


@dataclass(frozen=True)
class Kernel:
    """A group of ops that one launch runs; `needed`: what is read after it, or kept."""

    name: str
    ops: tuple[Op, ...]
    needed: frozenset[Value]
    live: bool = False
    by: Launcher = "engine"

    @property
    def kind(self) -> Kind:
        kinds = {op.kind for op in self.ops}
        by_weight: tuple[Kind, ...] = ("all_reduce", "all_gather", "attention", "product")
        return next((kind for kind in by_weight if kind in kinds), "other")

    @property
    def splitting(self) -> bool:
        requests = any(op.per == "request" for op in self.ops)
        return self.live or self.by == "torch" or requests or self.kind == "attention"

    def bytes(self, c: ModelConfig, w: Stored) -> list[float]:
        """Coefficients over `PER`: what it reads and has not made, and what it makes for others."""
        made = {op.writes for op in self.ops}
        reads = {value for op in self.ops for value in op.reads}
        # a part is not read again beside the whole, and lies in the cache where its whole does
        moved = [v for v in reads - made if v.of is None or v.of not in reads | made]
        moved += made & self.needed
        total = [0.0] * len(PER)
        for value in moved:
            total[PER.index(value.per)] += held(value, c, w)
        for value in made:  # of the keys, those that this kernel has itself are not read back
            if value.of in reads:
                total[PER.index(value.per)] -= held(value, c, w)
        return total

    def flops(self) -> list[float]:
        return [sum(op.flops for op in self.ops if op.per == per) for per in PER]


def held(value: Value, c: ModelConfig, w: Stored) -> float:
    """Bytes of a weight, or of a value for each token, request or key."""
    widths = {"model": c.dtype_bytes, "fp32": 4, "int64": 8, "kv": w.kv_number}
    if value.dtype in widths:
        return value.numbers * widths[value.dtype]
    matrix: float = w.gate_up / 2 if value.dtype in ("gate", "up") else getattr(w, value.dtype)
    return matrix / c.experts.count if c.experts and value.per == "expert" else matrix


def grouped(
    listed: Sequence[Op], groups: Groups | None, kept: Iterable[str], by: Style
) -> tuple[Kernel, ...]:
    """Ops as kernels. What later ops of the list read is needed, and so is what is `kept` by name:
    what the next layer begins with, and the cache."""
    if groups is None:
        return tuple(Kernel(op.name, (op,), frozenset([op.writes])) for op in listed)
    kernels: list[Kernel] = []
    mine: tuple[Op, ...] = ()
    for name, starts in groups.items():
        if starts:
            mine = tuple(op for op in listed if op.name.startswith(starts))
        elif mine and not (name.endswith("reduce") and mine[-1].reads[0].numbers < by.split_k):
            parts = replace(mine[-1].writes, name=f"{mine[-1].writes.name}, in parts", of=None)
            mine = (Op("once more", mine[-1].writes, (parts,), per=mine[-1].per),)
        else:
            continue
        if not mine:
            continue
        others = {value for op in listed if op not in mine for value in op.reads}
        stays = {op.writes for op in mine if op.writes.name in kept or op.writes.dtype == "kv"}
        needed, stem = frozenset(others | stays), name.rstrip(".")
        whose: Launcher = "library" if stem in by.library else "engine"
        whose = "torch" if stem in by.outside else whose
        kernels.append(Kernel(stem, mine, needed, stem in by.live, whose))
    return tuple(kernels)


def kernels_of(c: ModelConfig, style: str) -> tuple[tuple[Kernel, ...], ...]:
    if style not in STYLES:
        raise ValueError(f"no op list {style!r}: use one of {', '.join(STYLES)}")
    by, whole = STYLES[style], STYLES[style].layer is None
    layer = by.layer
    if layer and not c.qk_norm:
        layer = {name.removeprefix("qk_norm_"): starts for name, starts in layer.items()}
    listed = ops.layer(c, norm_first=by.norm_first, copied_cache=whole)
    prepared = Op("prepare", Value("prepared", "request", 1, "int64"), (), per="request")
    prepare = Kernel("prepare", (prepared,), frozenset([prepared.writes]), by="torch")
    return (
        (prepare,) * by.prepares + grouped(ops.head(c), by.head, ("residual", "normed"), by),
        grouped(listed, layer, ("residual3", "normed3"), by),
        grouped(ops.tail(c, norm_first=by.norm_first), by.tail, (), by),
    )


class Costs(NamedTuple):
    """The different kernels of a step, those of head, layer and tail, column by column."""

    names: tuple[str, ...]
    splitting: tuple[bool, ...]
    kinds: tuple[Kind, ...]
    by: tuple[Launcher, ...]
    bytes: NDArray[np.float64]  # (kernels, len(PER))
    flops: NDArray[np.float64]
    ends: tuple[int, int]  # of head and of layer


@cache
def step_costs(config: ModelConfig, style: str, stored: Stored | None = None) -> Costs:
    stored, (head, layer, tail) = stored or stored_as(config), kernels_of(config, style)
    kernels = (*head, *layer, *tail)
    said = ((k.name, k.splitting, k.kind, k.by) for k in kernels)
    names, splitting, kinds, by = zip(*said, strict=True)
    moved = np.array([kernel.bytes(config, stored) for kernel in kernels])
    computed = np.array([kernel.flops() for kernel in kernels])
    return Costs(names, splitting, kinds, by, moved, computed, (len(head), len(head) + len(layer)))


class StepParts(NamedTuple):
    head: tuple[OpCost, ...]
    layer: tuple[OpCost, ...]
    num_layers: int
    tail: tuple[OpCost, ...]


def step_parts(
    config: ModelConfig, shape: StepShape, style: str, stored: Stored | None = None
) -> StepParts:
    """A step as models are built: `head`, the same `layer` again and again, and `tail`, which works
    on num_reqs rows and is all splitting ops. Raises ValueError for an unknown style."""
    costs = step_costs(config, style, stored)
    sizes = shape.sizes(config)
    moved, computed = ((m @ sizes).tolist() for m in (costs.bytes, costs.flops))
    ranks = [config.ranks] * len(moved)
    columns = costs.names, moved, computed, costs.splitting, costs.kinds, costs.by, ranks
    ops, (head, layer) = tuple(map(OpCost, *columns)), costs.ends
    return StepParts(ops[:head], ops[head:layer], config.num_layers, ops[layer:])


def step_ops(
    config: ModelConfig, shape: StepShape, style: str, stored: Stored | None = None
) -> list[OpCost]:
    """Every kernel of the step, in order. Raises ValueError for an unknown style."""
    parts = step_parts(config, shape, style, stored)
    return [*parts.head, *parts.layer * parts.num_layers, *parts.tail]
