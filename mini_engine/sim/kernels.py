"""The kernels of a decoder, in numpy: nine a layer, and a few at either end of a step. The
out-parameter is always first, and written in place.

**Batch invariance.** A row's result must not depend on the rows beside it, or eager and graph could
not be compared bit for bit. BLAS promises equal bits only for calls of one shape, so `linear`
multiplies row by row, and `attention` does one query at a time over exactly the keys it may see. A
real engine cannot afford this and compares with a tolerance.

Costs: each activation and weight is moved once. Index arrays and rotary tables are left out, and of
a KV cache only what is read counts, as in `mini_engine/step/kernels.py`.

Shapes: T tokens, R requests, H hidden, D head_dim, q = heads × D, kv = kv_heads × D, V vocabulary.
"""

from __future__ import annotations

import numpy as np

from mini_engine.sim.attention import attend_tiled
from mini_engine.sim.launch import Buffer, kernel

F32 = np.float32
BLOCK = 2**17  # numbers of a weight that are multiplied at a time: 512 KiB


@kernel(bytes=lambda out, ids, table: 2 * out.nbytes, indices=(1,))
def embed(out: np.ndarray, ids: np.ndarray, table: np.ndarray) -> None:
    """out[t] = table[ids[t]]. out (T, H), ids (T,) int32, table (V, H)."""
    out[...] = table[ids]


