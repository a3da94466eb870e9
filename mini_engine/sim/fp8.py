"""A KV cache in fp8 on the simulated device: rounding to e4m3, and the kernels that write and read.

In:  caches of bytes, uint8, and scales (2, kv_heads) float32 of a layer, first of K and then of V.
     mini_engine/model/kv_fp8.py says what e4m3 is.
Out: what the kernels of `mini_engine/sim/kernels.py` compute: these run them on floats. Costs are
     theirs, at one byte a number of the cache.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mini_engine.model.kv_fp8 import LARGEST
from mini_engine.sim import kernels as k

F32 = np.float32

# The number of each of the 256 codes: a sign, 4 bits of exponent, 3 of mantissa.
CODES = np.arange(256)
EXPONENT, MANTISSA = CODES >> 3 & 15, CODES & 7
SIZE = np.ldexp(MANTISSA / 8 + (EXPONENT > 0), np.maximum(EXPONENT, 1) - 7)
NUMBERS = np.where(CODES >> 7, -SIZE, SIZE).astype(F32)
NUMBERS[CODES & 127 == 127] = np.nan  # the only one: e4m3 has no infinity


def to_e4m3(x: np.ndarray) -> np.ndarray:
    """The code, uint8, of the number of e4m3 nearest to each float32, ties to even, at most ±448:
    eight numbers to a power of two, and below 2^-6 the same steps as there."""
    size = np.minimum(np.abs(x), F32(LARGEST))
    binade = np.frexp(np.maximum(size, F32(2**-6)))[1] - 1  # of size 2^binade to 2^(binade + 1)
    steps = np.rint(np.ldexp(size, 3 - binade))  # numpy rounds ties to even
    codes = (steps + 8 * (binade + 6)).astype(np.uint8)
    signed: np.ndarray = codes | np.signbit(x).astype(np.uint8) << 7
    return signed


def _store(
    q: np.ndarray, k_cache: np.ndarray, v_cache: np.ndarray, qkv: np.ndarray,
    positions: np.ndarray, slot_mapping: np.ndarray, *rest: np.ndarray, **eps: float,
) -> None:  # fmt: skip
    """`kernels.rope_kv_write` with scales as its last buffer."""
    *others, scales = rest
    rows = np.arange(len(qkv), dtype=np.int32)  # as if each token had a block of its own
    new = np.empty((2, len(qkv), 1, *k_cache.shape[2:]), F32)
    k.rope_kv_write.function(q, *new, qkv, positions, rows, *others, **eps)
    for cache, x, scale in zip((k_cache, v_cache), new[:, :, 0], scales, strict=True):
        cache.reshape(-1, *x.shape[1:])[slot_mapping] = to_e4m3(x / scale[:, None])


def _attend(
    out: np.ndarray, q: np.ndarray, k_cache: np.ndarray, v_cache: np.ndarray,
    block_table: np.ndarray, query_lens: np.ndarray, context_lens: np.ndarray, scales: np.ndarray,
) -> None:  # fmt: skip
    """`kernels.attention` on floats of the blocks in the table, with scales as its last buffer."""
    blocks, places = np.unique(block_table, return_inverse=True)
    table = places.reshape(block_table.shape).astype(np.int32)
    caches = zip((k_cache, v_cache), scales, strict=True)
    keys, values = (NUMBERS[cache[blocks]] * scale[:, None] for cache, scale in caches)
    k.attention.function(out, q, keys, values, table, query_lens, context_lens)


IN_FP8 = {
    "rope_kv_write": replace(k.rope_kv_write, function=_store),
    "attention": replace(k.attention, function=_attend),
}
