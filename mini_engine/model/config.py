"""The shape of a model, read from a Hugging Face `config.json`.

In:  a checkpoint folder, the dictionary of its config.json, or the name of a known model.
Out: a frozen `ModelConfig`: sizes, RoPE, norms, what is tied, which tokens end a text.

    ModelConfig.from_folder("checkpoints/tiny-qwen3").hidden_size      # 160
    named_shape("qwen3-0.6b").num_parameters                           # 596_049_920

It reads three families of dense decoders: qwen2 and Qwen2.5 (bias on q, k, v), qwen3 (RMSNorm on
each head of q and k) and llama. A config with a feature that the engine does not compute is refused
by the feature's name, since the model would load and write nonsense.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mini_engine.files import read_object, typed
from mini_engine.model.quantization import StoredQuantization, read_quantization
from mini_engine.model.rope import RopeJson, RopeScaling, rope_frequencies

FAMILIES = ("qwen2", "qwen3", "llama")
DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
# What is beyond is a slip of the pen: the largest models so far have a context of 10^7 tokens and
# 126 layers, RoPE would turn by more than a float holds, the norm would see only its epsilon.
MAX_SIZE, MAX_LAYERS = 2**24, 1000
_BETWEEN = {
    "hidden_size": (1, MAX_SIZE), "intermediate_size": (1, MAX_SIZE), "num_layers": (1, MAX_LAYERS),
    "num_heads": (1, MAX_SIZE), "num_kv_heads": (1, MAX_SIZE), "head_dim": (1, MAX_SIZE),
    "vocab_size": (1, MAX_SIZE), "max_position_embeddings": (1, MAX_SIZE),
    "rope_theta": (1.0, 1e15), "rms_norm_eps": (1e-30, 0.1),
}  # fmt: skip


@dataclass(frozen=True)
class ModelConfig:
    """One dense decoder. Raises ValueError, naming the field, if the sizes do not fit together.

    `hidden_size` is the width of the residual stream. It may differ from num_heads * head_dim
    (Qwen3-0.6B: 1024 and 2048), so code must use `q_size` for attention.
    """

    name: str
    family: str  # "qwen2" | "qwen3" | "llama"
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int  # of q
    num_kv_heads: int  # of k and of v; divides num_heads
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    rope_theta: float
    rope_scaling: RopeScaling | None
    rms_norm_eps: float
    qkv_bias: bool
    qk_norm: bool
    tie_word_embeddings: bool
    dtype: str  # of the weights on the GPU: "float32" | "float16" | "bfloat16"
    eos_token_ids: tuple[int, ...]
    quantization: StoredQuantization | None = None  # of the checkpoint's matrices

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ValueError(_unsupported(self.family))
        for field, (least, most) in _BETWEEN.items():
            value = getattr(self, field)
            if not least <= value <= most:
                raise ValueError(f"{field} is {value!s:.60}, expected {least:,} to {most:,}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads {self.num_heads} is not a multiple of num_kv_heads "
                f"{self.num_kv_heads}: every KV head serves the same number of query heads"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim is {self.head_dim}, expected even: RoPE turns pairs")
        if self.dtype not in DTYPE_BYTES:
            raise ValueError(f"dtype is {self.dtype!r}, expected one of {', '.join(DTYPE_BYTES)}")
        for token in self.eos_token_ids:
            if not 0 <= token < self.vocab_size:
                raise ValueError(f"eos_token_id {token} is outside of vocab_size {self.vocab_size}")

    @property
    def q_size(self) -> int:
        """Columns of q: num_heads * head_dim."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Columns of k, and of v: num_kv_heads * head_dim."""
        return self.num_kv_heads * self.head_dim

    @property
    def group_size(self) -> int:
        """Query heads that share one KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def dtype_bytes(self) -> int:
        return DTYPE_BYTES[self.dtype]

    @property
    def num_parameters(self) -> int:
        """Elements of all weights; a tied head is counted once."""
        qkv = self.q_size + 2 * self.kv_size
        layer = 2 * self.hidden_size  # the two norms
        layer += qkv * self.hidden_size + self.hidden_size * self.q_size
        layer += 3 * self.hidden_size * self.intermediate_size  # gate, up, down
        layer += qkv if self.qkv_bias else 0
        layer += 2 * self.head_dim if self.qk_norm else 0
        vocabularies = 1 if self.tie_word_embeddings else 2
        matrices = vocabularies * self.vocab_size * self.hidden_size
        return matrices + self.num_layers * layer + self.hidden_size

    def rope_frequencies(self) -> tuple[float, ...]:
        """The angle in radians by which each pair of a head turns per position: head_dim / 2 floats
        (64-bit)."""
        return rope_frequencies(self.head_dim, self.rope_theta, self.rope_scaling)

    @classmethod
    def from_folder(cls, folder: str | Path) -> ModelConfig:
        """Read config.json, and the end-of-text ids of generation_config.json, if it has any.
        These take precedence, as in transformers: a chat model has more of them than its base.

        Raises ValueError, naming the file and the field.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise ValueError(
                f"{folder}: no such folder; expected a Hugging Face checkpoint folder "
                "(generate --backend cuda takes hub ids too)"
            )
        path = folder / "config.json"
        if not path.is_file():
            raise ValueError(f"{path}: missing; a checkpoint folder holds one beside its weights")
        config = cls.from_dict(read_object(path), str(path), folder.resolve().name)
        generation = folder / "generation_config.json"
        if not generation.is_file():
            return config
        ends = typed(_Ends, read_object(generation), str(generation), more=True).ids
        try:
            return replace(config, eos_token_ids=ends or config.eos_token_ids)
        except ValueError as error:
            raise ValueError(f"{generation}: {error}") from None

    @classmethod
    def from_dict(cls, d: Mapping[str, object], where: str, name: str = "") -> ModelConfig:
        """`d`: a parsed config.json. `where` starts each error message; `name` defaults to it."""
        try:
            if d.get("model_type") not in FAMILIES:
                raise ValueError(_unsupported(d.get("model_type")))
            read = typed(_ConfigJson, d, where, more=True)
        except ValueError as error:
            raise ValueError(str(error) if where in str(error) else f"{where}: {error}") from None
        try:
            return _config_of(read, name or where)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None