def _normalised(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """RMSNorm: x / sqrt(mean(x²) + eps) × weight over the last axis (Zhang & Sennrich 2019)."""
    mean_square = np.mean(np.square(x), axis=-1, keepdims=True, dtype=F32)
    normalised: np.ndarray = x * (F32(1) / np.sqrt(mean_square + F32(eps))) * weight
    return normalised


@kernel(flops=lambda out, *_, **__: 4 * out.size)
def rms_norm(out: np.ndarray, x: np.ndarray, weight: np.ndarray, *, eps: float) -> None:
    """out = RMSNorm(x) × weight. out, x (T, H), weight (H,)."""
    out[...] = _normalised(x, weight, eps)


@kernel(
    bytes=lambda out, residual, x, weight, **_: 4 * out.nbytes + weight.nbytes,
    flops=lambda out, *_, **__: 5 * out.size,
)
def add_rms_norm(
    out: np.ndarray, residual: np.ndarray, x: np.ndarray, weight: np.ndarray, *, eps: float
) -> None:
    """residual += x; out = RMSNorm(residual) × weight. All (T, H), weight (H,)."""
    residual += x
    out[...] = _normalised(residual, weight, eps)


@kernel(flops=lambda out, x, weight, *_: 2 * out.size * weight.shape[1], kind="product")
def linear(
    out: np.ndarray, x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None = None
) -> None:
    """out = x @ weightᵀ + bias. out (T, N), x (T, K), weight (N, K), bias (N,) or none. Row by row
    over one block of outputs after another, which stays in the cache of a core."""
    size = max(BLOCK // weight.shape[1], 1)
    for first in range(0, len(weight), size):
        block = slice(first, first + size)
        np.matmul(x[:, None, :], weight[block].T, out=out[:, None, block])
    if bias is not None:
        out += bias


def _rotated(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """RoPE on halves, as Hugging Face stores them. x (T, heads, D), cos and sin (T, 1, D/2)."""
    left, right = np.split(x, 2, axis=-1)
    return np.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)


def _rope_bytes(
    q: Buffer, k_cache: Buffer, v_cache: Buffer, qkv: Buffer, *_: Buffer, eps: float = 0
) -> int:
    kv_heads, head_dim = k_cache.shape[2:]
    stored = 2 * len(qkv) * kv_heads * head_dim * k_cache.dtype.itemsize
    return qkv.nbytes + q.nbytes + stored + 2 * head_dim * qkv.dtype.itemsize * (eps > 0)


def _rope_flops(q: Buffer, k_cache: Buffer, *_: Buffer, eps: float = 0) -> float:
    return (15 if eps else 7) / 2 * len(q) * (q.shape[1] + k_cache.shape[2] * k_cache.shape[3])


@kernel(bytes=_rope_bytes, flops=_rope_flops, indices=(4, 5))
def rope_kv_write(*buffers: np.ndarray, eps: float = 0) -> None:
    """Rotate q and k to their positions; put k and v into the cache slots of their tokens. The
    buffers: q (T, q), k_cache and v_cache (blocks, block_size, kv_heads, D), qkv (T, q + 2kv),
    positions and slot_mapping (T,) int32, cos and sin (max_position, D/2); and none, or the weights
    (D,) of an RMSNorm over each head of q and of one over each head of k before RoPE (Qwen3)."""
    q, k_cache, v_cache, qkv, positions, slot_mapping, cos, sin, *norms = buffers
    qk_norm = (norms[0], norms[1], eps) if norms else None
    _rope_and_store(q, k_cache, v_cache, qkv, positions, slot_mapping, cos, sin, qk_norm)


def _rope_and_store(
    q: np.ndarray, k_cache: np.ndarray, v_cache: np.ndarray, qkv: np.ndarray,
    positions: np.ndarray, slot_mapping: np.ndarray, cos: np.ndarray, sin: np.ndarray,
    qk_norm: tuple[np.ndarray, np.ndarray, float] | None,
) -> None:  # fmt: skip
    """Write the rotated queries to q, and rotated keys and plain values into their cache slots.
    Shapes as in `rope_kv_write`. Row t stands at positions[t] in its request; its q and k are
    rotated by that, whatever its row or slot. A cache seen as rows, (blocks × block_size, kv_heads,
    D), has slot s in row s; no other row changes. `qk_norm` is (q_weight, k_weight, eps): RMSNorm
    over each head of q and k before they are rotated; None leaves it out."""
    kv_heads, head_dim = k_cache.shape[2:]
    queries, keys, values = _heads_of(qkv, q.shape[1], kv_heads, head_dim)
    if qk_norm:
        q_weight, k_weight, eps = qk_norm
        queries, keys = _normalised(queries, q_weight, eps), _normalised(keys, k_weight, eps)
    cos_t, sin_t = cos[positions][:, None, :], sin[positions][:, None, :]
    q[...] = _rotated(queries, cos_t, sin_t).reshape(q.shape)
    k_cache.reshape(-1, kv_heads, head_dim)[slot_mapping] = _rotated(keys, cos_t, sin_t)
    v_cache.reshape(-1, kv_heads, head_dim)[slot_mapping] = values


def _heads_of(
    qkv: np.ndarray, q_size: int, kv_heads: int, head_dim: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """qkv (T, q + 2kv) cut into queries (T, heads, D), keys and values (T, kv_heads, D)."""
    queries, keys, values = (
        part.reshape(len(qkv), -1, head_dim)
        for part in np.split(qkv, [q_size, q_size + kv_heads * head_dim], axis=1)
    )
    return queries, keys, values


def _attention_bytes(out: Buffer, q: Buffer, k_cache: Buffer, *rest: Buffer) -> int:
    kv_row = k_cache.shape[2] * k_cache.shape[3] * k_cache.dtype.itemsize
    return out.nbytes + q.nbytes + 2 * kv_row * int(rest[3].array.sum())


def attention_pairs(query_lens: np.ndarray, context_lens: np.ndarray) -> int:
    """How many pairs (query, key) the step's attention compares, in one head of one layer.
    query_lens, context_lens (R,) int32, as in `attention`: a request brings query_len queries, the
    last tokens of a context of context_len, and each sees the keys up to and including its own.
    Linear in the context where query_len is 1, quadratic where it is the whole context. A padded
    request has query_len 0. No loop over tokens or requests, since every launch calls this."""
    queries = query_lens.astype(np.int64)  # the sum of a long prompt's pairs outgrows int32
    # query i of n at the end of a context of c sees c - n + 1 + i keys
    return int((queries * (2 * context_lens - queries + 1) // 2).sum())


@kernel(
    bytes=_attention_bytes,
    flops=lambda out, *b: 4 * out.shape[1] * attention_pairs(b[4].array, b[5].array),
    kind="attention", indices=(4,),
)  # fmt: skip
def attention(
    out: np.ndarray, q: np.ndarray, k_cache: np.ndarray, v_cache: np.ndarray,
    block_table: np.ndarray, query_lens: np.ndarray, context_lens: np.ndarray,
) -> None:  # fmt: skip
    """Paged causal attention: query t of a request sees the keys up to its own position. out, q (T,
    q); caches (blocks, block_size, kv_heads, D); block_table (R, max_blocks) int32; query_lens,
    context_lens (R,) int32: a request's tokens in this step, and in its whole context including
    them. Requests follow one another in q, each with its query_len rows, the last tokens of its
    context; a padded request has query_len 0. One token's attention is `attend_tiled(q, keys,
    values)`, with q as (kv_heads, group, D) and the keys and values that it sees. Rows beyond the
    last query are padding, which nobody reads: leave them as they are."""
    kv_heads, head_dim = k_cache.shape[2:]
    row = 0
    for blocks, query_len, context_len in zip(block_table, query_lens, context_lens, strict=True):
        if query_len == 0:
            continue
        keys = _context_rows(k_cache, blocks, context_len)
        values = _context_rows(v_cache, blocks, context_len)
        for seen in range(context_len - query_len + 1, context_len + 1):
            heads = q[row].reshape(kv_heads, -1, head_dim)  # (kv_heads, group, D)
            out[row] = attend_tiled(heads, keys[:seen], values[:seen]).reshape(-1)
            row += 1


def _context_rows(cache: np.ndarray, blocks: np.ndarray, context_len: int) -> np.ndarray:
    """One request's rows of a cache in order of position, (context_len, kv_heads, D).

    cache (num_blocks, block_size, kv_heads, D); blocks (max_blocks,) int32, the request's row of
    the block table: its entry i holds the positions from i · block_size on, and zeros follow the
    last entry in use. Only the blocks that the context reaches into are copied, however wide the
    table is."""
    used = blocks[: -(-context_len // cache.shape[1])]
    rows: np.ndarray = cache[used].reshape(-1, *cache.shape[2:])
    return rows[:context_len]


@kernel(flops=lambda out, gate_up: 5 * out.size)
def silu_mul(out: np.ndarray, gate_up: np.ndarray) -> None:
    """out = gate · σ(gate) · up (SwiGLU; Shazeer 2020). out (T, I), gate_up (T, 2I)."""
    gate, up = np.split(gate_up, 2, axis=-1)
    out[...] = gate / (F32(1) + np.exp(-gate)) * up


@kernel(
    bytes=lambda chosen, ids, scores, **_: chosen.nbytes + scores.nbytes,
    flops=lambda chosen, ids, scores, **_: 4 * scores.size,
)
def top_k(
    chosen: np.ndarray, ids: np.ndarray, scores: np.ndarray, *, normalized: bool = False
) -> None:
    """Softmax of a token's scores of all experts; the k largest shares, and whose they are. chosen
    (T, k), ids (T, k) int32, scores (T, experts). `normalized`: scaled to sum to 1."""
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    ids[...] = np.argsort(-shares, axis=-1, kind="stable")[:, : ids.shape[1]]
    chosen[...] = np.take_along_axis(shares, ids, axis=-1)
    if normalized:
        chosen /= chosen.sum(axis=-1, keepdims=True)


@kernel(bytes=lambda order, ids: 4 * order.size)
def sort_by_expert(order: np.ndarray, ids: np.ndarray) -> None:
    """The pairs of a token and an expert, one expert's after another's. order (T * k,) int32."""
    order[...] = np.argsort(ids.reshape(-1), kind="stable")


def _touched(out: Buffer, weight: Buffer) -> float:
    tokens, active, width = out.shape
    return 1 - (1 - active * width / weight.shape[0]) ** tokens


@kernel(
    bytes=lambda out, x, weight, *_: out.nbytes + x.nbytes + weight.nbytes * _touched(out, weight),
    flops=lambda out, x, weight, *_: 2 * out.size * weight.shape[1],
    kind="product",
    indices=(3, 4),
)
def grouped_linear(
    out: np.ndarray, x: np.ndarray, weight: np.ndarray, ids: np.ndarray, order: np.ndarray
) -> None:
    """out[t, j] = x[t] times the matrix of token t's expert j. out (T, k, N); x (T, K), or (T, k,
    K) with a row for each expert; weight (experts * N, K), one expert's rows under another's;
    `order` has the rows of one expert side by side."""
    tokens, active, width = out.shape
    rows, sorted_ids = out.reshape(-1, width), ids.reshape(-1)[order]
    wide = x.reshape(tokens, -1, weight.shape[1])
    inputs = np.broadcast_to(wide, (tokens, active, weight.shape[1])).reshape(-1, weight.shape[1])
    for expert in np.unique(sorted_ids):
        mine = order[sorted_ids == expert]
        result = np.empty((len(mine), width), out.dtype)
        linear.function(result, inputs[mine], weight[expert * width : (expert + 1) * width])
        rows[mine] = result


@kernel(flops=lambda out, parts, chosen: 2 * parts.size)
def expert_sum(out: np.ndarray, parts: np.ndarray, chosen: np.ndarray) -> None:
    """out[t] = what its experts say, weighted. out (T, H), parts (T, k, H), chosen (T, k)."""
    out[...] = (parts * chosen[:, :, None]).sum(axis=1)


@kernel(bytes=lambda out, x, rows: 2 * out.nbytes, indices=(2,))
def select_rows(out: np.ndarray, x: np.ndarray, rows: np.ndarray) -> None:
    """out[r] = x[rows[r]]: each request's last token. out (R, H), x (T, H), rows (R,) int32."""
    out[...] = x[rows]


@kernel(bytes=lambda out, logits: logits.nbytes, flops=lambda out, logits: logits.size)
def argmax(out: np.ndarray, logits: np.ndarray) -> None:
    """out[r] = the first index of the largest logit. out (R,) int32, logits (R, V)."""
    out[...] = np.argmax(logits, axis=-1)


@kernel(flops=lambda out, a, b: out.size)
def add(out: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    np.add(a, b, out=out)


@kernel(flops=lambda out, a, b: out.size)
def multiply(out: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    np.multiply(a, b, out=out)


@kernel(flops=lambda out, a, **_: out.size)
def scale(out: np.ndarray, a: np.ndarray, *, by: float) -> None:
    """out = a · by. `by` is a scalar, so a graph bakes it in."""
    np.multiply(a, F32(by), out=out)
