"""A model on a small device, and steps for it built by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mini_engine.model.config import ModelConfig
from mini_engine.sim.device import Device
from mini_engine.sim.model import KVCache, Model, StepInputs
from mini_engine.sim.weights import Weights
from tests.support.checkpoint_helpers import lone_inputs
from tests.support.sim_helpers import small_device


class LoneModel:
    """One request on one model, its blocks handed out in a scattered order."""

    def __init__(
        self, config: ModelConfig, weights: Weights, *, block_size: int = 4, seed: int = 0
    ) -> None:
        self.config, self.block_size = config, block_size
        self.device: Device = small_device(megabytes=256)
        blocks = 1 + -(-config.max_position_embeddings // block_size)
        cache = KVCache.allocate(self.device, config, blocks, block_size, "float32")
        self.model = Model(self.device, config, weights, cache)
        self.table = 1 + np.random.default_rng(seed).permutation(blocks - 1)

    def logits(self, token_ids: Sequence[int], start: int = 0) -> np.ndarray:
        """Logits after each of `token_ids`, which stand at start, start + 1, … (T, V)"""
        arrays = lone_inputs(self.table, self.block_size, token_ids, start)
        device = self.device
        inputs = StepInputs(**{name: device.upload(array) for name, array in arrays.items()})
        hidden = self.model.body(inputs)
        logits = device.empty((len(token_ids), self.config.vocab_size))
        device.free(self.model.head(hidden, inputs.last_rows, logits))
        return device.read(logits)
