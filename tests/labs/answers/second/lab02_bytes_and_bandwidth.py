"""Another right way: tensor by tensor, and searches in the place of divisions."""

import bisect
from dataclasses import replace


class Quant:
    def matrix_bytes(self, outputs, inputs):
        size = self.group or inputs
        starts = range(0, inputs, size)
        return sum(outputs * self.scale_bytes for _ in starts) + outputs * inputs * self.bits / 8


def weight_bytes(config, quant="bf16"):
    try:
        kind = QUANTS[quant]
    except KeyError:
        raise ValueError(f"no such quant: {quant}") from None
    c, plain = config, (kind.bits // 8 if kind.bits >= 16 else config.dtype_bytes)
    vectors = 2 * c.hidden_size + (c.q_size + 2 * c.kv_size) * c.qkv_bias
    vectors += 2 * c.head_dim * c.qk_norm
    total = 0.0
    for _ in range(c.num_layers):
        for rows in (c.q_size, c.kv_size, c.kv_size, c.intermediate_size, c.intermediate_size):
            total += kind.matrix_bytes(rows, c.hidden_size)
        for columns in (c.q_size, c.intermediate_size):
            total += kind.matrix_bytes(c.hidden_size, columns)
        total += vectors * plain
    tables = c.vocab_size * c.hidden_size * (1 if c.tie_word_embeddings else 2)
    return round(total) + (tables + c.hidden_size) * plain


def read_bytes(config, quant="bf16"):
    return weight_bytes(replace(config, tie_word_embeddings=True), quant)


def kv_bytes_per_token(config, kv_dtype="bf16"):
    size = KV_DTYPE_BYTES.get(kv_dtype)
    if size is None:
        raise ValueError(f"no such kv_dtype: {kv_dtype}")
    return sum(2 * config.num_kv_heads * config.head_dim * size for _ in range(config.num_layers))


def step_read_bytes(config, contexts, quant="bf16", kv_dtype="bf16"):
    total = read_bytes(config, quant)
    for tokens in contexts:
        total += tokens * kv_bytes_per_token(config, kv_dtype)
    return total


def largest_batch(free_bytes, context, per_token, per_request):
    sizes = range(1, max(1, free_bytes) + 2)
    return bisect.bisect_right(
        sizes, free_bytes, key=lambda n: n * (context * per_token + per_request)
    )


def longest_context(free_bytes, per_token, per_request):
    if free_bytes < per_request:
        return 0
    return divmod(free_bytes - per_request, per_token)[0]


def floor_ms(bytes_read, bandwidth_gb_s):
    seconds = bytes_read / 1e9 / bandwidth_gb_s
    return 1000 * seconds
