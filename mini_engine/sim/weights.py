"""The weights of a model, read from a Hugging Face folder into float32 arrays.

In:  a `ModelConfig` and a folder with model.safetensors, or with model.safetensors.index.json and
     the shards that it names. F32, F16 and BF16 tensors; no torch, and never a pickle.
Out: `Weights`: q, k, v merged into one matrix and gate, up into another, since one wide kernel
     reads the same bytes as three narrow ones and pays for one launch.

Matrices are kept as the file has them, (out, in): y = x @ W.T.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize

from mini_engine.config import ModelConfig
from mini_engine.fields import Fields, read_json_object

Array = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """One decoder layer; q = num_heads * head_dim and kv = num_kv_heads * head_dim."""

    input_norm: Array  # (hidden,)
    qkv: Array  # (q + 2 kv, hidden): rows of q, then of k, then of v
    qkv_bias: Array | None  # (q + 2 kv,), qwen2 only
    q_norm: Array | None  # (head_dim,), qwen3 only: RMSNorm gains, the same for every head
    k_norm: Array | None  # (head_dim,), qwen3 only
    o: Array  # (hidden, q)
    post_norm: Array  # (hidden,)
    gate_up: Array  # (2 intermediate, hidden): rows of gate, then of up
    down: Array  # (hidden, intermediate)


@dataclass(frozen=True, eq=False)
class Weights:
    """A whole model. `lm_head` is the very array `embed` when the head is tied."""

    config: ModelConfig
    embed: Array  # (vocab, hidden)
    layers: tuple[LayerWeights, ...]
    final_norm: Array  # (hidden,)
    lm_head: Array  # (vocab, hidden)


def load_weights(config: ModelConfig, folder: str | Path) -> Weights:
    """Read and check every tensor. Raises ValueError, naming the file and the tensor, when the
    folder or its weights are missing, a file is cut short, a shard or a tensor is missing, a
    tensor has another shape or dtype, or there is a tensor that the model has no use for (weights
    that nobody reads mean a config of another model), but for the two kinds in `_is_harmless`.
    """
    folder = Path(folder)
    tensors = _read_folder(folder)
    expected = tensor_shapes(config)
    for name, shape in expected.items():
        if name not in tensors:
            raise ValueError(f"{folder}: tensor {name} is missing; expected shape {shape}")
        if tensors[name].shape != shape:
            raise ValueError(
                f"{tensors[name].file}: tensor {name} has shape {tensors[name].shape}, expected "
                f"{shape} from config.json"
            )
    for name in tensors.keys() - expected.keys():
        if not _is_harmless(name, config):
            raise ValueError(
                f"{tensors[name].file}: tensor {name} has no place in a {config.family} of "
                f"{config.num_layers} layers: does config.json belong to these weights?"
            )
    return _assemble(config, {name: tensors[name].float32() for name in expected})


def random_weights(config: ModelConfig, seed: int) -> Weights:
    """Weights of the right shapes that keep activations near 1, for tests.

    Gains and biases are random too, so that code that leaves one out gives other logits.
    """
    rng = np.random.default_rng(seed)
    tensors: dict[str, Array] = {}
    for name, shape in tensor_shapes(config).items():
        values = rng.standard_normal(shape, dtype=np.float32)
        if name.endswith("norm.weight"):
            tensors[name] = 1 + np.float32(0.2) * values
        elif len(shape) == 1:
            tensors[name] = np.float32(0.2) * values
        else:
            tensors[name] = values / np.float32(np.sqrt(shape[1]))
    return _assemble(config, tensors)


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor that a Hugging Face file of this model must hold: name -> shape."""
    hidden, inter, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for i in range(config.num_layers):
        layer = f"model.layers.{i}"
        shapes[f"{layer}.input_layernorm.weight"] = (hidden,)
        for part, rows in zip("qkv", (config.q_size, config.kv_size, config.kv_size), strict=True):
            shapes[f"{layer}.self_attn.{part}_proj.weight"] = (rows, hidden)
            if config.qkv_bias:
                shapes[f"{layer}.self_attn.{part}_proj.bias"] = (rows,)
        if config.qk_norm:
            shapes[f"{layer}.self_attn.q_norm.weight"] = (head_dim,)
            shapes[f"{layer}.self_attn.k_norm.weight"] = (head_dim,)
        shapes[f"{layer}.self_attn.o_proj.weight"] = (hidden, config.q_size)
        shapes[f"{layer}.post_attention_layernorm.weight"] = (hidden,)
        shapes[f"{layer}.mlp.gate_proj.weight"] = (inter, hidden)
        shapes[f"{layer}.mlp.up_proj.weight"] = (inter, hidden)
        shapes[f"{layer}.mlp.down_proj.weight"] = (hidden, inter)
    shapes["model.norm.weight"] = (hidden,)
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    return shapes


