"""A decode step on fewer bits: the same requests, with weights or a cache in another format.

In:  a `DecodeSetup` in the model's own dtype, and the name of a format: "int8" or "int4" for the
     weights, "kv8" for a KV cache in fp8.
Out: the setup with the plain model on it, and what the simulator counts for it.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from mini_engine.bench.decode_setup import DecodeSetup, in_fp8
from mini_engine.cuda.model import Model
from mini_engine.cuda.weights import QUANTS
from mini_engine.model.config import ModelConfig
from mini_engine.model.kv_fp8 import scale_for
from mini_engine.step.storage import Stored, stored_as

KV8 = "kv8"
FEW_BITS = (*QUANTS, KV8)
LARGEST = 8.0  # of a setup's keys and values, which are random, with a standard deviation of 1


def in_format(setup: DecodeSetup, name: str) -> DecodeSetup:
    """The setup with the plain model in this format: it writes out a quantised weight for each
    product, and widens what it reads from the cache."""
    weights, cache = setup.model.weights, setup.model.cache
    if name == KV8:
        scale = scale_for(LARGEST)
        shape, device = (2, setup.model.config.num_kv_heads), weights.embed.device
        scales = tuple(torch.full(shape, scale, device=device) for _ in cache.keys)
        return replace(setup, model=Model(weights, in_fp8(cache, scales)))
    return replace(setup, model=Model(weights.as_quantized(name), cache))


def stored_in(config: ModelConfig, name: str | None) -> Stored:
    """Its bytes, for the simulator; those of the model as it is for None."""
    return stored_as(config, kv_dtype="fp8") if name == KV8 else stored_as(config, name)
