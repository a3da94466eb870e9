"""What few bits cost in quality: the shipped checkpoint on a fixed text, before and after.

In:  a format: "int8" and "int4" are of the weights, "kv8" of the KV cache, in fp8.
Out: `Quality`: perplexity of the text, the mean KL of each token's distribution from that of the
     model as it is, and whether both are within the limits.

The gate asks whether a kernel computes what its weights say. Whether these weights still say what
the model said is another question, and random weights cannot answer it. So every arm of few bits
is judged twice: its kernels by the gate, against the dequantised weights in float32, and
its format here, on the weights that a checkpoint really has. In float32 on the CPU: the kernels
have no part in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from mini_engine.bench.few_bits import KV8
from mini_engine.cuda.attention import HostAttention
from mini_engine.cuda.inputs import StepInputs
from mini_engine.cuda.kv_scales import measured_scales
from mini_engine.cuda.model import KVCache, Model
from mini_engine.cuda.weights import load_weights
from mini_engine.engine.generation import SHIPPED
from mini_engine.model.config import ModelConfig
from mini_engine.model.tokenizer import Tokenizer

# Frozen before the first measurement on a GPU, from the arithmetic of rounding and not from a run.
# A code is off by at most half a scale, uniformly: 1/254 of a row's largest number in int8, and
# 1/30 of a group's range in int4. In numbers of standard deviation (the largest of a row of 160 is
# about 3 of them, of a group of 128 the range about 5) that is an rms error of 0.7% of each weight
# in int8 and of 10% in int4. The error of a sum is as large a share of it, and KL is about half of
# the squared error of the logits, which are a few units large and go through four layers, eight
# sums in a row: 0.5 · 8 · (3 · 0.007)² = 0.002 nats, and 0.5 · 8 · (3 · 0.1)² = 0.36.
# Of a key or a value in e4m3 rounding takes at most 1/16, and in the rms 1/16 · √(1/3) = 3.6% where
# a binade begins, in K and in V of four layers: 0.5 · 8 · (3 · 0.036)² = 0.047. (With the rms over
# a whole binade, 2.6%, it is 0.024, which is what the text then took: expected, so no limit.)
# Perplexity may grow as much as KL says: exp(0.002), exp(0.36), exp(0.047).
LIMITS = {  # KL in nats, perplexity as a factor
    "int8": (0.002, 1.002),
    "int4": (0.36, 1.43),
    "kv8": (0.047, 1.048),
}

TEXT = """Return a list of the names of all files in the given directory. If the path is not a
directory, raise an error. The optional argument is a function that is called for each name and
returns true if the name is to be kept. The order of the list is not defined.

Read up to n bytes from the stream and return them as a bytes object. If n is not given or is
negative, read until the end of the file. The result may be shorter than n if the end is reached.

Create a new object of this class from a string. The string must have the form of a number with an
optional sign. A value error is raised if it cannot be converted.
"""


@dataclass(frozen=True)
class Quality:
    """Of the fixed text."""

    few_bits: str
    tokens: int
    kl: float  # nats, the mean over the tokens
    perplexity: float
    plain_perplexity: float

    @property
    def passed(self) -> bool:
        kl, factor = LIMITS[self.few_bits]
        return self.kl <= kl and self.perplexity <= factor * self.plain_perplexity

    @property
    def reason(self) -> str:
        """Why it did not pass, in one line; "" when it did."""
        if self.passed:
            return ""
        kl, factor = LIMITS[self.few_bits]
        return (
            f"quality of {self.few_bits}: KL {self.kl:.3g} nats, allowed {kl:g}; perplexity "
            f"{self.perplexity:.2f} against {self.plain_perplexity:.2f}, allowed {factor:g} times"
        )


@cache
def quality_of(few_bits: str) -> Quality:
    """Both models read the text. It takes a second."""
    config = ModelConfig.from_folder(SHIPPED)
    ids = Tokenizer(SHIPPED, config.eos_token_ids).encode(TEXT)
    plain, ours = (_log_probabilities(config, kind, ids) for kind in (None, few_bits))
    following = torch.tensor(ids[1:])[:, None]
    losses = [-one[:-1].gather(1, following).mean() for one in (plain, ours)]
    kl = (plain.exp() * (plain - ours)).sum(-1).mean()
    perplexity = [float(loss.exp()) for loss in losses]
    return Quality(few_bits, len(ids), float(kl), perplexity[1], perplexity[0])


@torch.no_grad()
def _log_probabilities(config: ModelConfig, few_bits: str | None, ids: list[int]) -> Tensor:
    """Of every next token after each of the text, (T, V) float64."""
    device, count, block = torch.device("cpu"), len(ids), 16
    blocks = -(-count // block)
    quant = None if few_bits == KV8 else few_bits
    weights = load_weights(config, SHIPPED, device, torch.float32, quant)
    scales = measured_scales(weights) if few_bits == KV8 else ()
    cache = KVCache.allocate(config, 1 + blocks, block, device, torch.float32, scales)
    model = Model(weights, cache)

    def row(*numbers: int) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int32)

    inputs = StepInputs(
        input_ids=row(*ids),
        positions=row(*range(count)),
        slot_mapping=row(*range(block, block + count)),
        query_lens=row(count),
        context_lens=row(count),
        last_rows=row(*range(count)),
        block_table=row(*range(1, 1 + blocks))[None],
    )
    logits, _ = model.head(model.body(inputs, HostAttention((count,), (count,), block)), inputs)
    return logits.double().log_softmax(-1)
