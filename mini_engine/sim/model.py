"""A decoder of the Qwen2.5, Qwen3 or Llama family on the simulated device.

In: a `StepInputs` in device memory (which tokens, at which positions, in which cache slots).
Out: hidden states, then one sampled token for each request.

    hidden = model.body(inputs)        # embed, layers, final norm        (T, H)
    tokens = model.head(hidden, inputs.last_rows)      # greedy, or drawn  (R,)

What a step launches is the list "fused9" of `mini_engine/step/kernels.py`, nine kernels a layer;
`HEAD` and `LAYER` say which numpy kernel computes each of them, and on which buffers. Body
and head are apart because piecewise graphs hold the body alone, whose shapes depend on nothing but
the number of tokens. All buffers of a pass come from one `scratch`; a capture takes them from the
graph's pool.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from mini_engine.model.config import ModelConfig
from mini_engine.model.kv_fp8 import measured_tokens, scale_for
from mini_engine.sim import fp8
from mini_engine.sim import kernels as k
from mini_engine.sim.device import Device
from mini_engine.sim.launch import Buffer, Kernel
from mini_engine.sim.sampling import draw
from mini_engine.sim.weights import Array, LayerWeights, Weights
from mini_engine.step.cards import DeviceSpec
from mini_engine.step.kernels import kernels_of

INDEX = "int32"

# One row for each kernel of the list: what computes it, then what it writes and reads, by name.
HEAD = (
    (k.embed, "residual", "input_ids", "embed"),
    (k.rms_norm, "normed", "residual", "input_norm"),
)
LAYER = (
    (k.linear, "qkv", "normed", "qkv_weight"),
    (k.rope_kv_write, "q", "keys", "values", "qkv", "positions", "slot_mapping", "cos", "sin"),
    (k.attention, "attended", "q", "keys", "values", "block_table", "query_lens", "context_lens"),
    (k.linear, "block_out", "attended", "o"),
    (k.add_rms_norm, "normed", "residual", "block_out", "post_norm"),
    (k.linear, "gate_up_out", "normed", "gate_up"),
    (k.silu_mul, "activated", "gate_up_out"),
    (k.linear, "block_out", "activated", "down"),
    (k.add_rms_norm, "normed", "residual", "block_out", "next_norm"),
)


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

    def layer(self, index: int) -> dict[str, Buffer]:
        """What one layer reads and writes, by name."""
        one = {"keys": self.keys[index], "values": self.values[index]}
        return one | ({"scales": self.scales[index]} if self.scales else {})

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


Launch = tuple[str, Kernel, tuple[str, ...], dict[str, float]]  # label, kernel, buffers, scalars


@cache
def program(config: ModelConfig, *, fp8_cache: bool) -> tuple[list[Launch], list[Launch]]:
    """Head and layer of this model: the rows above, with the norms, biases and scales it has."""
    head, layer, _ = kernels_of(config, "fused9")
    parts = [zip(head, HEAD, strict=True), zip(layer, LAYER, strict=True)]
    before, repeated = (
        [_launch(config, row, listed.name, fp8_cache) for listed, row in part] for part in parts
    )
    return before, repeated


def _launch(c: ModelConfig, row: tuple[Any, ...], label: str, fp8_cache: bool) -> Launch:
    kernel, *names = row
    scalars: dict[str, float] = {}
    if label == "qkv_proj" and c.qkv_bias:
        kernel, names = k.linear_bias, [*names, "qkv_bias"]
    if label == "qk_norm_rope_kv_write":
        kernel, names = k.qk_norm_rope_kv_write, [*names, "q_norm", "k_norm"]
    if fp8_cache and "keys" in names:
        kernel, names = getattr(fp8, kernel.name), [*names, "scales"]
    if "norm" in label:
        scalars["eps"] = c.rms_norm_eps
    return label, kernel, tuple(names), scalars


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
        c, tokens = self.config, len(inputs.input_ids)
        widths = {
            "residual": c.hidden_size, "normed": c.hidden_size, "block_out": c.hidden_size,
            "qkv": c.q_size + 2 * c.kv_size, "q": c.q_size, "attended": c.q_size,
            "gate_up_out": 2 * c.intermediate_size, "activated": c.intermediate_size,
        }  # fmt: skip
        head, repeated = program(c, fp8_cache=bool(self.cache.scales))
        norms = [*(layer.input_norm for layer in self.layers), self.final_norm]
        with self.device.scratch() as scratch:
            values = {n: scratch.empty(tokens, w, dtype=self.dtype) for n, w in widths.items()}
            values |= vars(inputs)
            values |= {"embed": self.embed, "cos": self.cos, "sin": self.sin}
            self._run(head, values | {"input_norm": norms[0]})
            for i, layer in enumerate(self.layers):
                values |= weights_of(layer) | self.cache.layer(i) | {"next_norm": norms[i + 1]}
                self._run(repeated, values)
            return scratch.keep(values["normed"])

    def _run(self, rows: Sequence[Launch], values: Mapping[str, Buffer]) -> None:
        """Launch the kernels of one part of the list."""
        for label, kernel, names, scalars in rows:
            self.device.launch(kernel, *map(values.__getitem__, names), label=label, **scalars)

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


def weights_of(layer: LayerWeights[Buffer]) -> dict[str, Buffer]:
    """A layer's weights by name; `qkv_weight`, as `qkv` is what it is multiplied to."""
    held = {name: weight for name, weight in vars(layer).items() if weight is not None}
    return held | {"qkv_weight": held.pop("qkv")}


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
