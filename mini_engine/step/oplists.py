"""What one step of a dense decoder launches: lists of ops, each with its bytes and flops.

In:  a `ModelConfig`, the shape of the step (how many tokens, requests, keys), and a style.
Out: one `OpCost` for each kernel, in order of launch.

    step_ops(named_shape("qwen3-0.6b"), StepShape.decode(1, 1024), "fused9")      # 257 ops

The three styles are three ways in which engines do the same arithmetic:

    hf56     Hugging Face eager: 56 ops a layer for Qwen3, 40 without qk-norm; 1,591 a step
    fused9   an engine's usual kernels, those of the simulator name for name: 9 a layer
    fused5   everything fused that can be: 5 a layer, 143 a step

Bytes: each input is read once and each output written once, weights too, whatever the number of
tokens; index arrays and rotary tables are left out. Weights and cache take what `Stored` says, by
default as the model is. e is the bytes of an element, t the tokens, r the requests, h, i, v the
hidden, intermediate and vocabulary sizes, q and kv the columns of q and of k (or v).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from mini_engine.model.config import ModelConfig
from mini_engine.step.stored import Stored, as_it_is

Kind = Literal["product", "attention", "other"]  # kernels of a kind reach the same bandwidth


class OpCost(NamedTuple):  # ten thousand steps make a million of them
    """One kernel. `splitting`: it stays out of piecewise graphs and is launched live.

    Attention is, because its metadata changes every step; so is all that works on num_reqs rows,
    because a piecewise graph is chosen by num_tokens alone.
    """

    name: str
    bytes: float
    flops: float
    splitting: bool = False
    kind: Kind = "other"


@dataclass(frozen=True)
class StepShape:
    """How much one step computes."""

    num_tokens: int  # rows of the hidden state
    num_reqs: int  # rows that get logits
    kv_tokens: int  # keys to read: context lengths, this step's tokens included, summed
    qk_pairs: int  # (query, key) pairs under the causal mask
    real_reqs: int | None = None  # of num_reqs, those that are no padding; None: all of them

    @property
    def served(self) -> int:
        """Requests that the engine's CPU works for: it does nothing for a padded one."""
        return self.num_reqs if self.real_reqs is None else self.real_reqs

    @classmethod
    def decode(cls, batch: int, context: int) -> StepShape:
        """`batch` requests, one token each; `context` counts that token. ValueError below 1."""
        if batch < 1 or context < 1:
            raise ValueError(f"batch {batch}, context {context}: both must be 1 or more")
        return cls(batch, batch, batch * context, batch * context)

    @classmethod
    def mixed(cls, query_lens: Sequence[int], context_lens: Sequence[int]) -> StepShape:
        """One entry a request: its tokens in this step, and its context with them included.

        Token i of q, counted from 1, attends to context - q + i keys. Raises ValueError, naming
        the request, unless 1 <= query_len <= context_len.
        """
        if not query_lens or len(query_lens) != len(context_lens):
            raise ValueError(
                f"{len(query_lens)} query_lens and {len(context_lens)} context_lens: "
                "give one of each for every request, and one request at least"
            )
        for i, (q, context) in enumerate(zip(query_lens, context_lens, strict=True)):
            if not 1 <= q <= context:
                raise ValueError(
                    f"request {i}: query_len {q}, context_len {context}; "
                    "expected 1 <= query_len <= context_len (the context counts the query)"
                )
        pairs = (q * c - q * (q - 1) // 2 for q, c in zip(query_lens, context_lens, strict=True))
        return cls(sum(query_lens), len(query_lens), sum(context_lens), sum(pairs))


@dataclass(frozen=True)
class StepParts:
    """A step as models are built: `head`, the same `layer` again and again, `tail`.

    `head` and `layer` work on num_tokens rows, and only `layer` reads the KV cache. `tail` works
    on num_reqs rows and is all splitting ops. A layer's first norm is counted with the part before
    it, so that all layers are the same and the last one ends with the final norm.
    """

    head: tuple[OpCost, ...]
    layer: tuple[OpCost, ...]
    num_layers: int
    tail: tuple[OpCost, ...]


def step_parts(
    config: ModelConfig, shape: StepShape, style: str, stored: Stored | None = None
) -> StepParts:
    """The step in parts. Raises ValueError for an unknown style."""
    if style not in _STYLES:
        raise ValueError(f"no op list {style!r}: use one of {', '.join(_STYLES)}")
    return _STYLES[style](config, shape, stored or as_it_is(config))


def step_ops(
    config: ModelConfig, shape: StepShape, style: str, stored: Stored | None = None
) -> list[OpCost]:
    """Every kernel of the step, in order. Raises ValueError for an unknown style."""
    parts = step_parts(config, shape, style, stored)
    return [*parts.head, *parts.layer * parts.num_layers, *parts.tail]


# ---------------------------------------------------------------- fused9


def _fused9(c: ModelConfig, s: StepShape, w: Stored) -> StepParts:
    e, t, r, h, i, v = _sizes(c, s)
    q, kv, qkv = c.q_size, c.kv_size, c.q_size + 2 * c.kv_size
    per_head = 2 * c.head_dim if c.qk_norm else 0  # weights of the q and k norms
    norm = OpCost("rms_norm", (2 * t * h + h) * e, 4 * t * h)
    add_norm = OpCost("add_rms_norm", (4 * t * h + h) * e, 5 * t * h)
    rope = "qk_norm_rope_kv_write" if c.qk_norm else "rope_kv_write"
    rope_bytes = (t * (qkv + q) + per_head) * e + 2 * t * kv * w.kv_number
    keys_bytes = 2 * t * q * e + 2 * kv * s.kv_tokens * w.kv_number
    layer = (
        _linear("qkv_proj", t, h, qkv, e, w.qkv, bias=c.qkv_bias),
        OpCost(rope, rope_bytes, (10 if c.qk_norm else 6) * t * (q + kv)),
        OpCost("attention", keys_bytes, 4 * q * s.qk_pairs, True, "attention"),
        _linear("o_proj", t, q, h, e, w.o),
        add_norm,
        _linear("gate_up_proj", t, h, 2 * i, e, w.gate_up),
        OpCost("silu_mul", 3 * t * i * e, 5 * t * i),
        _linear("down_proj", t, i, h, e, w.down),
        add_norm,
    )
    tail = (
        OpCost("select_rows", 2 * r * h * e, 0, True),
        _linear("lm_head", r, h, v, e, w.head, splitting=True),
        OpCost("argmax", r * v * e, r * v, True),
    )
    return StepParts((_embed(t, h, e), norm), layer, c.num_layers, tail)


# ---------------------------------------------------------------- fused5

HEAD_TILE_ROWS = 32  # rows of the head that leave one (value, index) pair for the argmax


def _fused5(c: ModelConfig, s: StepShape, w: Stored) -> StepParts:
    """Norms are fused into the product after them and residuals into the one before; rotation, KV
    write and attention are one kernel; the head writes only the best token of each tile."""
    e, t, r, h, i, v = _sizes(c, s)
    q, kv, qkv = c.q_size, c.kv_size, c.q_size + 2 * c.kv_size
    per_head = 2 * c.head_dim if c.qk_norm else 0
    rotate = (10 if c.qk_norm else 6) * t * (q + kv)
    attention_bytes = (2 * t * q + per_head) * e + 2 * kv * (s.kv_tokens + t) * w.kv_number
    attention_flops = rotate + 4 * q * s.qk_pairs
    tiles = r * -(-v // HEAD_TILE_ROWS) * 8  # float32 value and int32 index
    head_bytes, head_flops = (r * h + h) * e + w.head + tiles, 4 * r * h + 2 * r * h * v
    layer = (
        _add(_linear("norm_qkv_proj", t, h, qkv, e, w.qkv, bias=c.qkv_bias), h * e, 4 * t * h),
        OpCost("rope_kv_write_attention", attention_bytes, attention_flops, True, "attention"),
        _add(_linear("o_proj_add", t, q, h, e, w.o), t * h * e, t * h),
        OpCost(
            "norm_gate_up_silu_mul",
            (t * h + h + t * i) * e + w.gate_up,
            4 * t * h + 4 * t * h * i + 5 * t * i,
            kind="product",
        ),
        _add(_linear("down_proj_add", t, i, h, e, w.down), t * h * e, t * h),
    )
    tail = (
        OpCost("norm_lm_head", head_bytes, head_flops, True, "product"),
        OpCost("argmax", tiles, tiles / 8, True),
    )
    return StepParts((_embed(t, h, e),), layer, c.num_layers, tail)


# ---------------------------------------------------------------- hf56


def _hf56(c: ModelConfig, s: StepShape, w: Stored) -> StepParts:
    """transformers 5.23, sdpa, `DynamicCache`, a bf16 model: what torch dispatches, without views.

    Each op is named place.op; tests/step/test_oplists.py counts them on the installed version.
    What `generate` does between two steps is not here but in the host's share of a step.
    """
    e, t, r, h, i, v = _sizes(c, s)
    q, kv = c.q_size, c.kv_size
    q_norm = _hf_norm("q_norm", t * c.num_heads, c.head_dim, e) if c.qk_norm else ()
    k_norm = _hf_norm("k_norm", t * c.num_kv_heads, c.head_dim, e) if c.qk_norm else ()
    cache = 2 * kv * s.kv_tokens * w.kv_number  # the whole cache is copied to append to it
    layer = (
        _linear("q_proj.linear", t, h, q, e, w.q, bias=c.qkv_bias),
        *q_norm,
        _linear("k_proj.linear", t, h, kv, e, w.k, bias=c.qkv_bias),
        *k_norm,
        _linear("v_proj.linear", t, h, kv, e, w.v, bias=c.qkv_bias),
        *_hf_rotate("q", t * q, e),
        *_hf_rotate("k", t * kv, e),
        OpCost("key_cache.cat", cache, 0),
        OpCost("value_cache.cat", cache, 0),
        OpCost("attention.sdpa", 2 * t * q * e + cache, 4 * q * s.qk_pairs, True, "attention"),
        _linear("o_proj.linear", t, q, h, e, w.o),
        OpCost("attention_residual.add", 3 * t * h * e, t * h),
        *_hf_norm("post_attention_norm", t, h, e),
        _linear("gate_proj.linear", t, h, i, e, w.gate_up / 2),
        OpCost("gate.silu", 2 * t * i * e, 4 * t * i),
        _linear("up_proj.linear", t, h, i, e, w.gate_up / 2),
        OpCost("gate_up.mul", 3 * t * i * e, t * i),
        _linear("down_proj.linear", t, i, h, e, w.down),
        OpCost("mlp_residual.add", 3 * t * h * e, t * h),
        *_hf_norm("next_norm", t, h, e),
    )
    head = (_embed(t, h, e, "embed.embedding"), *_hf_rotary(t, c.head_dim, e))
    tail = (
        _linear("lm_head.linear", r, h, v, e, w.head, splitting=True),
        OpCost("sample.argmax", r * v * e, r * v, True),
    )
    return StepParts((*head, *_hf_norm("first_norm", t, h, e)), layer, c.num_layers, tail)


def _hf_norm(place: str, rows: int, width: int, e: int) -> tuple[OpCost, ...]:
    """RMSNorm of (rows, width), in float32 between two casts: eight ops."""
    n = rows * width
    return (
        OpCost(f"{place}.to", n * (e + 4), n),
        OpCost(f"{place}.pow", 8 * n, n),
        OpCost(f"{place}.mean", 4 * n + 4 * rows, n),
        OpCost(f"{place}.add", 8 * rows, rows),
        OpCost(f"{place}.rsqrt", 8 * rows, rows),
        OpCost(f"{place}.mul", 8 * n + 4 * rows, n),
        OpCost(f"{place}.to", n * (4 + e), n),
        OpCost(f"{place}.mul", (2 * n + width) * e, n),
    )


def _hf_rotate(place: str, n: int, e: int) -> tuple[OpCost, ...]:
    """x * cos + rotate_half(x) * sin over n elements, out of place: five ops."""
    costs = (("mul", 2, n), ("neg", 1, n // 2), ("cat", 2, 0), ("mul", 2, n), ("add", 3, n))
    return tuple(OpCost(f"rope_{place}.{op}", k * n * e, flops) for op, k, flops in costs)


def _hf_rotary(t: int, head_dim: int, e: int) -> tuple[OpCost, ...]:
    """Positions, and cos and sin of every pair, computed anew each step: twelve ops.

    One of them casts the frequencies back from bf16; loaded as float32, they need no cast.
    """
    half, table = head_dim // 2, t * head_dim
    costs = (
        ("arange", 8 * t), ("add", 16 * t), ("to", 12 * t), ("to", half * (e + 4)),
        ("mul", 4 * (t + half + t * half)), ("cat", 8 * table), ("cos", 8 * table),
        ("mul", 8 * table), ("sin", 8 * table), ("mul", 8 * table), ("to", table * (4 + e)),
        ("to", table * (4 + e)),
    )  # fmt: skip
    return tuple(OpCost(f"rotary.{op}", moved, 0) for op, moved in costs)


# ---------------------------------------------------------------- shared


def _sizes(c: ModelConfig, s: StepShape) -> tuple[int, int, int, int, int, int]:
    """e, T, R, H, I, V."""
    e, i = c.dtype_bytes, c.intermediate_size
    return e, s.num_tokens, s.num_reqs, c.hidden_size, i, c.vocab_size


def _embed(t: int, h: int, e: int, name: str = "embed") -> OpCost:
    return OpCost(name, 2 * t * h * e, 0)


def _linear(
    name: str, rows: int, k: int, n: int, e: int, weight: float, *, bias: bool = False,
    splitting: bool = False,
) -> OpCost:  # fmt: skip
    """(rows, k) times (k, n) weights, which take `weight` bytes."""
    moved = rows * k + rows * n + (n if bias else 0)
    return OpCost(name, moved * e + weight, 2 * rows * k * n, splitting, "product")


def _add(op: OpCost, bytes: float, flops: float) -> OpCost:
    """`op` with something fused into it."""
    return op._replace(bytes=op.bytes + bytes, flops=op.flops + flops)


_STYLES: dict[str, Callable[[ModelConfig, StepShape, Stored], StepParts]] = {
    "hf56": _hf56,
    "fused9": _fused9,
    "fused5": _fused5,
}
STYLES = tuple(_STYLES)
