"""Checkpoints that are quantised already: what `quantization_config` of a config.json says.

AWQ and GPTQ keep a code of 4 bits for each number, and a scale and a zero for each group of a row:
weight = (code - zero) · scale. K are the inputs of a matrix and N its outputs:

    AWQ    (AutoAWQ, "gemm")       qweight (K, N / 8), qzeros (groups, N / 8), scales (groups, N)
    GPTQ   (AutoGPTQ, GPTQModel)   qweight (K / 8, N), qzeros (groups, N / 8), scales (groups, N),
                                   g_idx (K,): the group of each input

`mini_engine/cuda/quantized_checkpoint.py` unpacks them. Field names: AutoAWQ's and GPTQModel's
configs, and `AwqConfig` and `GPTQConfig` of transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from mini_engine.files import in_short

SEGMENT = 128  # columns that share a scale in our own layout: groups are whole numbers of it
FLOATS, WORDS = ("F32", "F16", "BF16"), ("I32",)
Expected = tuple[tuple[int, ...], tuple[str, ...]]  # shape, dtypes


@dataclass(frozen=True, kw_only=True)
class StoredQuantization:
    """How the matrices of the layers are stored, in 4 bits; all else is plain. Raises ValueError,
    by the field's name, for groups that are not read."""

    quant_method: Literal["awq", "gptq"]
    bits: Literal[4]
    group_size: int  # inputs that share a scale; -1: all of a row
    version: Literal["gemm", "GEMM"] = "gemm"  # of AWQ
    zero_point: Literal[True] = True  # of AWQ
    checkpoint_format: Literal["gptq", "gptq_v2"] = "gptq"

    def __post_init__(self) -> None:
        if self.group_size != -1 and (self.group_size < SEGMENT or self.group_size % SEGMENT):
            raise ValueError(
                f"group_size is {in_short(self.group_size)}: expected -1 or a multiple of {SEGMENT}"
            )

    @property
    def zeros_are_less_by(self) -> int:
        """GPTQ's first format stores zero - 1."""
        return int(self.quant_method == "gptq" and self.checkpoint_format == "gptq")

    def tensors(self, weight: str, shape: tuple[int, ...]) -> dict[str, Expected]:
        """What stands in the place of the tensor "….weight" (N, K); "….g_idx" may be missing."""
        rows, width = shape
        groups = 1 if self.group_size < 0 else -(-width // self.group_size)
        words = (width, rows // 8) if self.quant_method == "awq" else (width // 8, rows)
        base = weight.removesuffix("weight")
        found: dict[str, Expected] = {
            f"{base}qweight": (words, WORDS),
            f"{base}qzeros": ((groups, rows // 8), WORDS),
            f"{base}scales": ((groups, rows), FLOATS),
        }
        return found | ({f"{base}g_idx": ((width,), WORDS)} if self.quant_method == "gptq" else {})


def is_fp8(fields: Mapping[str, object]) -> bool:
    """Whether a `quantization_config` says fp8, as Qwen's own files or llm-compressor's do."""
    method = fields.get("quant_method")
    return method == "fp8" or (
        method == "compressed-tensors" and fields.get("format") == "float-quantized"
    )
