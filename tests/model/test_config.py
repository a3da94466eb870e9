"""config.py: what is read, and what is refused by name."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_engine.model.checkpoint import tensor_shapes
from mini_engine.model.config import SHAPES, Experts, ModelConfig, RopeScaling, named_shape
from mini_engine.step.capacity import check_context
from tests.support.checkpoint_helpers import num_parameters

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}

MOE = {"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2,
       "moe_intermediate_size": 8}  # fmt: skip


def config_json(**changes: Any) -> dict[str, Any]:
    """A valid config.json of a small Qwen3, as transformers 4 writes it; None removes a field."""
    fields: dict[str, Any] = {
        "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "eos_token_id": 7,
        "head_dim": 16, "hidden_act": "silu", "hidden_size": 48, "intermediate_size": 80,
        "max_position_embeddings": 64, "model_type": "qwen3", "num_attention_heads": 4,
        "num_hidden_layers": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-6,
        "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None,
        "tie_word_embeddings": True, "torch_dtype": "bfloat16", "use_sliding_window": False,
        "vocab_size": 100,
    }  # fmt: skip
    fields.update(changes)
    return {name: value for name, value in fields.items() if value is not None}


def read(**changes: Any) -> ModelConfig:
    return ModelConfig.from_dict(config_json(**changes), "config.json")


def predicted(**changes: Any) -> ModelConfig:
    return ModelConfig.from_dict(config_json(**changes), "config.json", predicted=True)


def write(folder: Path, name: str, value: object) -> None:
    (folder / name).write_text(json.dumps(value), "utf-8")


# ---------------------------------------------------------------- what is read


def test_every_field_comes_from_the_file() -> None:
    assert read() == ModelConfig(
        name="config.json", family="qwen3", hidden_size=48, intermediate_size=80, num_layers=2,
        num_heads=4, num_kv_heads=2, head_dim=16, vocab_size=100, max_position_embeddings=64,
        rope_theta=1e6, rope_scaling=None, rms_norm_eps=1e-6, qkv_bias=False, qk_norm=True,
        tie_word_embeddings=True, dtype="bfloat16", eos_token_ids=(7,),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("family", "bias", "norm"), [("qwen2", True, False), ("llama", False, False)]
)
def test_family_decides_bias_and_qk_norm(family: str, bias: bool, norm: bool) -> None:
    config = read(model_type=family)
    assert (config.qkv_bias, config.qk_norm) == (bias, norm)


def test_rope_parameters_of_transformers_5_are_read() -> None:
    rope = {"rope_type": "default", "rope_theta": 5000.0}
    assert read(rope_theta=None, rope_parameters=rope).rope_theta == 5000.0
    llama = read(model_type="llama", rope_theta=None, rope_parameters=LLAMA3 | {"rope_theta": 5e5})
    assert llama == read(model_type="llama", rope_theta=5e5, rope_scaling=LLAMA3)
    assert llama.rope_scaling == RopeScaling(32.0, 1.0, 4.0, 8192)


def test_dtype_is_read_under_its_new_and_its_old_name() -> None:
    assert read(torch_dtype="float16").dtype == "float16"
    assert read(torch_dtype=None, dtype="float16").dtype == "float16"
    assert read(torch_dtype=None).dtype == "float32"


def test_several_end_of_text_ids_are_kept() -> None:
    assert read(eos_token_id=[3, 9]).eos_token_ids == (3, 9)
    assert read(eos_token_id=None).eos_token_ids == ()


def test_llama_without_kv_heads_head_dim_and_theta_means_those_of_llama_1() -> None:
    config = read(model_type="llama", num_key_value_heads=None, head_dim=None, rope_theta=None)
    assert (config.num_kv_heads, config.head_dim, config.rope_theta) == (4, 12, 10_000.0)


def test_qwen3_without_head_dim_means_128_and_qwen2_shares_the_hidden_size() -> None:
    assert read(head_dim=None).head_dim == 128
    assert read(model_type="qwen2", head_dim=None).head_dim == 12


def test_sliding_window_that_is_not_in_use_is_ignored() -> None:
    # Qwen2.5's released files carry a window and switch it off.
    assert read(sliding_window=32768, use_sliding_window=False) == read()


@pytest.mark.parametrize("model_type", ["mistral", "phi3", "qwen2"])
def test_a_sliding_window_is_the_longest_context(model_type: str) -> None:
    """Up to there it hides no token, so the text is that of full attention."""
    windowed = predicted(model_type=model_type, sliding_window=32, use_sliding_window=True)
    assert (windowed.max_position_embeddings, windowed.sliding_window) == (32, 32)
    check_context(windowed, 32)
    with pytest.raises(ValueError, match="sliding window of 32"):
        check_context(windowed, 33)


def test_a_sliding_window_beyond_the_context_is_none() -> None:
    wide = read(model_type="mistral", sliding_window=64)
    assert wide == read(model_type="mistral") == read(model_type="llama")


YARN: dict[str, Any] = {"rope_type": "yarn", "factor": 4.0}
LONG: dict[str, Any] = {"type": "longrope", "long_factor": [1.0], "short_factor": [2.0]}


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_scaling": YARN},
        {"rope_scaling": LONG},
        {"rope_theta": None, "rope_parameters": YARN | {"rope_theta": 1e6}},
        {"rope_scaling": {"partial_rotary_factor": 0.5}},
    ],
    ids=str,
)
def test_a_prediction_takes_any_rope(changes: dict[str, Any]) -> None:
    assert replace(predicted(**changes), rope_theta=1e6) == read()


def test_folder_gives_name_and_generation_config_gives_the_ends(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    write(folder, "config.json", config_json())
    config = ModelConfig.from_folder(folder)
    assert (config.name, config.eos_token_ids) == ("my-model", (7,))
    write(folder, "generation_config.json", {"eos_token_id": [7, 8]})
    assert ModelConfig.from_folder(str(folder)).eos_token_ids == (7, 8)
    write(folder, "generation_config.json", {"do_sample": False})
    assert ModelConfig.from_folder(folder).eos_token_ids == (7,)


# ---------------------------------------------------------------- what is refused

REQUIRED = [
    "model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "vocab_size", "max_position_embeddings", "rms_norm_eps", "rope_theta",
]  # fmt: skip


@pytest.mark.parametrize("field", REQUIRED)
def test_missing_field_is_named_with_its_file(field: str) -> None:
    with pytest.raises(ValueError, match=f"^config.json: {field} "):
        read(**{field: None})


@pytest.mark.parametrize("field", REQUIRED)
def test_wrong_type_is_named_with_its_value(field: str) -> None:
    with pytest.raises(ValueError, match=rf"^config.json: {field} is \[8\]"):
        read(**{field: [8]})


@pytest.mark.parametrize("value", [0, -3, 48.0, 10**400], ids=range(4))
def test_a_size_that_no_model_has_is_refused(value: float) -> None:
    for field in REQUIRED[1:8]:
        name = field.replace("hidden_layers", "layers").replace("attention_heads", "heads")
        with pytest.raises(ValueError, match="^config.json: num_|" + name):
            read(**{field: value})


@pytest.mark.parametrize(
    ("changes", "value"),
    [
        ({"num_key_value_heads": 3}, "num_kv_heads 3"),
        ({"head_dim": 15}, "head_dim is 15"),
        ({"torch_dtype": "float8_e4m3fn"}, "float8_e4m3fn"),
        ({"eos_token_id": ["</s>"]}, "</s>"),
        ({"rope_theta": -1.0}, "rope_theta is -1"),
        ({"rms_norm_eps": math.nan}, "rms_norm_eps is nan"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config: quant_method"),
        ({"quantization_config": {"bits": 4}}, "quantization_config: quant_method None"),
        (
            {"quantization_config": {"quant_method": "gptq", "bits": 4}},
            "quantization_config: 'gptq'",
        ),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config: 'fp8'"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "linear"),
        ({"rope_scaling": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"rope_scaling": LLAMA3 | {"factor": "8"}}, "factor is '8'"),
        ({"rope_scaling": LLAMA3 | {"factor": 0.5}}, "0.5"),
        ({"rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}}, "1.0"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "factor is missing"),
        ({"rope_scaling": {"factor": 4.0}}, "low_freq_factor"),
        ({"rope_scaling": "llama3"}, "rope_scaling is 'llama3'"),
        *(({"model_type": family}, family) for family in ("gpt2", "mixtral", "gpt_oss", "phi3")),
        ({"model_type": "qwen3_moe"}, "num_experts is missing"),
        (MOE | {"num_experts_per_tok": 5}, "num_experts_per_tok is 5 of 4 experts"),
        (MOE | {"decoder_sparse_step": 2}, "decoder_sparse_step"),
        (MOE | {"mlp_only_layers": [0]}, "mlp_only_layers"),
    ],
    ids=str,
)
def test_what_the_engine_does_not_compute_is_refused(changes: dict[str, Any], value: str) -> None:
    with pytest.raises(ValueError, match=f"^config.json: .*{value}"):
        read(**changes)


def test_folder_errors_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nowhere"):
        ModelConfig.from_folder(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"config\.json"):
        ModelConfig.from_folder(tmp_path)
    for content in (b'{"hidden_size": \xff', b"[1, 2]", b'{"a": ' * 10**5, b"{}"):
        (tmp_path / "config.json").write_bytes(content)
        with pytest.raises(ValueError, match=r"config\.json"):
            ModelConfig.from_folder(tmp_path)


@pytest.mark.parametrize("count", ["num_experts", "num_local_experts"])
def test_a_mixture_is_read_from_files_of_transformers_4_and_5(count: str) -> None:
    changes = {**MOE, count: 6, "norm_topk_prob": True}
    if count == "num_local_experts":
        del changes["num_experts"]
    config = read(**changes)
    assert (config.family, config.qk_norm) == ("qwen3", True)
    assert config.experts == Experts(6, 2, 8, normalized=True)
    assert read(**MOE).experts == Experts(4, 2, 8, normalized=False)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 99))
def test_experts_touched_are_what_a_random_router_touches(
    tokens: int, count: int, seed: int
) -> None:
    active, rng = 1 + seed % count, np.random.default_rng(seed)
    experts = Experts(count, active, 8, normalized=True)
    drawn = [
        len({int(e) for _ in range(tokens) for e in rng.permutation(count)[:active]})
        for _ in range(200)
    ]
    assert abs(experts.touched(tokens) - np.mean(drawn)) < 5 * np.std(drawn) / 200**0.5 + 0.1
    assert experts.touched(1) == pytest.approx(active)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_ranks_share_every_matrix_and_no_norm(ranks: int) -> None:
    for name in ("qwen3-8b", "qwen3-30b-a3b"):
        whole = named_shape(name)
        mine, all_of_it = tensor_shapes(whole.shard(ranks)), tensor_shapes(whole)
        assert mine.keys() == all_of_it.keys()
        for tensor, shape in all_of_it.items():
            part = math.prod(shape) / math.prod(mine[tensor])
            kept = "norm" in tensor or "embed" in tensor or "mlp.gate.weight" in tensor
            kv = "k_proj" in tensor or "v_proj" in tensor
            assert part == (1 if kept else min(ranks, whole.num_kv_heads) if kv else ranks)


# ---------------------------------------------------------------- known shapes and arithmetic


@pytest.mark.parametrize(
    ("name", "weights_gb", "kv_kib_per_token"),
    [
        # Bytes of one decode step in bfloat16, counted from the released files.
        ("qwen3-0.6b", 1.192, 112),
        ("qwen3-1.7b", 3.441, 112),
        ("qwen2.5-0.5b", 0.988, 12),
        ("qwen2.5-1.5b", 3.087, 28),
        ("llama-3.2-1b", 2.472, 32),
    ],
)
def test_known_shapes_weigh_what_their_files_weigh(
    name: str, weights_gb: float, kv_kib_per_token: int
) -> None:
    config = named_shape(name)
    assert round(num_parameters(config) * config.dtype_bytes / 1e9, 3) == weights_gb
    kv_bytes = 2 * config.num_layers * config.kv_size * config.dtype_bytes
    assert kv_bytes == kv_kib_per_token * 1024


def test_names_of_shapes_ignore_case_and_unknown_ones_list_the_known() -> None:
    assert named_shape("Qwen3-0.6B") is SHAPES["qwen3-0.6b"]
    assert all(shape.name == name for name, shape in SHAPES.items())
    with pytest.raises(ValueError, match=r"no shape named 'gpt-4': use one of qwen3-0.6b, "):
        named_shape("gpt-4")


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama", "mistral", "phi3", "seed_oss"])
@pytest.mark.parametrize("tied", [True, False])
def test_transformers_counts_the_same_parameters(family: str, tied: bool) -> None:
    transformers = pytest.importorskip("transformers")
    fields = config_json(model_type=family, tie_word_embeddings=tied, pad_token_id=0)
    fields["attention_bias"] = family == "seed_oss"  # qwen2 has it whatever this says
    theirs = transformers.AutoConfig.for_model(**fields)
    model = transformers.AutoModelForCausalLM.from_config(theirs)
    ours = ModelConfig.from_dict(fields, "config.json", predicted=True)
    assert num_parameters(ours) == model.num_parameters()


@pytest.mark.parametrize("name", ["qwen3-0.6b", "qwen2.5-0.5b", "llama-3.2-1b"])
def test_frequencies_are_those_of_transformers(name: str) -> None:
    torch = pytest.importorskip("torch")
    rope_utils = pytest.importorskip("transformers.modeling_rope_utils")
    from transformers import LlamaConfig

    shape = named_shape(name)
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": shape.rope_theta}
    if shape.rope_scaling is not None:
        rope |= LLAMA3
    theirs = LlamaConfig(
        hidden_size=shape.num_heads * shape.head_dim,
        num_attention_heads=shape.num_heads,
        head_dim=shape.head_dim,
        rope_parameters=rope,
    )
    if shape.rope_scaling is None:
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

        expected = LlamaRotaryEmbedding(theirs).inv_freq
    else:
        expected, _ = rope_utils.ROPE_INIT_FUNCTIONS["llama3"](theirs, "cpu")
    ours = torch.tensor(shape.rope_frequencies(), dtype=torch.float64)
    # They compute in float32: a few units of its last place.
    assert ((ours - expected.double()).abs() / ours).max().item() < 1e-6


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        ({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}, "fp8"),
        ({"quant_method": "compressed-tensors", "format": "float-quantized"}, "fp8"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}, "int4"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False}, "int4"),
        ({}, ""),
    ],
)
def test_the_format_of_weights_in_few_bits_is_told_by_method_bits_and_format(
    stored: dict[str, object], expected: str
) -> None:
    assert predicted(quantization_config=stored).packed == expected


def test_the_share_of_a_rank_stays_its_share_where_nothing_more_is_shared() -> None:
    share = named_shape("qwen3-8b").shard(4)
    assert share.shard(1) == share
