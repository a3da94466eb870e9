"""The shape of a model, read from a Hugging Face `config.json`.

    ModelConfig.from_folder("checkpoints/tiny-qwen3").hidden_size      # 160
    named_shape("qwen3-0.6b").q_size                                   # 2048: 16 heads of 128

It reads three families of decoders: qwen2 and Qwen2.5 (bias on q, k, v), qwen3 (RMSNorm on each
head of q and k) and llama, and model types that are one of them by another name (`SAME_AS`). In
qwen3_moe a mixture of experts takes the place of each MLP. A feature that the engine does not
compute is refused by its name, since the model would load and write nonsense. With `predicted`, for
a shape whose weights nobody loads, those are accepted that do not change what a step launches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from mini_engine.files import in_short, read_object, typed

Dtype = Literal["float32", "float16", "bfloat16"]
SAME_AS = {  # model_type -> family
    "mistral": "llama", "phi3": "llama", "mixtral": "llama", "seed_oss": "qwen2",
    "gpt_oss": "qwen2", "qwen3_moe": "qwen3",
}  # fmt: skip
NOT_LOADED = {
    "phi3": "whose files hold q, k and v as one tensor",
    "mixtral": "whose tensors have names of their own",
    "gpt_oss": "whose attention sinks are not computed",
}
MIXTURES = ("qwen3_moe", "gpt_oss", "mixtral")
SLIDING = ("mistral", "phi3")  # a window needs no use_sliding_window
DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
LARGEST = 10**10  # of a size, and of RoPE's base


@dataclass(frozen=True)
class RopeScaling:
    """RoPE of rope_type "llama3"."""

    factor: float  # by which slow pairs turn more slowly
    low_freq_factor: float  # slow: fewer turns than this in the original context
    high_freq_factor: float  # fast, and left alone: more turns than this
    original_max_position_embeddings: int  # tokens of the original context

    def __post_init__(self) -> None:
        if not 0 < self.low_freq_factor < self.high_freq_factor or self.factor < 1:
            raise ValueError(f"{self}: expected factor >= 1, low_freq_factor < high_freq_factor")


@dataclass(frozen=True)
class Experts:
    """A mixture of experts: a router scores all MLPs of a layer for each token, and the best
    `active` of them compute it."""

    count: int
    active: int  # for each token
    width: int  # intermediate size of one
    normalized: bool  # are the weights of a token's experts scaled to sum to 1

    def __post_init__(self) -> None:
        if not (1 <= self.active <= self.count <= LARGEST and 1 <= self.width <= LARGEST):
            of = f"{in_short(self.active)} of {in_short(self.count)}"
            raise ValueError(f"num_experts_per_tok is {of} experts")

    def touched(self, tokens: float) -> float:
        """How many experts of a layer compute something for so many tokens, expected for a router
        that chooses each as often as any other."""
        return float(self.count * (1 - (1 - self.active / self.count) ** tokens))


@dataclass(frozen=True)
class ModelConfig:
    """One decoder, or what one of `ranks` GPUs has of it. Raises ValueError, naming the field, if
    the sizes do not fit together. `hidden_size` may differ from `q_size`, num_heads * head_dim."""

    name: str
    family: str  # "qwen2" | "qwen3" | "llama": whose step it is
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int  # of q
    num_kv_heads: int  # of k and of v; divides num_heads
    head_dim: int
    vocab_size: int
    max_position_embeddings: int  # at most the sliding window: up to there, it hides no token
    rope_theta: float
    rope_scaling: RopeScaling | None
    rms_norm_eps: float
    qkv_bias: bool
    qk_norm: bool
    tie_word_embeddings: bool
    dtype: str  # of the weights on the GPU, a `Dtype`
    eos_token_ids: tuple[int, ...]
    packed: str = ""  # the format of the checkpoint's matrices in few bits: predicted, never loaded
    sliding_window: int | None = None  # where it is what limits max_position_embeddings
    experts: Experts | None = None  # in place of each layer's MLP
    ranks: int = 1  # GPUs that compute a step together, each with 1/ranks of heads and MLPs

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if type(value) in (int, float) and not 0 < value <= LARGEST:
                raise ValueError(f"{name} is {in_short(value)}, expected above 0, to {LARGEST:,}")
        if self.num_heads % self.num_kv_heads:
            heads = f"num_heads {self.num_heads} is no multiple of num_kv_heads"
            raise ValueError(f"{heads} {self.num_kv_heads}")
        if self.head_dim % 2:
            raise ValueError(f"head_dim is {self.head_dim}, expected even: RoPE turns pairs")

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def group_size(self) -> int:
        return self.num_heads // self.num_kv_heads

    @property
    def dtype_bytes(self) -> int:
        return DTYPE_BYTES[self.dtype]

    @property
    def mlp_columns(self) -> int:
        """Numbers between the matrices of a layer's MLP, for each token."""
        e = self.experts
        return e.active * e.width if e else self.intermediate_size

    @property
    def vocab_rows(self) -> int:
        """Rows of the head on this rank; a vocabulary that cannot be shared is whole."""
        return self.vocab_size // (1 if self.vocab_size % self.ranks else self.ranks)

    def touched_share(self, tokens: float) -> float:
        """Of the experts' weights, what a step of so many tokens reads. 1 for a dense decoder."""
        return self.experts.touched(tokens) / self.experts.count if self.experts else 1.0

    def shard(self, ranks: int) -> ModelConfig:
        """What one of `ranks` GPUs (tensor parallel) has of the whole model: matrices cut by heads,
        intermediate size or vocabulary, norms whole. A KV head that must serve several ranks is on
        each of them. Raises ValueError for a number that does not divide."""
        if ranks == 1:  # a config that is one rank's already stays so
            return self
        inner = self.experts.width if self.experts else self.intermediate_size
        sizes = {"num_heads": self.num_heads, "intermediate_size": inner}
        if ranks < self.num_kv_heads:
            sizes["num_kv_heads"] = self.num_kv_heads
        for name, size in sizes.items():
            if size % ranks:
                raise ValueError(f"{self.name}: {name} {size} does not divide by {ranks} ranks")
        experts = self.experts and replace(self.experts, width=inner // ranks)
        return replace(
            self, num_heads=self.num_heads // ranks, experts=experts, ranks=ranks,
            num_kv_heads=max(self.num_kv_heads // ranks, 1),
            intermediate_size=self.intermediate_size if experts else inner // ranks,
        )  # fmt: skip

    def rope_frequencies(self) -> tuple[float, ...]:
        """Of each pair of a head, in radians per position (Su et al., RoFormer, arXiv 2104.09864,
        eq. 15): head_dim / 2 floats, 64-bit, fastest first. Llama 3 divides slow ones by `factor`
        and interpolates below the fast ones (transformers, `_compute_llama3_parameters`)."""
        scaling, pairs = self.rope_scaling, range(self.head_dim // 2)
        plain = tuple(self.rope_theta ** (-2 * i / self.head_dim) for i in pairs)
        if scaling is None:
            return plain
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        stretched = []
        for frequency in plain:
            turns = scaling.original_max_position_embeddings * frequency / (2 * math.pi)
            keep = min(1.0, max(0.0, (turns - low) / (high - low)))
            stretched.append(keep * frequency + (1 - keep) * frequency / scaling.factor)
        return tuple(stretched)

    @classmethod
    def from_folder(cls, folder: str | Path, *, predicted: bool = False) -> ModelConfig:
        """Read config.json, and the end-of-text ids of generation_config.json, if it has any: they
        take precedence, as in transformers. Raises ValueError, naming the file and the field."""
        path, generation = Path(folder) / "config.json", Path(folder) / "generation_config.json"
        if not path.is_file():
            raise ValueError(f"{path}: missing; a hub id is for generate --backend cuda")
        fields, name = read_object(path), Path(folder).resolve().name
        config = cls.from_dict(fields, str(path), name, predicted=predicted)
        if not generation.is_file():
            return config
        ends = typed(_Ends, read_object(generation), str(generation), more=True).ids
        return replace(config, eos_token_ids=ends or config.eos_token_ids)

    @classmethod
    def from_dict(
        cls, d: Mapping[str, object], where: str, name: str = "", *, predicted: bool = False
    ) -> ModelConfig:
        """`d`: a parsed config.json. `where` starts each error message; `name` defaults to it.
        `predicted`: the shape alone is asked for, so what only text depends on may be unknown."""
        read = typed(_ConfigJson, d, where, more=True)
        try:
            return _config_of(read, name or where, predicted)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None


def named_shape(name: str) -> ModelConfig:
    """A known model by name, such as "qwen3-0.6b", in upper or lower case."""
    try:
        return SHAPES[name.lower()]
    except KeyError:
        raise ValueError(f"no shape named {name!r}: use one of {', '.join(SHAPES)}") from None


def tiny_shape() -> ModelConfig:
    """A decoder so small that a CPU computes it in no time."""
    return replace(
        named_shape("qwen3-0.6b"), name="tiny", hidden_size=64, intermediate_size=96, num_layers=2,
        num_heads=4, num_kv_heads=2, head_dim=32, vocab_size=256, max_position_embeddings=512,
        eos_token_ids=(),
    )  # fmt: skip


@dataclass(frozen=True)
class _Ends:
    """What generation_config.json and config.json say of the end of a text."""

    eos_token_id: int | tuple[int, ...] = ()

    @property
    def ids(self) -> tuple[int, ...]:
        ends = self.eos_token_id
        return (ends,) if isinstance(ends, int) else ends


@dataclass(frozen=True)
class _RopeJson:
    """rope_scaling or rope_parameters of a config.json."""

    rope_type: Literal["default", "llama3"] | None = None
    type: Literal["default", "llama3"] | None = None  # the older key; transformers reads both
    rope_theta: float | None = None
    partial_rotary_factor: Literal[1] = 1  # RoPE turns whole heads here
    factor: float | None = None


@dataclass(frozen=True, kw_only=True)
class _ConfigJson(_Ends):
    """The fields of a config.json that this engine reads, or has to refuse. One without a default
    here must be in the file: transformers' own default is the shape of some 7B model."""

    model_type: Literal[
        "qwen2", "qwen3", "llama", "mistral", "phi3", "seed_oss", "qwen3_moe", "gpt_oss", "mixtral"
    ]
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    rope_theta: float | None = None
    rope_scaling: dict[str, Any] | None = None  # transformers 4; 5 writes both in rope_parameters
    rope_parameters: dict[str, Any] | None = None
    tie_word_embeddings: bool = False
    dtype: Dtype | None = None  # transformers 5; 4 wrote torch_dtype
    torch_dtype: Dtype = "float32"
    sliding_window: int | None = None
    use_sliding_window: bool = False
    hidden_act: Literal["silu"] = "silu"
    quantization_config: dict[str, Any] | None = None
    # of a mixture of experts
    num_experts: int | None = None
    num_local_experts: int | None = None
    num_experts_per_tok: int | None = None
    moe_intermediate_size: int | None = None
    norm_topk_prob: bool = False
    decoder_sparse_step: int = 1
    mlp_only_layers: tuple[int, ...] = ()


def _config_of(j: _ConfigJson, name: str, predicted: bool) -> ModelConfig:
    """Raises ValueError for what is missing in this family, or not computed. A bias or an expert
    that the engine does not know is a tensor without a place, which `stored_tensors` refuses."""
    family, heads = SAME_AS.get(j.model_type, j.model_type), j.num_attention_heads
    rope, scaling, packed = _RopeJson(), None, _packed(j.quantization_config or {})
    try:
        key = "rope_parameters" if j.rope_parameters else "rope_scaling"
        said = getattr(j, key) or {}
        rope = typed(_RopeJson, said, key, more=True)
        if rope.factor is not None or "llama3" in (rope.rope_type, rope.type):
            scaling = typed(RopeScaling, said, key, more=True)
        if j.model_type in NOT_LOADED:
            raise ValueError(f"model_type is {j.model_type!r}, {NOT_LOADED[j.model_type]}")
        if stored := j.quantization_config:
            method = stored["quant_method"]
            raise ValueError(f"quantization_config: {method!r}, whose weights are not read")
    except ValueError as error:
        if not predicted:
            told = "crossover, capacity and explain predict its times; nothing here writes its text"
            raise ValueError(f"{error} ({told})") from None
    theta, kv_heads, head_dim = rope.rope_theta or j.rope_theta, j.num_key_value_heads, j.head_dim
    if predicted or family == "llama":  # Llama 1 and 2 lack the base and mean 10,000
        theta = theta or 10_000.0
    if j.model_type in ("llama", "phi3") and kv_heads is None:  # Llama 1 has one for each head
        kv_heads = heads
    if theta is None or kv_heads is None:
        raise ValueError(f"{'rope_theta' if theta is None else 'num_key_value_heads'} is missing")
    if head_dim is None:
        own = j.model_type in ("qwen3", "seed_oss", "qwen3_moe")
        head_dim = 128 if own else j.hidden_size // max(heads, 1)
    window = j.sliding_window if j.use_sliding_window or j.model_type in SLIDING else None
    longest = min(j.max_position_embeddings, window or j.max_position_embeddings)
    return ModelConfig(
        name, family, j.hidden_size, j.intermediate_size, j.num_hidden_layers,
        num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim,
        vocab_size=j.vocab_size, max_position_embeddings=longest,
        rope_theta=theta, rope_scaling=scaling, rms_norm_eps=j.rms_norm_eps,
        qkv_bias=family == "qwen2", qk_norm=family == "qwen3",
        tie_word_embeddings=j.tie_word_embeddings, dtype=j.dtype or j.torch_dtype,
        eos_token_ids=j.ids, packed=packed,
        sliding_window=window if longest < j.max_position_embeddings else None,
        experts=_experts_of(j) if j.model_type in MIXTURES else None,
    )  # fmt: skip


def _packed(stored: Mapping[str, object]) -> str:
    """The format of a `quantization_config`, by its name in step/storage.py; "" for none. Raises
    ValueError for one that is not known there."""
    method = stored.get("quant_method")
    formats = {"fp8": "fp8", "mxfp4": "mxfp4"}
    if stored.get("bits") == 4:
        formats |= {"awq": "int4", "gptq": "int4"}
    if stored.get("format") == "float-quantized":  # as llm-compressor writes it
        formats |= {"compressed-tensors": "fp8"}
    if stored and method not in formats:
        said = f"quant_method {in_short(method)}, bits {in_short(stored.get('bits'))}"
        raise ValueError(f"quantization_config: {said}: expected fp8, mxfp4, awq or gptq of 4 bits")
    return formats[str(method)] if stored else ""


def _experts_of(j: _ConfigJson) -> Experts:
    """Raises ValueError for what is missing, and for layers without experts."""
    if j.decoder_sparse_step != 1 or j.mlp_only_layers:
        raise ValueError("decoder_sparse_step, mlp_only_layers: not every layer has experts")
    own = j.model_type == "qwen3_moe"
    sizes: dict[str, Any] = {
        "num_experts": j.num_experts or j.num_local_experts,
        "num_experts_per_tok": j.num_experts_per_tok,
        "moe_intermediate_size": j.moe_intermediate_size if own else j.intermediate_size,
    }
    if missing := [name for name, size in sizes.items() if size is None]:
        raise ValueError(f"{missing[0]} is missing")
    count, active, width = sizes.values()
    return Experts(count, active, width, j.norm_topk_prob or not own)


# Of released models, with the address of each file.
_PATH = Path(__file__).with_name("shapes.json")
SHAPES = {
    name: ModelConfig.from_dict(fields, f"{_PATH}: {name}", name, predicted=True)  # type: ignore[arg-type]
    for name, fields in read_object(_PATH).items()
}
