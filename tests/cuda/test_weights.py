"""cuda/weights.py: the same folders as the simulator reads, as torch tensors; and random models."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

torch = pytest.importorskip("torch")

from mini_engine.cuda.weights import Weights, load_weights, random_weights  # noqa: E402
from mini_engine.model import checkpoint  # noqa: E402
from mini_engine.model.config import named_shape  # noqa: E402
from tests.support.checkpoint_helpers import num_parameters  # noqa: E402
from tests.support.torch_helpers import CPU, DEVICES, FAMILIES, TINY, LoneTorchModel  # noqa: E402

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def by_name(weights: Weights) -> dict[str, torch.Tensor | None]:
    """Every tensor of the model; an absent one is None."""
    named = {n: getattr(weights, n) for n in ("embed", "final_norm", "lm_head")}
    for i, layer in enumerate(weights.layers):
        named |= {f"{i}.{field.name}": getattr(layer, field.name) for field in fields(layer)}
    return named


# ---------------------------------------------------------------- loading


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, 3e38])
def test_a_number_that_cannot_be_meant_is_refused_by_its_tensor(
    wrong: float, tmp_path: Path
) -> None:
    rng, name = np.random.default_rng(3), "model.layers.1.mlp.down_proj.weight"
    tensors = {
        one: rng.standard_normal(shape).astype(np.float32)
        for one, shape in checkpoint.tensor_shapes(TINY).items()
    }
    tensors[name][2, 1] = wrong
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=rf"{name} has .*, not finite"):
        load_weights(TINY, tmp_path, CPU, torch.float32)


@pytest.mark.parametrize("wanted", DTYPES)
@pytest.mark.parametrize("stored", DTYPES)
@pytest.mark.parametrize("device", DEVICES)
def test_every_dtype_loads_into_every_other(
    device: str, stored: torch.dtype, wanted: torch.dtype, tmp_path: Path
) -> None:
    save_torch = pytest.importorskip("safetensors.torch").save_file
    torch.manual_seed(1)
    shapes = checkpoint.tensor_shapes(TINY)
    tensors = {name: torch.randn(shape).to(stored) for name, shape in shapes.items()}
    save_torch(tensors, str(tmp_path / "model.safetensors"))
    weights = load_weights(TINY, tmp_path, torch.device(device), wanted)
    for name, tensor in by_name(weights).items():
        assert tensor is None or (tensor.dtype, tensor.device.type) == (wanted, device), name  # type: ignore[attr-defined]
    assert torch.equal(weights.embed.cpu(), tensors[checkpoint.EMBED].to(wanted))
    q = tensors["model.layers.1.self_attn.q_proj.weight"].to(wanted)
    assert torch.equal(weights.layers[1].qkv[: TINY.q_size].cpu(), q)


# ---------------------------------------------------------------- random weights


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [True, False])
def test_random_weights_have_the_true_size(family: str, tied: bool) -> None:
    config = replace(FAMILIES[family], tie_word_embeddings=tied)
    weights = random_weights(config, CPU, torch.bfloat16, 0)
    tensors = {id(t): t for t in by_name(weights).values() if t is not None}
    assert sum(t.numel() for t in tensors.values()) == num_parameters(config)  # type: ignore[attr-defined]
    assert all(t.dtype == torch.bfloat16 and t.is_contiguous() for t in tensors.values())  # type: ignore[attr-defined]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", ["qwen3-0.6b", "qwen2.5-0.5b", "llama-3.2-1b"])
@pytest.mark.parametrize("device", DEVICES)
def test_random_weights_write_varied_text_that_hangs_on_its_context(
    device: str, shape: str, dtype: torch.dtype
) -> None:
    """An eighth of the width, and all the layers: over depth is where activations run away, or
    become the same for every token."""
    full = named_shape(shape)
    config = replace(
        full,
        hidden_size=full.hidden_size // 8,
        intermediate_size=full.intermediate_size // 8,
        vocab_size=2000,
        max_position_embeddings=32,
        eos_token_ids=(),
    )
    lone = LoneTorchModel(random_weights(config, torch.device(device), dtype, seed=5))
    logits = lone.logits([3, 1, 4, 1, 5, 9, 2, 6])
    # A normal law of deviation 1 in theory; far from it softmax is flat or knows one token only.
    assert np.isfinite(logits).all()
    assert 0.5 < logits.std() < 2
    text = [int(logits[-1].argmax())]
    for position in range(8, 24):
        text.append(int(lone.logits(text[-1:], position)[-1].argmax()))
    assert len(set(text)) > 10
    other = lone.logits([7, 1, 4, 1, 5, 9, 2, 6])
    assert np.abs(other[-1] - logits[-1]).max() > 0.1  # the first token is seen from the last
