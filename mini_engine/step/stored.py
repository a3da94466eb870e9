"""How a model's matrices and its cache lie in memory, for those who count the bytes of a step.

In:  a model, as it is. Out: `Stored`: the bytes of each matrix, whatever format it has.

    as_it_is(named_shape("qwen3-0.6b")).down       # bytes of one layer's down_proj, in bf16

`formats.stored_as` gives the same for a model in int8, int4 or a GGUF mix. Norms, biases and the
vectors between two kernels keep the model's own dtype. Widening small numbers again is taken to be
free: it hides behind the bytes while a step waits for memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from mini_engine.model.config import ModelConfig

STORED_AS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}  # names of `capacity`


@dataclass(frozen=True)
class Stored:
    """Bytes. Of the matrices of one layer, the mean over all layers where they differ."""

    quant: str  # what people call it
    kv_dtype: str
    q: float
    k: float
    v: float
    o: float
    gate_up: float
    down: float
    head: float
    kv_number: int  # one number of the KV cache
    held: int  # all weights
    read: int  # those that a step reads

    @property
    def qkv(self) -> float:
        return self.q + self.k + self.v

    def kv_bytes_per_token(self, config: ModelConfig) -> int:
        """A key and a value, of all KV heads, in every layer."""
        return 2 * config.num_layers * config.kv_size * self.kv_number


@cache
def as_it_is(c: ModelConfig) -> Stored:
    """Everything in the model's own dtype."""
    e, h, i = c.dtype_bytes, c.hidden_size, c.intermediate_size
    table = c.vocab_size * h * e
    held = c.num_parameters * e
    name = STORED_AS[c.dtype]
    return Stored(
        quant=name, kv_dtype=name, kv_number=e,
        q=c.q_size * h * e, k=c.kv_size * h * e, v=c.kv_size * h * e, o=h * c.q_size * e,
        gate_up=2 * i * h * e, down=h * i * e, head=table,
        held=held, read=held if c.tie_word_embeddings else held - table,
    )  # fmt: skip
