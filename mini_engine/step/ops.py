"""A decoder layer as data: primitive ops, and the named values that they pass to each other.

An op reads values and writes one. A value is so many numbers for each token, request or key, or a
weight. `kernels.py` puts ops into kernels, whose bytes follow from these values.

The primitive ops are those that transformers 5.23 dispatches (sdpa, a bf16 model, views left out);
tests/step/test_kernels.py counts them. Index arrays and tables of cos and sin move no bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from mini_engine.model.config import Experts, ModelConfig

# "": once a step, as a weight is; "expert": for each one that a layer touches
Per = Literal["", "token", "request", "key", "pair", "expert"]
# Kernels of a kind reach the same bandwidth; the last two, of several GPUs, that of their link.
Kind = Literal["product", "attention", "other", "all_reduce", "all_gather"]
TILE_ROWS = 32  # rows of the head that leave one (value, index) pair for the argmax


@dataclass(frozen=True)
class Value:
    name: str
    per: Per
    numbers: float = 0  # for each token, request or key
    dtype: str = "model"  # "model", "fp32", "int64", "kv", or the matrix of `Stored` that it is
    of: Value | None = None  # the value that this one is a part of: it has no bytes of its own


@dataclass(frozen=True)
class Op:
    name: str  # place.op
    writes: Value
    reads: tuple[Value, ...]
    flops: float = 0  # for each of `per`
    per: Per = "token"
    kind: Kind = "other"


def layer(c: ModelConfig, *, norm_first: bool = False, copied_cache: bool = False) -> list[Op]:
    """One layer. A layer's norm before attention is counted with the layer before it, so that all
    layers are alike and the last one ends with the final norm; `norm_first` counts it with its own
    layer. `copied_cache`: the whole cache is copied to append to it, as `DynamicCache` does."""
    h, q, kv, i = c.hidden_size, c.q_size, c.kv_size, c.intermediate_size
    x, v = token("normed", h), token("v", kv)
    q_turned, k_turned = token("q_turned", q), token("k_turned", kv)
    ops, turns = norm("input_norm", token("residual", h), x) if norm_first else [], list[Op]()
    for name, heads, turned in (("q", c.num_heads, q_turned), ("k", c.num_kv_heads, k_turned)):
        given = token(name, turned.numbers)
        ops += product(f"{name}_proj", x, given, name, bias=c.qkv_bias)
        if c.qk_norm:
            normed = token(f"{name}_normed", turned.numbers)
            ops += norm(f"{name}_norm", given, normed, heads)
            given = normed
        turns += rotation(name, given, turned)
    ops += product("v_proj", x, v, "v", bias=c.qkv_bias) + turns

    keys, values = (Value(name, "key", kv, "kv") for name in ("keys", "values"))
    for name, new, cache in (("key_cache", k_turned, keys), ("value_cache", v, values)):
        write = Op(f"{name}.write", Value(f"{name}.new", "token", kv, "kv", cache), (new,))
        copy = Op(f"{name}.cat", Value(f"{name}.copy", "key", kv, "kv"), (cache,))
        ops.append(copy if copied_cache else write)
    attended, out, residual2 = token("attended", q), token("out", h), token("residual2", h)
    ops.append(Op("attention.sdpa", attended, (q_turned, keys, values), 4 * q, "pair", "attention"))
    ops += summed(c, "o", product("o_proj", attended, out, "o"))
    ops.append(Op("attention_residual.add", residual2, (token("residual", h), out), h))

    x2, down, residual3 = token("normed2", h), token("down", h), token("residual3", h)
    ops += norm("post_attention_norm", residual2, x2)
    ops += summed(c, "down", mixture(c.experts, x2, down) if c.experts else mlp(i, x2, down))
    ops.append(Op("mlp_residual.add", residual3, (residual2, down), h))
    return ops if norm_first else ops + norm("next_norm", residual3, token("normed3", h))


def mlp(i: int, x: Value, out: Value) -> list[Op]:
    gate, silu, up, act = (token(name, i) for name in ("gate", "silu", "up", "act"))
    return [
        *product("gate_proj", x, gate, "gate"), Op("gate.silu", silu, (gate,), 4 * i),
        *product("up_proj", x, up, "up"), Op("gate_up.mul", act, (silu, up), i),
        *product("down_proj", act, out, "down"),
    ]  # fmt: skip


def mixture(e: Experts, x: Value, out: Value) -> list[Op]:
    """A router, and the MLPs of the experts that it chooses. Tokens are sorted by expert, so that
    one kernel computes all experts of a product: it reads the weights of those that are touched,
    and rows of x from the cache of the chip."""
    k, n, h = e.active, e.active * e.width, x.numbers
    scores, chosen = token("scores", e.count), token("weights of the chosen", k, "fp32")
    shares, order = token("shares", e.count, "fp32"), token("rows by expert", 0)
    gate, silu, up, act = (token(f"{name} of experts", n) for name in ("gate", "silu", "up", "act"))
    parts = token("out of experts", k * h)

    def grouped(place: str, of: Value, to: Value, matrix: str) -> Op:
        weights = Value(place, "expert", dtype=matrix)
        return Op(f"{place}.linear", to, (of, order, weights), 2 * h * n, kind="product")

    return [
        *product("router", x, scores, "router"),
        Op("router_top_k.softmax", shares, (scores,), 4 * e.count),
        Op("router_top_k.topk", chosen, (shares,)),
        Op("expert_sort.sort", order, (chosen,)),
        grouped("expert_gate_proj", x, gate, "gate"), Op("expert_gate.silu", silu, (gate,), 4 * n),
        grouped("expert_up_proj", x, up, "up"), Op("expert_gate_up.mul", act, (silu, up), n),
        grouped("expert_down_proj", act, parts, "down"),
        Op("expert_sum.sum", out, (parts, chosen), 2 * k * h),
    ]  # fmt: skip


def summed(c: ModelConfig, place: str, ops: list[Op]) -> list[Op]:
    """The ops; and on several ranks, each of which has a part of the sum, the sum over all."""
    if c.ranks == 1:
        return ops
    *before, last = ops
    part = replace(last.writes, name=f"{last.writes.name} of a rank")
    add = Op(f"{place}_all_reduce.sum", last.writes, (part,), kind="all_reduce")
    return [*before, replace(last, writes=part), add]


def head(c: ModelConfig) -> list[Op]:
    rows = token("rows of the table", c.hidden_size)
    first = token("residual", c.hidden_size)
    table = norm("first_norm", first, token("normed", c.hidden_size))
    return [Op("embed.embedding", first, (rows,)), *rotary(c), *table]


def tail(c: ModelConfig, *, norm_first: bool = False) -> list[Op]:
    """What comes after the layers, on the rows that get logits. `norm_first`: the final norm, and
    the best token of each tile of the head, which the argmax then chooses from."""
    h, v = c.hidden_size, c.vocab_size
    rows, logits = request("rows", h), request("logits", v)
    best = request("best", 0)
    project = product("lm_head", rows, logits, "head")
    if c.vocab_rows < v:
        mine = request("logits of a rank", c.vocab_rows)
        gather = Op("logits_all_gather.cat", logits, (mine,), 0, "request", "all_gather")
        project = [*product("lm_head", rows, mine, "head"), gather]
    if not norm_first:
        last = Value("last rows", "request", h)
        return [Op("select_rows.copy", rows, (last,), 0, "request"), *project,
                Op("sample.argmax", best, (logits,), v, "request")]  # fmt: skip
    tiles = -(-v // TILE_ROWS)
    pairs = Value("best of tiles", "request", 2 * tiles, "fp32")  # a float32 value, an int32 index
    return [*norm("final_norm", request("residual", h), rows), *project,
            Op("tiles.argmax", pairs, (logits,), 0, "request"),
            Op("sample.argmax", best, (pairs,), tiles, "request")]  # fmt: skip


def token(name: str, numbers: float, dtype: str = "model") -> Value:
    return Value(name, "token", numbers, dtype)


def request(name: str, numbers: float) -> Value:
    return Value(name, "request", numbers)


def product(place: str, x: Value, out: Value, matrix: str, *, bias: bool = False) -> list[Op]:
    """x times a matrix of `Stored`: (rows, inputs) to (rows, outputs)."""
    reads: tuple[Value, ...] = (x, Value(place, "", dtype=matrix))
    if bias:
        reads = (*reads, Value(f"{place}.bias", "", out.numbers))
    return [Op(f"{place}.linear", out, reads, 2 * x.numbers * out.numbers, x.per, "product")]


def norm(place: str, x: Value, out: Value, heads: int = 1) -> list[Op]:
    """RMSNorm of each head, in float32 between two casts: eight ops."""
    n, per = x.numbers, x.per

    def wide(name: str, numbers: float) -> Value:
        return Value(f"{place}.{name}", per, numbers, "fp32")

    x32, square, scaled = (wide(name, n) for name in ("wide", "square", "scaled"))
    mean, plus, inverse = (wide(name, heads) for name in ("mean", "plus eps", "inverse"))
    narrow, weight = Value(f"{place}.narrow", per, n), Value(f"{place}.weight", "", n / heads)
    steps: list[tuple[str, Value, tuple[Value, ...], float]] = [
        ("to", x32, (x,), 0), ("pow", square, (x32,), n), ("mean", mean, (square,), n),
        ("add", plus, (mean,), 0), ("rsqrt", inverse, (plus,), 0),
        ("mul", scaled, (x32, inverse), n), ("to", narrow, (scaled,), 0),
        ("mul", out, (narrow, weight), n),
    ]  # fmt: skip
    return [Op(f"{place}.{op}", to, of, flops, per) for op, to, of, flops in steps]


def rotation(which: str, x: Value, out: Value) -> list[Op]:
    """x * cos + rotate_half(x) * sin, out of place: five ops."""
    n, place = x.numbers, f"rope_{which}"
    right, left = (Value(f"{x.name}.{side}", "token", n / 2, of=x) for side in ("right", "left"))
    by_cos, turned, by_sin = (token(f"{place}.{to}", n) for to in ("by cos", "turned", "by sin"))
    half = token(f"{place}.half", n / 2)
    return [
        Op(f"{place}.mul", by_cos, (x,), n), Op(f"{place}.neg", half, (right,), n / 2),
        Op(f"{place}.cat", turned, (half, left)), Op(f"{place}.mul", by_sin, (turned,), n),
        Op(f"{place}.add", out, (by_cos, by_sin), n),
    ]  # fmt: skip


def rotary(c: ModelConfig) -> list[Op]:
    """Positions, and cos and sin of every pair, computed anew each step: twelve ops. One of them
    casts the frequencies back from bf16; loaded as float32, they need no cast."""
    d, half = c.head_dim, c.head_dim / 2
    count, shifted = token("rotary.count", 1, "int64"), token("rotary.shifted", 1, "int64")
    at = token("rotary.at", 1, "fp32")
    kept, wide = Value("rotary.kept", "", half), Value("rotary.frequencies", "", half, "fp32")
    names = ("angles", "both", "cos", "cos scaled", "sin", "sin scaled")
    angles, both, cos, cos_scaled, sin, sin_scaled = (
        token(f"rotary.{name}", half if name == "angles" else d, "fp32") for name in names
    )
    steps: list[tuple[str, Value, tuple[Value, ...]]] = [
        ("arange", count, ()), ("add", shifted, (count,)), ("to", at, (shifted,)),
        ("to", wide, (kept,)), ("mul", angles, (at, wide)),
        ("cat", both, (token("rotary.two halves", d, "fp32"),)),
        ("cos", cos, (both,)), ("mul", cos_scaled, (cos,)),
        ("sin", sin, (both,)), ("mul", sin_scaled, (sin,)),
        ("to", token("cos", d), (cos_scaled,)), ("to", token("sin", d), (sin_scaled,)),
    ]  # fmt: skip
    return [Op(f"rotary.{op}", to, of) for op, to, of in steps]