def named_shape(name: str) -> ModelConfig:
    """A known model by name, such as "qwen3-0.6b", in upper or lower case."""
    try:
        return SHAPES[name.lower()]
    except KeyError:
        raise ValueError(f"no shape named {name!r}: use one of {', '.join(SHAPES)}") from None


# ---------------------------------------------------------------- reading


@dataclass(frozen=True)
class _Ends:
    """What generation_config.json and config.json say of the end of a text."""

    eos_token_id: int | tuple[int, ...] = ()

    @property
    def ids(self) -> tuple[int, ...]:
        ends = self.eos_token_id
        return (ends,) if isinstance(ends, int) else ends


@dataclass(frozen=True, kw_only=True)
class _ConfigJson(_Ends):
    """The fields of a config.json that this engine reads, or has to refuse. One without a default
    here must be in the file: other defaults of transformers are the shape of some 7B model, so a
    missing size would give a wrong model instead of an error."""

    model_type: str
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
    rope_scaling: RopeJson | None = None  # transformers 4; 5 writes both in rope_parameters
    rope_parameters: RopeJson | None = None
    tie_word_embeddings: bool = False
    dtype: str | None = None  # transformers 5; 4 wrote torch_dtype
    torch_dtype: str = "float32"
    sliding_window: int | None = None
    use_sliding_window: bool | None = None
    hidden_act: str = "silu"
    quantization_config: dict[str, Any] | None = None


def _config_of(j: _ConfigJson, name: str) -> ModelConfig:
    """Raises ValueError for what is missing in this family, or not computed."""
    family, heads = j.model_type, j.num_attention_heads
    _refuse_what_is_not_computed(j)
    # Llama 1 lacks this field and has a KV head for each head.
    kv_heads = j.num_key_value_heads or (heads if family == "llama" else None)
    rope = j.rope_parameters or j.rope_scaling or RopeJson()
    # Llama 1 and 2 lack it and mean 10,000. Qwen means 1,000,000 and always has the field.
    theta = rope.rope_theta or j.rope_theta or (10_000.0 if family == "llama" else None)
    head_dim = j.head_dim
    if head_dim is None and family == "qwen3":
        head_dim = 128  # as in its class
    if head_dim is None and heads > 0 and j.hidden_size % heads == 0:
        head_dim = j.hidden_size // heads
    for field, value in (
        ("num_key_value_heads", kv_heads),
        ("rope_theta", theta),
        (f"hidden_size {j.hidden_size} is no multiple of {heads} heads, and head_dim", head_dim),
    ):
        if value is None:
            raise ValueError(f"{field} is missing")
    assert kv_heads
    assert theta
    assert head_dim is not None
    return ModelConfig(
        name=name,
        family=family,
        hidden_size=j.hidden_size,
        intermediate_size=j.intermediate_size,
        num_layers=j.num_hidden_layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=j.vocab_size,
        max_position_embeddings=j.max_position_embeddings,
        rope_theta=theta,
        rope_scaling=rope.scaling(),
        rms_norm_eps=j.rms_norm_eps,
        qkv_bias=family == "qwen2",
        qk_norm=family == "qwen3",
        tie_word_embeddings=j.tie_word_embeddings,
        dtype=j.dtype or j.torch_dtype,
        eos_token_ids=j.ids,
        quantization=read_quantization(j.quantization_config),
    )


