"""Compile what a launch asks for, in this process and without Triton's cache on disk.

The **front end** turns Python into Triton's IR; it knows the rules that the interpreter does not
have (the least size of a product, powers of two, types that agree), and takes 0.06 s. The whole way
to machine code takes 0.4 s. The front end does not depend on the architecture.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend

from tests.support.pretend_gpu import Launch

# Of a program, in bytes: CUDA C++ Programming Guide, "Technical Specifications per Compute
# Capability". Triton asks for it when it loads a kernel, and raises OutOfResources.
MAX_SHARED = {80: 163 * 1024, 90: 227 * 1024}


def refused(launch: Launch, capability: int, *, whole: bool) -> str | None:
    """Why it does not compile, or would not be loaded, in one line; None if it does."""
    try:
        shared = _compile(launch, capability, whole=whole).get("shared", 0)
    except Exception as error:
        return f"sm_{capability}: {_root(error)}"
    if shared > MAX_SHARED[capability]:
        return (
            f"sm_{capability}: {shared} bytes of shared memory, there are {MAX_SHARED[capability]}"
        )
    return None


def _compile(launch: Launch, capability: int, *, whole: bool) -> dict[str, Any]:
    """`triton.compile`, its stages one by one. What the compiler says of the kernel."""
    target = GPUTarget("cuda", capability, 32)
    backend = make_backend(target)
    source = ASTSource(launch.kernel, launch.signature, launch.constants, launch.attributes)
    words = {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
    options = backend.parse_options(words)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options, source.language)
    made = source.make_ir(
        target, options, backend.get_codegen_implementation(options), backend.get_module_map(),
        context,
    )  # fmt: skip
    metadata: dict[str, Any] = {"target": target, **options.__dict__}
    for name, stage in stages.items():
        if whole or name == "ttir":
            made = stage(made, metadata)
    return metadata


def _root(error: BaseException) -> str:
    """The last line of the first cause: Triton wraps it in the source around it."""
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1]


def each_value_once(launches: Sequence[Launch]) -> list[Launch]:
    """A part of them in which every kernel meets each value of each constant, each type of each
    argument and each number of warps that it meets in all of them, though not every combination.
    """
    kept, seen = [], set[tuple[str, str, str]]()
    for launch in launches:
        values = {name: _alike(value) for name, value in launch.named_constants.items()}
        values |= {name: kind for name, kind in launch.signature.items() if kind != "constexpr"}
        values["warps"] = launch.num_warps
        facts = {(launch.name, name, repr(value)) for name, value in values.items()}
        if not facts <= seen:
            seen |= facts
            kept.append(launch)
    return kept


def _alike(value: object) -> object:
    """Sizes above 64 are alike if both or none are powers of two: no rule of the front end tells
    hidden sizes apart."""
    if type(value) is not int or value <= 64:
        return value
    return "a power of two" if value & (value - 1) == 0 else "no power of two"
