"""Checkpoints that are quantised already: what `quantization_config` of a config.json says.

In:  the fields of `quantization_config`.
Out: `StoredQuantization`: AWQ or GPTQ, and which tensors stand in the place of a weight.

Both keep a code of 4 bits for each number, and a scale and a zero for each group of a row:
weight = (code - zero) · scale. K are the inputs of a matrix and N its outputs:

    AWQ    (AutoAWQ, "gemm")       qweight (K, N / 8), qzeros (groups, N / 8), scales (groups, N)
    GPTQ   (AutoGPTQ, GPTQModel)   qweight (K / 8, N), qzeros (groups, N / 8), scales (groups, N),
                                   g_idx (K,): the group of each input

`mini_engine/cuda/quantized_checkpoint.py` unpacks them. What is not read is refused by the name of
its field, since the model would load and write nonsense. Field names: AutoAWQ's and GPTQModel's
configs, and `AwqConfig` and `GPTQConfig` of transformers.
"""

from __future__ import annotations

from dataclasses import dataclass

from mini_engine.files import in_short
from mini_engine.model.fields import Fields

FIELD = "quantization_config"
METHODS = ("awq", "gptq")
SEGMENT = 128  # columns that share a scale in our own layout: groups are whole numbers of it
PLAIN = ("lm_head", "embed_tokens")  # modules that we take as plain in any case
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


def read_quantization(f: Fields) -> StoredQuantization | None:
    """From the fields of a config.json; None where the checkpoint is plain. ValueError, by the
    field's name, for what is not read."""
    if not f.given(FIELD):
        return None
    try:
        return _read(f.object(FIELD))
    except ValueError as error:
        raise ValueError(f"{FIELD}: {error}; or use the unquantised checkpoint") from None


def _read(f: Fields) -> StoredQuantization:
    method = f.text("quant_method", "gptq" if f.given("desc_act") else "")
    _expect("quant_method", method, *METHODS)
    _expect("bits", f.integer("bits"), 4)
    group = f.integer("group_size")
    if group != -1 and (group < SEGMENT or group % SEGMENT):
        raise ValueError(f"group_size is {group}, expected -1 or a multiple of {SEGMENT}")
    if method == "awq":
        # transformers reads "version", and writes both
        _expect("version", f.text("version", f.text("format", "gemm")).lower(), "gemm")
        _expect("zero_point", f.boolean("zero_point", True), True)
        modules = f.value("modules_to_not_convert") if f.given("modules_to_not_convert") else []
        others = [name for name in _listed(modules) if name not in PLAIN]
        if others:
            raise ValueError(
                f"modules_to_not_convert has {', '.join(map(in_short, others[:3]))}, expected none "
                f"but {', '.join(PLAIN)}: all matrices of the layers are read as quantised"
            )
        return StoredQuantization(method, group)
    version = f.text("checkpoint_format", "gptq")
    _expect("checkpoint_format", version, "gptq", "gptq_v2")
    _expect("pack_dtype", f.text("pack_dtype", "int32"), "int32")
    for field in ("is_marlin_format", "lm_head"):
        _expect(field, f.boolean(field, False), False)
    if f.object("dynamic").names():
        raise ValueError("dynamic is set, expected one way for all layers")
    return StoredQuantization(method, group, 1 if version == "gptq" else 0)


def _expect(field: str, value: object, *allowed: object) -> None:
    if value not in allowed:
        words = " or ".join(repr(one) for one in allowed)
        raise ValueError(f"{field} is {in_short(value)}, expected {words}")


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]
