"""Hugging Face checkpoint folders: which tensors a model has, and where they are stored.

A folder has model.safetensors, or model.safetensors.index.json and its shards; never a pickle.
`layer_parts` says which tensors of a layer are stacked by rows: one wide kernel reads the same
bytes as several narrow ones and takes one launch.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from mini_engine.files import read_object, typed
from mini_engine.model.config import ModelConfig

EMBED, FINAL_NORM, LM_HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
DTYPES = ("F32", "F16", "BF16")
LARGEST = 1e18  # of a weight's number: one of 2e19 has no square in float32


@dataclass(frozen=True)
class StoredTensor:
    """Bytes start .. stop - 1 of a safetensors file, little-endian."""

    file: Path
    name: str
    dtype: str  # as safetensors spells it: "F32", "F16", "BF16"
    shape: tuple[int, ...]
    start: int
    stop: int

    def raw(self) -> NDArray[np.uint8]:
        """The bytes, memory-mapped: read when first touched. Writes stay in memory."""
        size = self.stop - self.start
        return np.memmap(self.file, np.uint8, mode="c", offset=self.start, shape=(size,))


def stored_tensors(config: ModelConfig, folder: str | Path) -> dict[str, StoredTensor]:
    """Every tensor of the model by name, not yet read. Raises ValueError, naming file and tensor,
    for what is missing, cut short, or of another shape or dtype, and for a tensor that the model
    does not use: its config may be another model's. Two are harmless: RoPE frequencies in old Llama
    files, and a tied head's copy of the embedding."""
    folder = Path(folder)
    found = _read_folder(folder)
    expected = tensor_shapes(config)
    for name, shape in expected.items():
        if name not in found:
            raise ValueError(f"{folder}: tensor {name} is missing; expected shape {shape}")
        tensor = found[name]
        if tensor.shape != shape or tensor.dtype not in DTYPES:
            wanted = f"{' or '.join(DTYPES)} {shape} from config.json"
            found_as = f"tensor {name} is {tensor.dtype} {tensor.shape}"
            raise ValueError(f"{tensor.file}: {found_as}, expected {wanted}")
    for name in found.keys() - expected.keys():
        tied_copy = config.tie_word_embeddings and name == LM_HEAD
        if not tied_copy and not name.endswith("rotary_emb.inv_freq"):
            no_place = f"has no place in a {config.family} of {config.num_layers} layers"
            words = f"tensor {name} {no_place}: does config.json belong to these weights?"
            raise ValueError(f"{found[name].file}: {words}")
    return {name: found[name] for name in expected}


