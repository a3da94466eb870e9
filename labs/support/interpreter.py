"""Triton's CPU interpreter, made honest about bf16, for kernels that are written and tested in it.

The interpreter (Triton 3.6 to 3.9) keeps a bf16 tile as the uint16 of its bits. Loading, storing,
selecting and casting are right; arithmetic is not: `a + b` adds bit patterns, and nobody is told.
float32 -> bf16 cuts the low bits off where a GPU rounds to nearest even. So here

* `tl.dot` widens bf16 to float32 first, which is exact: tensor cores accumulate in float32 too;
* the cast to bf16 rounds;
* every other operation on bf16 raises. A kernel that passes says `.to(tl.float32)` after each load.

And half of a kernel's time is saved, which went into work without any effect.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import triton.language as tl

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

    builder, reductions = interpreter.InterpreterBuilder, interpreter.ReduceOps
    if getattr(builder, "honest_bf16", False):
        return
    builder.honest_bf16 = True
    _mend_bf16(builder, interpreter.TensorHandle)
    for name in dir(builder):
        if name in _GUARDED or name.startswith(_GUARDED_PREFIXES):
            setattr(builder, name, _refuse_bf16(name, getattr(builder, name)))
    reductions.apply_impl = _refuse_bf16("a reduction", reductions.apply_impl)
    _patch_once(interpreter)
    # Triton does each sum of integers in 64 bits, too, and drops what it finds: without
    # `options.debug` nothing is asserted.
    made = interpreter.interpreter_builder
    if not made.options.debug:
        made.options = replace(made.options, sanitize_overflow=False)


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
        tiles = [x for arg in args for x in (arg if isinstance(arg, tuple) else (arg,))]
        if any(map(_is_bf16, tiles)):
            raise TypeError(
                f"{name} on bf16 is garbage in the interpreter: cast to tl.float32 after the load"
            )
        return inner(*args, **options)

    return guarded


def _mend_bf16(builder: Any, handle: Any) -> None:
    """Dots, casts and constants."""
    dot, cast = builder.create_dot, builder.cast_impl

    def widened(tile: Any) -> Any:
        return handle(widen_bf16(tile.data), tl.float32) if _is_bf16(tile) else tile

    def cast_impl(self: Any, source: Any, target: Any) -> Any:
        if source.dtype.scalar == tl.float32 and target.scalar == tl.bfloat16:
            return handle(round_to_bf16(source.data), tl.bfloat16)
        if _is_bf16(source) and target.scalar == tl.float32:
            return widened(source)
        return cast(self, source, target)

    builder.create_dot = lambda self, a, b, *rest: dot(self, widened(a), widened(b), *rest)
    builder.cast_impl = cast_impl
    # Triton's own has numbers of every type but this one, and so `x * 0.5` of a bf16 tile ended in
    # an AttributeError before the operation could be refused.
    builder.get_bf16 = lambda _, value: handle(
        round_to_bf16(np.array([value], np.float32)), tl.bfloat16
    )


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