# ---------------------------------------------------------------- from named tensors to Weights


def _assemble(config: ModelConfig, tensors: dict[str, Array]) -> Weights:
    embed = tensors["model.embed_tokens.weight"]
    return Weights(
        config=config,
        embed=embed,
        layers=tuple(_layer(config, tensors, i) for i in range(config.num_layers)),
        final_norm=tensors["model.norm.weight"],
        lm_head=embed if config.tie_word_embeddings else tensors["lm_head.weight"],
    )


def _layer(config: ModelConfig, tensors: dict[str, Array], index: int) -> LayerWeights:
    def take(name: str) -> Array:
        # Popped, so that the parts of a merged matrix are freed layer by layer.
        return tensors.pop(f"model.layers.{index}.{name}")

    def merge(*names: str) -> Array:
        return np.concatenate([take(name) for name in names])

    attention = [f"self_attn.{part}_proj" for part in "qkv"]
    return LayerWeights(
        input_norm=take("input_layernorm.weight"),
        qkv=merge(*(f"{name}.weight" for name in attention)),
        qkv_bias=merge(*(f"{name}.bias" for name in attention)) if config.qkv_bias else None,
        q_norm=take("self_attn.q_norm.weight") if config.qk_norm else None,
        k_norm=take("self_attn.k_norm.weight") if config.qk_norm else None,
        o=take("self_attn.o_proj.weight"),
        post_norm=take("post_attention_layernorm.weight"),
        gate_up=merge("mlp.gate_proj.weight", "mlp.up_proj.weight"),
        down=take("mlp.down_proj.weight"),
    )


def _is_harmless(name: str, config: ModelConfig) -> bool:
    """RoPE frequencies, which old Llama files store and config.json gives; and the copy of the
    embedding that some writers store for a tied head. transformers ignores both."""
    tied_copy = config.tie_word_embeddings and name == "lm_head.weight"
    return tied_copy or name.endswith("rotary_emb.inv_freq")


# ---------------------------------------------------------------- from files to named tensors


@dataclass(frozen=True)
class _StoredTensor:
    file: Path
    name: str
    dtype: str  # as safetensors spells it: "F32", "BF16"
    shape: tuple[int, ...]
    data: bytes  # little-endian

    def float32(self) -> Array:
        """A float32 copy. F16 and BF16 are exact in it."""
        if self.dtype == "BF16":
            # A bfloat16 is the upper half of the float32 with the same value.
            bits = np.frombuffer(self.data, dtype="<u2").astype(np.uint32)
            values: Array = (bits << np.uint32(16)).view(np.float32)
        elif self.dtype in ("F16", "F32"):
            stored = np.frombuffer(self.data, dtype="<f2" if self.dtype == "F16" else "<f4")
            values = stored.astype(np.float32)
        else:
            raise ValueError(
                f"{self.file}: tensor {self.name} has dtype {self.dtype}, expected F32, F16 or "
                "BF16: use an unquantised checkpoint"
            )
        return values.reshape(self.shape)


def _read_folder(folder: Path) -> dict[str, _StoredTensor]:
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder; expected a Hugging Face checkpoint folder")
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return {tensor.name: tensor for tensor in _read_file(single)}
    if index.is_file():
        return _read_shards(index)
    raise ValueError(
        f"{folder}: no weights; expected model.safetensors or model.safetensors.index.json "
        "(.bin files are pickles and are not read)"
    )


def _read_shards(index: Path) -> dict[str, _StoredTensor]:
    """`weight_map` of the index: tensor name -> the file beside the index that holds it."""
    fields = Fields(read_json_object(index))
    try:
        weight_map = fields.object("weight_map")
        shard_of = {name: weight_map.text(name) for name in weight_map.names()}
    except ValueError as error:
        raise ValueError(f"{index}: {error}") from None
    tensors: dict[str, _StoredTensor] = {}
    for shard in sorted(set(shard_of.values())):
        # Only names, never paths: an index must not reach outside of its folder.
        if Path(shard).name != shard or not (index.parent / shard).is_file():
            named = next(name for name, file in shard_of.items() if file == shard)
            raise ValueError(f"{index}: shard {shard!r} is missing; it should hold {named}")
        tensors.update((tensor.name, tensor) for tensor in _read_file(index.parent / shard))
    for name, shard in shard_of.items():
        if name not in tensors:
            raise ValueError(f"{index.parent / shard}: tensor {name} is missing; the index has it")
    return tensors


def _read_file(path: Path) -> Iterator[_StoredTensor]:
    try:
        stored = deserialize(path.read_bytes())  # type: ignore[no-untyped-call]  # its stub
    except SafetensorError as error:
        raise ValueError(
            f"{path}: not a whole safetensors file ({error}): download or write it again"
        ) from None
    for name, info in stored:
        yield _StoredTensor(path, name, info["dtype"], tuple(info["shape"]), info["data"])