def layer_parts(config: ModelConfig, index: int) -> dict[str, dict[str, tuple[int, ...]]]:
    """The weights of layer `index`: field of `LayerWeights` -> name and shape of the tensors whose
    rows it stacks, in this order. Names begin with `model.layers.INDEX.`, matrices are (out, in):

        input_norm, post_norm   input_layernorm.weight, post_attention_layernorm.weight
        qkv                     self_attn.q_proj.weight, then k_proj and v_proj
        qkv_bias                self_attn.q_proj.bias, then k_proj and v_proj
        q_norm, k_norm          self_attn.q_norm.weight, self_attn.k_norm.weight: RMSNorm of a head
        o                       self_attn.o_proj.weight
        gate_up                 mlp.gate_proj.weight, then up_proj
        down                    mlp.down_proj.weight

    A mixture of experts has the same matrices of each expert, one expert's rows under another's:

        router                  mlp.gate.weight: (experts, hidden)
        gate_up                 mlp.experts.0.gate_proj.weight, then its up_proj, then those of 1
        down                    mlp.experts.0.down_proj.weight, then that of 1

    Fields that the model lacks are left out: `config.qkv_bias` and `config.qk_norm` say whether it
    has them (of the families, only qwen2 has the biases, and only qwen3 the norms of q and k).
    """
    layer, hidden, inter = f"model.layers.{index}", config.hidden_size, config.intermediate_size
    attention, head_dim = f"{layer}.self_attn", config.head_dim
    rows = {"q": config.q_size, "k": config.kv_size, "v": config.kv_size}
    parts: dict[str, dict[str, tuple[int, ...]]] = {
        "input_norm": {f"{layer}.input_layernorm.weight": (hidden,)},
        "qkv": {f"{attention}.{part}_proj.weight": (rows[part], hidden) for part in rows},
    }
    if config.qkv_bias:
        parts["qkv_bias"] = {f"{attention}.{part}_proj.bias": (rows[part],) for part in rows}
    if config.qk_norm:
        parts["q_norm"] = {f"{attention}.q_norm.weight": (head_dim,)}
        parts["k_norm"] = {f"{attention}.k_norm.weight": (head_dim,)}
    parts["o"] = {f"{attention}.o_proj.weight": (hidden, config.q_size)}
    parts["post_norm"] = {f"{layer}.post_attention_layernorm.weight": (hidden,)}
    mlps = [f"{layer}.mlp"]
    if config.experts:
        parts["router"] = {f"{layer}.mlp.gate.weight": (config.experts.count, hidden)}
        mlps = [f"{layer}.mlp.experts.{expert}" for expert in range(config.experts.count)]
        inter = config.experts.width
    parts["gate_up"] = {
        f"{mlp}.{part}_proj.weight": (inter, hidden) for mlp in mlps for part in ("gate", "up")
    }
    parts["down"] = {f"{mlp}.down_proj.weight": (hidden, inter) for mlp in mlps}
    return parts


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor that a Hugging Face checkpoint of this model must have: name -> shape.

    Those of all layers (`layer_parts`), the embedding `EMBED`, the norm behind the last layer
    `FINAL_NORM`, and the head `LM_HEAD`, unless it is tied: then the embedding is the head.
    """
    shapes: dict[str, tuple[int, ...]] = {EMBED: (config.vocab_size, config.hidden_size)}
    for index in range(config.num_layers):
        for tensors in layer_parts(config, index).values():
            shapes |= tensors
    shapes[FINAL_NORM] = (config.hidden_size,)
    if not config.tie_word_embeddings:
        shapes[LM_HEAD] = (config.vocab_rows, config.hidden_size)
    return shapes


def random_law(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Mean and standard deviation of a random stand-in for this tensor. Matrices keep activations
    and logits near 1 at any width, except o: random attention is close to a mean over the context,
    and at full strength the same token would follow each."""
    if name.endswith("norm.weight"):
        return 1.0, 0.2
    if len(shape) == 1:
        return 0.0, 0.2
    strength = 0.3 if name.endswith("o_proj.weight") else 1.0
    return 0.0, strength * float(shape[1]) ** -0.5


def check_numbers(tensor: StoredTensor, least: float, most: float) -> None:
    """Raises ValueError for a least and largest number (NaN is both) that make every token NaN."""
    if not -LARGEST <= least <= most <= LARGEST:
        words = f"tensor {tensor.name} has {least:g} to {most:g}, not finite"
        raise ValueError(f"{tensor.file}: {words}")


@dataclass(frozen=True)
class _Index:
    """model.safetensors.index.json."""

    weight_map: dict[str, str]  # tensor name -> file beside the index


def _read_folder(folder: Path) -> dict[str, StoredTensor]:
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return _read_header(single)
    if not index.is_file():
        raise ValueError(f"{folder}: no weights; expected model.safetensors or {index.name}")
    file_of = typed(_Index, read_object(index), str(index), more=True).weight_map
    shards = {file: _read_header(folder / file) for file in sorted({*file_of.values()})}
    for name, file in file_of.items():
        if name not in shards[file]:
            raise ValueError(f"{folder / file}: tensor {name} is missing; the index has it")
    return {name: shards[file][name] for name, file in file_of.items()}


def _read_header(path: Path) -> dict[str, StoredTensor]:
    """The file's tensors: 8 bytes of header length, a JSON header, then data at its offsets
    (https://huggingface.co/docs/safetensors/index#format)."""
    try:
        with safe_open(path, framework="np"):  # checks header, offsets, shapes, and the length
            pass
    except SafetensorError as error:
        raise ValueError(f"{path}: not a whole safetensors file ({error})") from None
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    found = {}
    for name, entry in header.items():
        start, stop = (8 + length + offset for offset in entry["data_offsets"])
        found[name] = StoredTensor(path, name, entry["dtype"], tuple(entry["shape"]), start, stop)
    return found
