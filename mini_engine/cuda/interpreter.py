"""Triton's CPU interpreter, made honest about bf16. Only used when TRITON_INTERPRET=1.

The interpreter (Triton 3.6 to 3.9) keeps a bf16 tile as the uint16 of its bits. Loading, storing,
selecting and casting are right; arithmetic is not: `a + b` adds bit patterns, and nobody is told.
float32 -> bf16 cuts the low bits off where a GPU rounds to nearest even. So here

* `tl.dot` widens bf16 to float32 first, which is exact: tensor cores accumulate in float32 too;
* the cast to bf16 rounds;
* every other operation on bf16 raises. A kernel that passes says `.to(tl.float32)` after each load.

One more repair: Triton 3.6 cannot take a run-time bound in `range` under numpy 2.4 or newer. And
half of a kernel's time is saved, which went into work without any effect.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import triton
import triton.language as tl

INTERPRETED: bool = bool(triton.knobs.runtime.interpret)

_GUARDED = (
    *("create_exp", "create_exp2", "create_log", "create_log2", "create_sqrt", "create_rsqrt"),
    *("create_precise_sqrt", "create_fabs", "create_sin", "create_cos", "create_fma"),
    *("create_clampf", "create_precise_divf", "create_floor", "create_ceil"),
)
_GUARDED_PREFIXES = (
    *("create_fadd", "create_fsub", "create_fmul", "create_fdiv", "create_frem", "create_fcmp"),
    *("create_fneg", "create_minimumf", "create_minnumf", "create_maximumf", "create_maxnumf"),
)


def install_bf16_guard() -> None:
    """Patch the interpreter of this process, once. Call before any kernel runs."""
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder
    if getattr(builder, "honest_bf16", False):
        return
    builder.honest_bf16 = True
    _widen_dot(builder, interpreter.TensorHandle)
    _round_cast(builder, interpreter.TensorHandle)
    _add_constants(builder, interpreter.TensorHandle)
    for name in dir(builder):
        if name in _GUARDED or name.startswith(_GUARDED_PREFIXES):
            setattr(builder, name, _refuse_bf16(name, getattr(builder, name)))
    _guard_reductions(interpreter.ReduceOps)
    _mend_index(interpreter)
    _patch_once(interpreter)
    _leave_out_overflow(interpreter)


def round_to_bf16(values: np.ndarray) -> np.ndarray:
    """float32 -> the bits of bf16 as uint16, to nearest, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16).reshape(values.shape)


def widen_bf16(bits: np.ndarray) -> np.ndarray:
    """The bits of bf16 -> float32, exactly: bf16 is the upper half of a float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _is_bf16(value: Any) -> bool:
    return bool(getattr(getattr(value, "dtype", None), "scalar", None) == tl.bfloat16)


def _refuse_bf16(name: str, inner: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(*args: Any, **options: Any) -> Any:
        if any(_is_bf16(arg) for arg in args):
            raise TypeError(
                f"{name} on bf16 is garbage in the interpreter: cast to tl.float32 after the load"
            )
        return inner(*args, **options)

    return guarded


def _widen_dot(builder: Any, handle: Any) -> None:
    inner = builder.create_dot

    def widened(tile: Any) -> Any:
        return handle(widen_bf16(tile.data), tl.float32) if _is_bf16(tile) else tile

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return inner(self, widened(a), widened(b), *rest)

    builder.create_dot = create_dot


def _round_cast(builder: Any, handle: Any) -> None:
    inner = builder.cast_impl

    def cast_impl(self: Any, source: Any, target: Any) -> Any:
        if source.dtype.scalar == tl.float32 and target.scalar == tl.bfloat16:
            return handle(round_to_bf16(source.data), tl.bfloat16)
        if _is_bf16(source) and target.scalar == tl.float32:
            return handle(widen_bf16(source.data), tl.float32)
        return inner(self, source, target)

    builder.cast_impl = cast_impl


def _add_constants(builder: Any, handle: Any) -> None:
    """Triton's own has numbers of every type but this one, and so `x * 0.5` of a bf16 tile ended in
    an AttributeError before the operation could be refused."""

    def get_bf16(_: Any, value: float) -> Any:
        return handle(round_to_bf16(np.array([value], np.float32)), tl.bfloat16)

    builder.get_bf16 = get_bf16


def _guard_reductions(reductions: Any) -> None:
    inner = reductions.apply_impl

    def apply_impl(self: Any, tiles: Any) -> Any:
        if any(_is_bf16(tile) for tile in (tiles if isinstance(tiles, tuple) else (tiles,))):
            raise TypeError(
                "a reduction of bf16 is garbage in the interpreter: cast to tl.float32 first"
            )
        return inner(self, tiles)

    reductions.apply_impl = apply_impl


def _mend_index(interpreter: Any) -> None:
    inner = interpreter._patch_lang_tensor

    def patched(tensor: Any, *scope: Any) -> None:
        inner(tensor, *scope)
        tensor.__index__ = lambda self: int(np.asarray(self.handle.data).item())

    interpreter._patch_lang_tensor = patched


def _patch_once(interpreter: Any) -> None:
    """Whenever a kernel calls a function, `tl.sum` for one, Triton patches all of its language for
    the interpreter again. Here once for each module that has such functions."""
    inner, run, patched = interpreter._patch_lang, None, set[int]()

    def patch_lang(function: Any) -> Any:
        nonlocal run
        running, module = bool(getattr(run, "_changes", None)), id(function.__globals__)
        if running and module in patched:
            return run
        scope = inner(function)
        if not running:  # a kernel begins; who calls takes all of its scope back at the end
            run = scope
            patched.clear()
        patched.add(module)
        return scope

    interpreter._patch_lang = patch_lang


def _leave_out_overflow(interpreter: Any) -> None:
    """Triton does each sum of integers in 64 bits, too, and drops what it finds: without
    `options.debug` nothing is asserted."""
    builder = interpreter.interpreter_builder
    if not builder.options.debug:
        builder.options = replace(builder.options, sanitize_overflow=False)