def _refuse_what_is_not_computed(j: _ConfigJson) -> None:
    """Raises ValueError by the name of the field: the model would load and write nonsense."""
    # A bias or an expert that the engine does not know is a tensor without a place, which
    # `stored_tensors` refuses. Only a llama's window needs no switch to be in use.
    windows = j.model_type == "llama" if j.use_sliding_window is None else j.use_sliding_window
    if j.sliding_window and windows:
        raise ValueError("sliding_window is in use: every layer attends to all here")
    if j.hidden_act != "silu":
        raise ValueError(f"hidden_act is {j.hidden_act!r:.40}: only 'silu' is supported")


def _unsupported(family: object) -> str:
    return f"model_type {family!r:.60} is not supported: this engine runs {', '.join(FAMILIES)}"


# ---------------------------------------------------------------- known shapes


def _qwen3(name: str, hidden: int, inter: int, layers: int, heads: int, tied: bool) -> ModelConfig:
    """https://huggingface.co/Qwen/Qwen3-0.6B/blob/main/config.json, and -1.7B, -4B, -8B."""
    return ModelConfig(
        name, "qwen3", hidden, inter, layers, heads, num_kv_heads=8, head_dim=128,
        vocab_size=151_936, max_position_embeddings=40_960, rope_theta=1e6, rope_scaling=None,
        rms_norm_eps=1e-6, qkv_bias=False, qk_norm=True, tie_word_embeddings=tied,
        dtype="bfloat16", eos_token_ids=(151_645,),
    )  # fmt: skip


def _qwen2(
    name: str, hidden: int, inter: int, layers: int, heads: int, kv: int, context: int, vocab: int
) -> ModelConfig:
    """https://huggingface.co/Qwen/Qwen2.5-0.5B/blob/main/config.json, -1.5B, -3B, -7B."""
    return ModelConfig(
        name, "qwen2", hidden, inter, layers, heads, num_kv_heads=kv, head_dim=hidden // heads,
        vocab_size=vocab, max_position_embeddings=context, rope_theta=1e6, rope_scaling=None,
        rms_norm_eps=1e-6, qkv_bias=True, qk_norm=False, tie_word_embeddings=hidden < 3584,
        dtype="bfloat16", eos_token_ids=(151_643,),
    )  # fmt: skip


def _llama(
    name: str, hidden: int, inter: int, layers: int, heads: int, kv: int, head_dim: int,
    vocab: int = 128_256, context: int = 131_072, theta: float = 5e5,
    scaling: RopeScaling | None = None, eps: float = 1e-5, eos: int = 128_001, tied: bool = False,
) -> ModelConfig:  # fmt: skip
    """https://huggingface.co/meta-llama/Llama-3.2-1B/blob/main/config.json, Meta-Llama-3-8B,
    Llama-2-7b-hf."""
    return ModelConfig(
        name, "llama", hidden, inter, layers, heads, num_kv_heads=kv, head_dim=head_dim,
        vocab_size=vocab, max_position_embeddings=context, rope_theta=theta, rope_scaling=scaling,
        rms_norm_eps=eps, qkv_bias=False, qk_norm=False, tie_word_embeddings=tied,
        dtype="bfloat16", eos_token_ids=(eos,),
    )  # fmt: skip


_LLAMA_3_2 = RopeScaling(32.0, 1.0, 4.0, 8192)
SHAPES: dict[str, ModelConfig] = {
    shape.name: shape
    for shape in (
        _qwen3("qwen3-0.6b", 1024, 3072, 28, 16, tied=True),
        _qwen3("qwen3-1.7b", 2048, 6144, 28, 16, tied=True),
        _qwen3("qwen3-4b", 2560, 9728, 36, 32, tied=True),
        _qwen3("qwen3-8b", 4096, 12_288, 36, 32, tied=False),
        _qwen2("qwen2.5-0.5b", 896, 4864, 24, 14, 2, context=32_768, vocab=151_936),
        _qwen2("qwen2.5-1.5b", 1536, 8960, 28, 12, 2, context=131_072, vocab=151_936),
        _qwen2("qwen2.5-3b", 2048, 11_008, 36, 16, 2, context=32_768, vocab=151_936),
        _qwen2("qwen2.5-7b", 3584, 18_944, 28, 28, 4, context=131_072, vocab=152_064),
        _llama("llama-3.2-1b", 2048, 8192, 16, 32, 8, 64, scaling=_LLAMA_3_2, tied=True),
        _llama("llama-3-8b", 4096, 14_336, 32, 32, 8, 128, context=8192),
        _llama("llama-2-7b", 4096, 11_008, 32, 32, 32, 128, 32_000, 4096, theta=1e4, eos=2),
    )
}
