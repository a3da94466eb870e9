"""`quantization_config`: what is read, and what is refused by the name of its field."""

from __future__ import annotations

from typing import Any

import pytest

from mini_engine.files import typed
from mini_engine.model.quantization import StoredQuantization, is_fp8

AWQ: dict[str, Any] = {
    "quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": True,
    "modules_to_not_convert": None,
}  # fmt: skip
GPTQ: dict[str, Any] = {
    "quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True,
    "checkpoint_format": "gptq", "damp_percent": 0.01, "true_sequential": True, "lm_head": False,
}  # fmt: skip


def read(config: dict[str, Any]) -> StoredQuantization:
    return typed(StoredQuantization, config, "c.json", more=True)


def test_the_usual_files_are_read() -> None:
    assert read(AWQ) == StoredQuantization(quant_method="awq", bits=4, group_size=128)
    assert read(AWQ | {"modules_to_not_convert": ["lm_head"]}) == read(AWQ)
    assert read(GPTQ | {"group_size": -1}).group_size == -1


def test_only_the_first_format_of_gptq_stores_zeros_less_by_one() -> None:
    assert read(GPTQ).zeros_are_less_by == 1
    assert read(GPTQ | {"checkpoint_format": None}).zeros_are_less_by == 1
    assert read(GPTQ | {"checkpoint_format": "gptq_v2"}).zeros_are_less_by == 0
    assert read(AWQ).zeros_are_less_by == 0


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}, True),
        ({"quant_method": "compressed-tensors", "format": "float-quantized"}, True),
        ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, False),
        (AWQ, False),
    ],
)
def test_fp8_is_told_by_method_and_format(fields: dict[str, Any], expected: bool) -> None:
    assert is_fp8(fields) == expected


@pytest.mark.parametrize(
    ("changed", "value"),
    [
        (AWQ | {"quant_method": "bitsandbytes"}, "quant_method is 'bitsandbytes'"),
        ({"bits": 4, "group_size": 128}, "quant_method is missing"),
        (AWQ | {"bits": 3}, "bits is 3"),
        (GPTQ | {"bits": "4"}, "bits is '4'"),
        (AWQ | {"group_size": 32}, "group_size is 32"),
        (GPTQ | {"group_size": 0}, "group_size is 0"),
        (AWQ | {"version": "gemv"}, "version is 'gemv'"),
        (AWQ | {"zero_point": False}, "zero_point is False"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'"),
    ],
)
def test_what_is_not_read_is_refused_by_the_name_of_its_field(
    changed: dict[str, Any], value: str
) -> None:
    with pytest.raises(ValueError, match=f"^c.json: {value}"):
        read(changed)
