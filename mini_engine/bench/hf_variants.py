"""transformers as a variant: the same weights, the same keys and values, its own code.

In:  a `DecodeSetup`. Out: variants that decode with `transformers`, eagerly over a growing cache,
or with a static cache and torch.compile, the way its own documentation does it
(https://huggingface.co/docs/transformers/llm_optims, "Static kv-cache and torch.compile").

No weight is stored twice: the parameters of the transformers model are rows of our merged matrices.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mini_engine.bench.decode_setup import DecodeSetup, Variant, new_step
from mini_engine.cuda.graphs.backend import GraphBackend
from mini_engine.cuda.weights import Weights
from mini_engine.model.checkpoint import EMBED, FINAL_NORM, LM_HEAD, layer_parts, tensor_shapes
from mini_engine.model.config import ModelConfig

CLASSES = {"qwen2": "Qwen2", "qwen3": "Qwen3", "llama": "Llama"}


def no_transformers(_: GraphBackend) -> str | None:
    """Why these variants cannot run here, in one line; None where they can."""
    if importlib.util.find_spec("transformers") is None:
        return "transformers is not installed: pip install 'transformers>=5.17,<6'"
    return None


class HuggingFaceEager(Variant):
    """`model(...)` with a `DynamicCache`, then argmax."""

    def __init__(self, setup: DecodeSetup) -> None:
        super().__init__(setup)
        self.model = transformers_model(setup.model.weights)
        device = setup.backend.device
        self.input_ids = torch.zeros((setup.batch, 1), dtype=torch.long, device=device)
        self.positions = torch.zeros_like(self.input_ids)
        self.cache: Any = None

    def place(self, tokens: Tensor, context: int) -> None:
        self.input_ids.copy_(tokens[:, None])
        self.positions.fill_(context - 1)
        self._empty_cache()
        if context > 1:
            for layer, (keys, values) in enumerate(self.setup.cached(context - 1)):
                self.cache.update(keys, values, layer)

    def step(self) -> None:
        out = self.model(
            input_ids=self.input_ids,
            position_ids=self.positions,
            past_key_values=self.cache,
            use_cache=True,
        )
        logits: Tensor = out.logits[:, -1]  # (batch, vocab)
        best = logits.argmax(-1)
        self._logits, self._tokens = [logits], [best]
        self.input_ids.copy_(best[:, None])
        self.positions.add_(1)

    def feed(self, tokens: Tensor) -> None:
        self.input_ids.copy_(tokens[:, None])

    def release(self) -> None:
        super().release()
        self.cache, self.model = None, None

    def _empty_cache(self) -> None:
        self.cache = importlib.import_module("transformers").DynamicCache(config=self.model.config)


class HuggingFaceStatic(HuggingFaceEager):
    """`model.forward` compiled, with a `StaticCache` as large as the setup's room."""

    def __init__(self, setup: DecodeSetup, compiler: Callable[[Any], Any]) -> None:
        super().__init__(setup)
        self._compiler = compiler

    def prepare(self) -> None:
        """Compiles at the first step; CUDA graphs are recorded at the second, run from the third.

        The cache is filled first: that marks its addresses as static, without which there are no
        CUDA graphs (transformers/cache_utils.py, StaticLayer.lazy_initialization).
        """
        self.rewind()
        for tensor in (self.input_ids, self.positions):
            torch._dynamo.mark_static_address(tensor)
        self.model.forward = self._compiler(self.model.forward)
        for _ in range(3):
            self.step()

    def step(self) -> None:
        new_step()  # the last step's outputs may be overwritten
        super().step()

    def release(self) -> None:
        super().release()
        torch.compiler.reset()

    def _empty_cache(self) -> None:
        if self.cache is None:
            static = importlib.import_module("transformers").StaticCache
            self.cache = static(config=self.model.config, max_cache_len=self.setup.room)
        else:
            self.cache.reset()


def transformers_model(weights: Weights) -> Any:
    """The `...ForCausalLM` of these weights, in their dtype, on their device."""
    transformers = importlib.import_module("transformers")
    config = transformers_config(weights.config)
    build = getattr(transformers, f"{CLASSES[weights.config.family]}ForCausalLM")
    before = torch.get_default_dtype()
    torch.set_default_dtype(weights.embed.dtype)
    try:
        with torch.device(weights.embed.device):
            model = build(config)
    finally:
        torch.set_default_dtype(before)
    state = named_tensors(weights)
    missing, unknown = model.load_state_dict(state, strict=False, assign=True)
    if unknown or set(missing) - {LM_HEAD}:
        raise ValueError(f"transformers has other tensors: missing {missing}, unknown {unknown}")
    if weights.config.tie_word_embeddings:
        model.lm_head.weight = model.model.embed_tokens.weight
    return model.requires_grad_(False).eval()


def transformers_config(config: ModelConfig) -> Any:
    """Our shape as a transformers config."""
    c = config
    rope: dict[str, object] = {"rope_type": "default", "rope_theta": c.rope_theta}
    if c.rope_scaling is not None:
        rope |= {"rope_type": "llama3", **vars(c.rope_scaling)}
    transformers = importlib.import_module("transformers")
    return getattr(transformers, f"{CLASSES[c.family]}Config")(
        vocab_size=c.vocab_size,
        hidden_size=c.hidden_size,
        intermediate_size=c.intermediate_size,
        num_hidden_layers=c.num_layers,
        num_attention_heads=c.num_heads,
        num_key_value_heads=c.num_kv_heads,
        head_dim=c.head_dim,
        max_position_embeddings=c.max_position_embeddings,
        rms_norm_eps=c.rms_norm_eps,
        tie_word_embeddings=c.tie_word_embeddings,
        rope_parameters=rope,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )


def named_tensors(weights: Weights) -> dict[str, Tensor]:
    """Our merged matrices under Hugging Face's names: views of their rows."""
    config, shapes = weights.config, tensor_shapes(weights.config)
    named = {EMBED: weights.embed, FINAL_NORM: weights.final_norm}
    if not config.tie_word_embeddings:
        named[LM_HEAD] = weights.lm_head
    for index, layer in enumerate(weights.layers):
        for field, names in layer_parts(config, index).items():
            heights = [shapes[name][0] for name in names]
            named.update(zip(names, torch.split(getattr(layer, field), heights), strict=True))
    return named
