"""A decoder of the Qwen2.5, Qwen3 or Llama family on the simulated device.

In: a `StepInputs` in device memory (which tokens, at which positions, in which cache slots).
Out: hidden states, then one sampled token for each request.

    hidden = model.body(inputs)        # embed, layers, final norm        (T, H)
    tokens = model.head(hidden, inputs.last_rows)      # greedy, or drawn  (R,)

Nine kernels a layer: the list "fused9" of `mini_engine/step/oplists.py`. Body and head are apart
because piecewise graphs hold the body alone, whose shapes depend on nothing but the number of
tokens. All buffers of a pass come from one `scratch`; a capture takes them from the graph's pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from mini_engine.model.config import ModelConfig
from mini_engine.model.kv_fp8 import measured_tokens, scale_for
from mini_engine.sim import fp8
from mini_engine.sim import kernels as k
from mini_engine.sim.device import Device
from mini_engine.sim.launch import Buffer
from mini_engine.sim.sampling import draw
from mini_engine.sim.weights import Array, LayerWeights, Weights
from mini_engine.step.hardware import DeviceSpec

INDEX = "int32"


@dataclass(frozen=True)
class StepInputs:
    """What a step reads, all int32. T tokens of R requests; zero is the null of each."""

    input_ids: Buffer  # (T,)
    positions: Buffer  # (T,) place of each token in its request
    slot_mapping: Buffer  # (T,) cache slot that takes the token's K and V; slot 0 is nobody's
    query_lens: Buffer  # (R,) tokens of each request in this step
    context_lens: Buffer  # (R,) tokens of its whole context, this step's included
    block_table: Buffer  # (R, max_blocks) its cache blocks, in order
    last_rows: Buffer  # (R,) row of its last token, whose logits are sampled

    def rows(self, num_tokens: int, num_reqs: int) -> StepInputs:
        """The same addresses, cut to a step of this size."""
        return StepInputs(
            input_ids=self.input_ids[:num_tokens],
            positions=self.positions[:num_tokens],
            slot_mapping=self.slot_mapping[:num_tokens],
            query_lens=self.query_lens[:num_reqs],
            context_lens=self.context_lens[:num_reqs],
            block_table=self.block_table[:num_reqs],
            last_rows=self.last_rows[:num_reqs],
        )


@dataclass(frozen=True)
class KVCache:
    """Paged K and V of every layer, each (num_blocks, block_size, kv_heads, head_dim). With
    scales, (2, kv_heads) a layer, it is in fp8."""

    keys: tuple[Buffer, ...]
    values: tuple[Buffer, ...]
    scales: tuple[Buffer, ...] = ()

    @staticmethod
    def allocate(
        device: Device, config: ModelConfig, num_blocks: int, block_size: int, dtype: str,
        scales: Sequence[np.ndarray] = (),
    ) -> KVCache:  # fmt: skip
        """Of this dtype, or, with scales (`measured_scales`), of bytes."""
        dtype = "uint8" if scales else dtype
        shape = (num_blocks, block_size, config.num_kv_heads, config.head_dim)
        layers = range(config.num_layers)
        return KVCache(
            tuple(device.empty(shape, dtype) for _ in layers),
            tuple(device.empty(shape, dtype) for _ in layers),
            tuple(device.upload(scale) for scale in scales),
        )


class Model:
    """Weights on a device, and the launches of a forward pass over them."""

    def __init__(
        self, device: Device, config: ModelConfig, weights: Weights | None, cache: KVCache
    ) -> None:
        """Without `weights` (a device that only counts costs) they are allocated, not filled, and
        have 2 bytes an element, as in a real engine.
        """
        self.device, self.config, self.cache = device, config, cache
        if weights is None and device.compute:
            raise ValueError("a device that computes needs weights: load_weights(folder)")
        self.dtype = "float32" if weights else "float16"
        tables = rotary_tables(config) if weights else None
        half = (config.max_position_embeddings, config.head_dim // 2)
        self.cos = device.upload(tables[0]) if tables else device.empty(half)
        self.sin = device.upload(tables[1]) if tables else device.empty(half)
        vocab, hidden = config.vocab_size, config.hidden_size
        self.embed = self._put(weights, "embed", vocab, hidden)
        self.final_norm = self._put(weights, "final_norm", hidden)
        tied = config.tie_word_embeddings
        self.lm_head = self.embed if tied else self._put(weights, "lm_head", vocab, hidden)
        layers = weights.layers if weights else [None] * config.num_layers
        self.layers = [self._put_layer(layer) for layer in layers]

    def body(self, inputs: StepInputs) -> Buffer:
        """Hidden states after the final norm, (T, H). The caller frees them."""
        c, launch = self.config, self.device.launch
        tokens, q_size, inter = len(inputs.input_ids), c.q_size, c.intermediate_size
        with self.device.scratch() as scratch:
            residual = scratch.empty(tokens, c.hidden_size, dtype=self.dtype)
            normed = scratch.empty(tokens, c.hidden_size, dtype=self.dtype)
            block_out = scratch.empty(tokens, c.hidden_size, dtype=self.dtype)
            qkv = scratch.empty(tokens, q_size + 2 * c.kv_size, dtype=self.dtype)
            q = scratch.empty(tokens, q_size, dtype=self.dtype)
            attended = scratch.empty(tokens, q_size, dtype=self.dtype)
            gate_up = scratch.empty(tokens, 2 * inter, dtype=self.dtype)
            activated = scratch.empty(tokens, inter, dtype=self.dtype)

            launch(k.embed, residual, inputs.input_ids, self.embed)
            cache, attention = self.cache, fp8.attention if self.cache.scales else k.attention
            caches = zip(self.layers, cache.keys, cache.values, strict=True)
            for index, (layer, keys, values) in enumerate(caches):
                scales = cache.scales[index : index + 1]
                self._norm(normed, residual, block_out if index else None, layer.input_norm)
                self._qkv(qkv, normed, layer)
                self._rope(q, keys, values, qkv, inputs, layer, scales)
                launch(
                    attention, attended, q, keys, values,
                    inputs.block_table, inputs.query_lens, inputs.context_lens, *scales,
                )  # fmt: skip
                launch(k.linear, block_out, attended, layer.o, label="o_proj")
                self._norm(normed, residual, block_out, layer.post_norm)
                launch(k.linear, gate_up, normed, layer.gate_up, label="gate_up_proj")
                launch(k.silu_mul, activated, gate_up)
                launch(k.linear, block_out, activated, layer.down, label="down_proj")
            self._norm(normed, residual, block_out, self.final_norm)
            return scratch.keep(normed)

    def head(
        self,
        hidden: Buffer,
        last_rows: Buffer,
        logits: Buffer | None = None,
        sampling: tuple[Buffer, Buffer] | None = None,
    ) -> Buffer:
        """The next token of each request, (R,) int32. The caller frees it.

        It is the greedy one, unless `sampling` gives the requests' context lengths (R,) and the
        `param_rows` to draw by, (R, 5). `logits` (R, V), if given, receives the logits.
        """
        requests, c = len(last_rows), self.config
        with self.device.scratch() as scratch:
            tokens = scratch.empty(requests, dtype=INDEX)
            selected = scratch.empty(requests, c.hidden_size, dtype=self.dtype)
            logits = logits or scratch.empty(requests, c.vocab_size, dtype=self.dtype)
            self.device.launch(k.select_rows, selected, hidden, last_rows)
            self.device.launch(k.linear, logits, selected, self.lm_head, label="lm_head")
            if sampling:
                self.device.launch(draw, tokens, logits, *sampling)
            else:
                self.device.launch(k.argmax, tokens, logits)
            return scratch.keep(tokens)

    # -- parts ---------------------------------------------------------------------------------

    def _norm(self, out: Buffer, residual: Buffer, x: Buffer | None, weight: Buffer) -> None:
        """out = RMSNorm(residual + x): the first norm of a step has nothing to add."""
        eps = self.config.rms_norm_eps
        if x is None:
            self.device.launch(k.rms_norm, out, residual, weight, eps=eps)
        else:
            self.device.launch(k.add_rms_norm, out, residual, x, weight, eps=eps)

    def _qkv(self, qkv: Buffer, normed: Buffer, layer: LayerWeights[Buffer]) -> None:
        if layer.qkv_bias:
            self.device.launch(
                k.linear_bias, qkv, normed, layer.qkv, layer.qkv_bias, label="qkv_proj"
            )
        else:
            self.device.launch(k.linear, qkv, normed, layer.qkv, label="qkv_proj")

    def _rope(
        self, q: Buffer, keys: Buffer, values: Buffer, qkv: Buffer, inputs: StepInputs,
        layer: LayerWeights[Buffer], scales: tuple[Buffer, ...],
    ) -> None:  # fmt: skip
        kernels = fp8 if scales else k
        where = (inputs.positions, inputs.slot_mapping, self.cos, self.sin)
        if layer.q_norm and layer.k_norm:
            self.device.launch(
                kernels.qk_norm_rope_kv_write, q, keys, values, qkv, *where,
                layer.q_norm, layer.k_norm, *scales, eps=self.config.rms_norm_eps,
            )  # fmt: skip
        else:
            self.device.launch(kernels.rope_kv_write, q, keys, values, qkv, *where, *scales)

    def _put(self, source: Weights | LayerWeights[Array] | None, name: str, *shape: int) -> Buffer:
        """A weight on the device: uploaded from `source`, or only allocated."""
        if source is None:
            return self.device.empty(shape, self.dtype)
        return self.device.upload(getattr(source, name))

    def _put_layer(self, layer: LayerWeights[Array] | None) -> LayerWeights[Buffer]:
        c = self.config
        hidden, inter, qkv_rows = c.hidden_size, c.intermediate_size, c.q_size + 2 * c.kv_size
        put = partial(self._put, layer)
        return LayerWeights(
            input_norm=put("input_norm", hidden),
            qkv=put("qkv", qkv_rows, hidden),
            qkv_bias=put("qkv_bias", qkv_rows) if c.qkv_bias else None,
            q_norm=put("q_norm", c.head_dim) if c.qk_norm else None,
            k_norm=put("k_norm", c.head_dim) if c.qk_norm else None,
            o=put("o", hidden, c.q_size),
            post_norm=put("post_norm", hidden),
            gate_up=put("gate_up", 2 * inter, hidden),
            down=put("down", hidden, inter),
        )


def measured_scales(spec: DeviceSpec, config: ModelConfig, weights: Weights) -> list[np.ndarray]:
    """Scales for a cache in fp8, (2, kv_heads) a layer: by one prefill of the tokens that
    model/kv_fp8.py names, on a device of its own."""
    tokens = measured_tokens(config.vocab_size, config.max_position_embeddings)
    device, count = Device(spec), len(tokens)
    cache = KVCache.allocate(device, config, 1, count, "float32")
    places = np.arange(count)
    arrays = (tokens, places, places, [count], [count], [[0]], [count - 1])
    inputs = StepInputs(*[device.upload(np.asarray(array, np.int32)) for array in arrays])
    device.free(Model(device, config, weights, cache).body(inputs))
    largest = [
        np.abs(np.stack([device.read(keys)[0], device.read(values)[0]])).max(axis=(1, 3))
        for keys, values in zip(cache.keys, cache.values, strict=True)
    ]
    return [np.vectorize(scale_for)(layer).astype(np.float32) for layer in largest]


def rotary_tables(config: ModelConfig) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin of position × frequency, each (max_position, head_dim / 2) float32."""
    positions = np.arange(config.max_position_embeddings, dtype=np.float32)
    angles = np.outer(positions, np.asarray(config.rope_frequencies(), np.float32))
    return np.cos(angles), np.sin(angles)
