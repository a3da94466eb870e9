"""Checkpoints that are quantised already: what `quantization_config` of a config.json says.

In:  the fields of `quantization_config`.
Out: `StoredQuantization`: AWQ or GPTQ, and which tensors stand in the place of a weight.

Both keep a code of 4 bits for each number, and a scale and a zero for each group of a row:
weight = (code - zero) · scale. K are the inputs of a matrix and N its outputs:

    AWQ    (AutoAWQ, "gemm")       qweight (K, N / 8), qzeros (groups, N / 8), scales (groups, N)
    GPTQ   (AutoGPTQ, GPTQModel)   qweight (K / 8, N), qzeros (groups, N / 8), scales (groups, N),
                                   g_idx (K,): the group of each input

`mini_engine/cuda/quantized_checkpoint.py` unpacks them. A format that is not read is refused by the
name of its field, and other modules than ours by their tensors, which have no place. Field
names: AutoAWQ's and GPTQModel's configs, and `AwqConfig` and `GPTQConfig` of transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mini_engine.files import typed

FIELD = "quantization_config"
METHODS = ("awq", "gptq")
SEGMENT = 128  # columns that share a scale in our own layout: groups are whole numbers of it
FLOATS, WORDS = ("F32", "F16", "BF16"), ("I32",)
Expected = tuple[tuple[int, ...], tuple[str, ...]]  # shape, dtypes


@dataclass(frozen=True)
class StoredQuantization:
    """How the matrices of the layers are stored, in 4 bits; all else is plain."""

    method: str  # "awq" | "gptq"
    group: int  # inputs that share a scale; -1: all of a row
    zeros_are_less_by: int = 0  # GPTQ's first format stores zero - 1

    def tensors(self, weight: str, shape: tuple[int, ...]) -> dict[str, Expected]:
        """What stands in the place of the tensor "….weight" (N, K); "….g_idx" may be missing."""
        rows, width = shape
        groups = 1 if self.group < 0 else -(-width // self.group)
        words = (width, rows // 8) if self.method == "awq" else (width // 8, rows)
        base = weight.removesuffix("weight")
        found: dict[str, Expected] = {
            f"{base}qweight": (words, WORDS),
            f"{base}qzeros": ((groups, rows // 8), WORDS),
            f"{base}scales": ((groups, rows), FLOATS),
        }
        return found | ({f"{base}g_idx": ((width,), WORDS)} if self.method == "gptq" else {})


@dataclass(frozen=True)
class _QuantizationJson:
    """The fields of quantization_config that decide how its tensors are read."""

    bits: int
    group_size: int
    quant_method: str = ""
    desc_act: bool | None = None  # of GPTQ alone
    version: str | None = None  # of AWQ; transformers reads "version", and writes both
    format: str = "gemm"
    zero_point: bool = True
    checkpoint_format: str = "gptq"


def read_quantization(config: Mapping[str, Any] | None) -> StoredQuantization | None:
    """From `quantization_config` of a config.json; None where the checkpoint is plain. ValueError,
    by the field's name, for what is not read."""
    if config is None:
        return None
    j = typed(_QuantizationJson, config, FIELD, more=True)
    method = j.quant_method or ("gptq" if j.desc_act is not None else "")
    expected: list[tuple[str, object, tuple[object, ...]]] = [
        ("quant_method", method, METHODS),
        ("bits", j.bits, (4,)),
    ]
    if method == "awq":
        expected += [("version", (j.version or j.format).lower(), ("gemm",))]
        expected += [("zero_point", j.zero_point, (True,))]
    else:
        expected += [("checkpoint_format", j.checkpoint_format, ("gptq", "gptq_v2"))]
    for name, value, allowed in expected:
        if value not in allowed:
            words = " or ".join(map(repr, allowed))
            raise ValueError(
                f"{FIELD}: {name} is {value!r:.60}, expected {words}; or use the unquantised "
                "checkpoint"
            )
    if j.group_size != -1 and (j.group_size < SEGMENT or j.group_size % SEGMENT):
        raise ValueError(
            f"{FIELD}: group_size is {j.group_size!s:.20}, expected -1 or a multiple of {SEGMENT}; "
            "or use the unquantised checkpoint"
        )
    less = int(method == "gptq" and j.checkpoint_format == "gptq")
    return StoredQuantization(method, j.group_size, less)
