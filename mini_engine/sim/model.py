"""A decoder of the Qwen2.5, Qwen3 or Llama family, or Qwen3's mixture of experts, on the simulated
device.

What a step launches is the list "fused9" of `mini_engine/step/kernels.py`, nine kernels a layer, or
thirteen with experts. The tables below say for embedding and layers which numpy kernel computes
each of them, and on which buffers; `head` launches the last three. Body and head (logits and token)
are apart because piecewise graphs hold the body alone, whose shapes depend on the number of tokens
alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mini_engine.engine import step_arrays
from mini_engine.model.checkpoint import EMBED, FINAL_NORM, LM_HEAD, layer_parts
from mini_engine.model.config import ModelConfig
from mini_engine.sim import kernels as k
from mini_engine.sim.device import Device
from mini_engine.sim.launch import Buffer
from mini_engine.sim.sampling import draw
from mini_engine.sim.weights import Weights
from mini_engine.step.kernels import kernels_of

INDEX = "int32"
StepInputs = step_arrays.StepInputs[Buffer]

# One row for each kernel of the list: what computes it, then what it writes and reads, by name.
# What a model lacks (a bias, norms of q and k) its rows leave out.
FIRST = (
    (k.embed, "residual", "input_ids", "embed"),
    (k.rms_norm, "normed", "residual", "next_norm"),
)
LAYER = (
    (k.linear, "qkv_out", "normed", "qkv", "qkv_bias"),
    (k.rope_kv_write, "q", "keys", "values", "qkv_out", "positions", "slot_mapping", "cos", "sin",
     "q_norm", "k_norm"),
    (k.attention, "attended", "q", "keys", "values", "block_table", "query_lens", "context_lens"),
    (k.linear, "block_out", "attended", "o"),
    (k.add_rms_norm, "normed", "residual", "block_out", "post_norm"),
)  # fmt: skip
MLP = (
    (k.linear, "gate_up_out", "normed", "gate_up"),
    (k.silu_mul, "activated", "gate_up_out"),
    (k.linear, "block_out", "activated", "down"),
)
EXPERTS = (
    (k.linear, "scores", "normed", "router"),
    (k.top_k, "chosen", "chosen_ids", "scores"),
    (k.sort_by_expert, "order", "chosen_ids"),
    (k.grouped_linear, "gate_up_out", "normed", "gate_up", "chosen_ids", "order"),
    (k.silu_mul, "activated", "gate_up_out"),
    (k.grouped_linear, "expert_out", "activated", "down", "chosen_ids", "order"),
    (k.expert_sum, "block_out", "expert_out", "chosen"),
)
LAST = ((k.add_rms_norm, "normed", "residual", "block_out", "next_norm"),)


@dataclass(frozen=True)
class KVCache:
    """Paged K and V of every layer, each (num_blocks, block_size, kv_heads, head_dim)."""

    keys: tuple[Buffer, ...]
    values: tuple[Buffer, ...]

    @staticmethod
    def allocate(
        device: Device, config: ModelConfig, num_blocks: int, block_size: int, dtype: str
    ) -> KVCache:
        shape = (num_blocks, block_size, config.num_kv_heads, config.head_dim)
        keys, values = (
            tuple(device.empty(shape, dtype) for _ in range(config.num_layers)) for _ in range(2)
        )
        return KVCache(keys, values)


class Model:
    def __init__(
        self, device: Device, config: ModelConfig, weights: Weights | None, cache: KVCache
    ) -> None:
        """Without `weights` (a device that only counts costs) they are allocated, not filled, and
        have 2 bytes an element, as in a real engine."""
        self.device, self.config, self.cache = device, config, cache
        self.dtype = "float32" if weights else "float16"
        half = (config.max_position_embeddings, config.head_dim // 2)
        tables = rotary_tables(config) if weights else None
        self.cos = device.upload(tables[0]) if tables else device.empty(half)
        self.sin = device.upload(tables[1]) if tables else device.empty(half)

        def put(tensors: Mapping[str, tuple[int, ...]]) -> Buffer:
            if weights:
                return device.upload(weights.stacked(tensors))
            shapes = [*tensors.values()]  # stacked along their rows
            return device.empty((sum(rows for rows, *_ in shapes), *shapes[0][1:]), self.dtype)

        table, tied = (config.vocab_size, config.hidden_size), config.tie_word_embeddings
        self.embed = put({EMBED: table})
        self.final_norm = put({FINAL_NORM: (config.hidden_size,)})
        self.lm_head = self.embed if tied else put({LM_HEAD: table})
        self.layers = [
            {name: put(tensors) for name, tensors in layer_parts(config, index).items()}
            for index in range(config.num_layers)
        ]
        before, layer, _ = kernels_of(config, "fused9")
        self.labels = [kernel.name for kernel in before], [kernel.name for kernel in layer]

    def body(self, inputs: StepInputs) -> Buffer:
        """Hidden states after the final norm, (T, H). The caller frees them."""
        c, tokens = self.config, len(inputs.input_ids)
        widths: dict[str, tuple[int, ...]] = {
            "residual": (c.hidden_size,), "normed": (c.hidden_size,), "block_out": (c.hidden_size,),
            "qkv_out": (c.q_size + 2 * c.kv_size,), "q": (c.q_size,), "attended": (c.q_size,),
            "gate_up_out": (2 * c.intermediate_size,), "activated": (c.intermediate_size,),
        }  # fmt: skip
        indices: dict[str, tuple[int, ...]] = {}
        if e := c.experts:
            indices = {"chosen_ids": (tokens, e.active), "order": (tokens * e.active,)}
            widths |= {
                "scores": (e.count,), "chosen": (e.active,),
                "gate_up_out": (e.active, 2 * e.width), "activated": (e.active, e.width),
                "expert_out": (e.active, c.hidden_size),
            }  # fmt: skip
        in_first, in_layer = self.labels
        norms = [*(layer["input_norm"] for layer in self.layers), self.final_norm]
        with self.device.scratch() as scratch:
            values = {n: scratch.empty(tokens, *w, dtype=self.dtype) for n, w in widths.items()}
            values |= {n: scratch.empty(*w, dtype=INDEX) for n, w in indices.items()}
            values |= vars(inputs)
            values |= {"embed": self.embed, "cos": self.cos, "sin": self.sin}
            self._run(FIRST, in_first, values | {"next_norm": norms[0]})
            for i, layer in enumerate(self.layers):
                cached = {"keys": self.cache.keys[i], "values": self.cache.values[i]}
                values |= layer | cached | {"next_norm": norms[i + 1]}
                self._run((*LAYER, *(EXPERTS if e else MLP), *LAST), in_layer, values)
            return scratch.keep(values["normed"])

    def _run(
        self, rows: Sequence[tuple[Any, ...]], labels: Sequence[str], values: Mapping[str, Buffer]
    ) -> None:
        for (kernel, *names), label in zip(rows, labels, strict=True):
            buffers = [values[name] for name in names if name in values]
            scalars: dict[str, Any] = {"eps": self.config.rms_norm_eps} if "norm" in label else {}
            if kernel is k.top_k and self.config.experts:
                scalars = {"normalized": self.config.experts.normalized}
            self.device.launch(kernel, *buffers, label=label, **scalars)

    def head(
        self, hidden: Buffer, last_rows: Buffer, logits: Buffer | None = None,
        sampling: tuple[Buffer, Buffer] | None = None,
    ) -> Buffer:  # fmt: skip
        """The token after each of these rows, (S,) int32. The caller frees it. It is the greedy
        one, unless `sampling` gives the positions of all tokens (T,) and the `param_rows` to draw
        by, (S, 5). `logits` (S, V), if given, receives the logits."""
        requests, c = len(last_rows), self.config
        with self.device.scratch() as scratch:
            tokens = scratch.empty(requests, dtype=INDEX)
            selected = scratch.empty(requests, c.hidden_size, dtype=self.dtype)
            logits = logits or scratch.empty(requests, c.vocab_size, dtype=self.dtype)
            self.device.launch(k.select_rows, selected, hidden, last_rows)
            self.device.launch(k.linear, logits, selected, self.lm_head, label="lm_head")
            if sampling:
                positions, params = sampling
                self.device.launch(draw, tokens, logits, positions, last_rows, params)
            else:
                self.device.launch(k.argmax, tokens, logits)
            return scratch.keep(tokens)


def rotary_tables(config: ModelConfig) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin of position × frequency, each (max_position, head_dim / 2) float32."""
    positions = np.arange(config.max_position_embeddings, dtype=np.float32)
    angles = np.outer(positions, np.asarray(config.rope_frequencies(), np.float32))
    return np.cos(angles), np.sin(angles)
