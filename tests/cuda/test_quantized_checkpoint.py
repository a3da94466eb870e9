"""AWQ and GPTQ folders, made here in their public formats, load as the weights that they stand for.

The packing below is written from the formats' own descriptions, number by number, and shares no
code with the engine: AutoAWQ's `gemm` (order 0, 2, 4, 6, 1, 3, 5, 7 along the outputs) and that of
AutoGPTQ (eight inputs a word; the first format stores zero - 1 in each).
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from safetensors.numpy import load_file, save_file  # noqa: E402

from mini_engine.cuda.quantized_matrix import QuantizedMatrix, dequantized  # noqa: E402
from mini_engine.cuda.weights import load_weights  # noqa: E402
from mini_engine.model.checkpoint import layer_parts, random_law, tensor_shapes  # noqa: E402
from mini_engine.model.config import ModelConfig  # noqa: E402
from mini_engine.sim import weights as sim_weights  # noqa: E402
from tests.support.torch_helpers import CPU, TINY  # noqa: E402

SHAPE = replace(
    TINY, hidden_size=128, intermediate_size=256, num_heads=4, num_kv_heads=2, head_dim=32
)
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
FORMATS: dict[str, dict[str, Any]] = {
    "awq": {"quant_method": "awq", "group_size": 128, "zero_point": True, "version": "gemm"},
    "gptq": {"quant_method": "gptq", "group_size": 128, "desc_act": False, "sym": False},
    "gptq-v2": {"quant_method": "gptq", "group_size": 256, "checkpoint_format": "gptq_v2"},
    "gptq-rows": {"quant_method": "gptq", "group_size": -1, "sym": True, "desc_act": True},
}
Tensors = dict[str, np.ndarray]


def words(nibbles: np.ndarray) -> np.ndarray:
    """(..., 8) from 0 to 15, the first in the lowest bits."""
    packed = sum(nibbles[..., i].astype(np.uint32) << np.uint32(4 * i) for i in range(8))
    return np.asarray(packed, np.uint32).view(np.int32)


def awq_words(outputs: np.ndarray) -> np.ndarray:
    """(n, N) -> (n, N / 8)."""
    return words(outputs.reshape(len(outputs), -1, 8)[..., AWQ_ORDER])


def stored(
    kind: dict[str, Any], codes: np.ndarray, zeros: np.ndarray, scales: np.ndarray
) -> Tensors:
    """codes (N, K); zeros and scales (N, groups)."""
    if kind["quant_method"] == "awq":
        parts = {"qweight": awq_words(codes.T), "qzeros": awq_words(zeros.T)}
    else:
        less = 0 if kind.get("checkpoint_format") == "gptq_v2" else 1
        inputs = codes.T.reshape(-1, 8, len(codes))  # eight inputs a word
        parts = {
            "qweight": words(np.moveaxis(inputs, 1, 2)),
            "qzeros": words((zeros.T - less).reshape(zeros.shape[1], -1, 8)),
        }
        size = kind["group_size"] if kind["group_size"] > 0 else codes.shape[1]
        parts["g_idx"] = (np.arange(codes.shape[1]) // size).astype(np.int32)
    return {**parts, "scales": scales.T}


def made(kind: dict[str, Any], folder: Path, config: ModelConfig = SHAPE) -> tuple[Path, Tensors]:
    """A folder, and the weights that its numbers stand for."""
    rng = np.random.default_rng(5)
    tensors: Tensors = {}
    plain: Tensors = {}
    for name, shape in tensor_shapes(config).items():
        mean, deviation = random_law(name, shape)
        if not name.startswith("model.layers.") or len(shape) == 1:
            plain[name] = tensors[name] = rng.normal(mean, deviation, shape).astype(np.float32)
            continue
        rows, width = shape
        size = width if kind["group_size"] < 0 else kind["group_size"]
        groups = -(-width // size)
        codes = rng.integers(0, 16, shape)
        zeros = rng.integers(1, 16, (rows, groups))
        if kind.get("sym"):
            zeros[:] = 8
        scales = (deviation / 4 * (0.5 + rng.random((rows, groups)))).astype(np.float16)
        for part, array in stored(kind, codes, zeros, scales).items():
            tensors[name.removesuffix("weight") + part] = np.ascontiguousarray(array)
        of = np.arange(width) // size
        plain[name] = (codes - zeros[:, of]) * scales.astype(np.float32)[:, of]
    save_file(tensors, folder / "model.safetensors")
    fields = {
        "model_type": "qwen3", "hidden_size": config.hidden_size, "num_hidden_layers": 2,
        "intermediate_size": config.intermediate_size, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32, "vocab_size": config.vocab_size,
        "max_position_embeddings": 32, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
        "tie_word_embeddings": True, "dtype": "float16", "quantization_config": kind | {"bits": 4},
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(fields))
    return folder, plain


@pytest.mark.parametrize("name", FORMATS)
def test_a_quantised_folder_is_the_weights_that_it_stands_for(name: str, tmp_path: Path) -> None:
    folder, plain = made(FORMATS[name], tmp_path)
    config = ModelConfig.from_folder(folder)
    weights = load_weights(config, folder, CPU, torch.float32)
    for index, layer in enumerate(weights.layers):
        for field, names in layer_parts(config, index).items():
            got = getattr(layer, field)
            if isinstance(got, QuantizedMatrix):
                assert (got.zeros is None) == bool(FORMATS[name].get("sym"))
                got = dequantized(got)
            wanted = np.concatenate([plain[one] for one in names])
            assert np.array_equal(got.numpy(), wanted.astype(np.float32)), field


def changed(folder: Path, name: str, array: np.ndarray | None) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors[name]
    save_file(tensors | ({} if array is None else {name: array}), folder / "model.safetensors")


def test_inputs_out_of_order_are_refused_and_a_missing_order_is_the_usual_one(
    tmp_path: Path,
) -> None:
    folder, _ = made(FORMATS["gptq"], tmp_path)
    config = ModelConfig.from_folder(folder)
    name = "model.layers.1.mlp.down_proj.g_idx"
    changed(folder, name, None)
    load_weights(config, folder, CPU, torch.float32)
    (tmp_path / "other").mkdir()
    folder, _ = made(FORMATS["gptq"], tmp_path / "other")
    changed(folder, name, (np.arange(256) % 2).astype(np.int32))
    with pytest.raises(ValueError, match=rf"{name} is not in order: desc_act"):
        load_weights(config, folder, CPU, torch.float32)


@pytest.mark.parametrize("number", [np.nan, np.inf])
@pytest.mark.parametrize("kind", ["awq", "gptq"])
def test_a_scale_that_is_no_number_is_refused_by_its_tensor(
    kind: str, number: float, tmp_path: Path
) -> None:
    folder, _ = made(FORMATS[kind], tmp_path)
    name = "model.layers.1.mlp.down_proj.scales"
    scales = load_file(folder / "model.safetensors")[name]
    scales[0, 3] = number
    changed(folder, name, scales)
    with pytest.raises(ValueError, match=name):
        load_weights(ModelConfig.from_folder(folder), folder, CPU, torch.float32)


def test_what_does_not_fit_the_config_is_named(tmp_path: Path) -> None:
    folder, _ = made(FORMATS["awq"], tmp_path)
    config = ModelConfig.from_folder(folder)
    with pytest.raises(ValueError, match="awq already: leave out --quant int8"):
        load_weights(config, folder, CPU, torch.float32, "int8")
    with pytest.raises(ValueError, match="simulated GPU does not read: use --backend cuda"):
        sim_weights.load_weights(config, folder)
    name = "model.layers.0.self_attn.q_proj.qzeros"
    changed(folder, name, np.zeros((1, 8), np.int32))
    with pytest.raises(ValueError, match=rf"{name} is I32 \(1, 8\), expected I32 \(1, 16\)"):
        load_weights(config, folder, CPU, torch.float32)
    changed(folder, name, None)
    with pytest.raises(ValueError, match=rf"{name} is missing"):
        load_weights(config, folder, CPU, torch.float32)
    (tmp_path / "other").mkdir()
    folder, _ = made(FORMATS["awq"], tmp_path / "other")
    changed(folder, "model.norm.weight", np.zeros(128, np.int32))
    with pytest.raises(ValueError, match=r"norm\.weight is I32"):
        load_weights(config, folder, CPU, torch.float32)
