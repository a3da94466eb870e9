"""Compile what a launch asks for, in this process and without Triton's cache on disk.

The **front end** turns Python into Triton's IR; it knows the rules that the interpreter does not
have (the least size of a product, powers of two, types that agree), and takes 0.06 s. The whole way
to machine code takes 0.4 s. The front end does not depend on the architecture.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend

from tests.support.pretend_gpu import Launch


def refused(launch: Launch, capability: int, *, whole: bool) -> str | None:
    """Why it does not compile, in one line; None if it does."""
    try:
        _compile(launch, capability, whole=whole)
    except Exception as error:
        return f"sm_{capability}: {_root(error)}"
    return None


def _compile(launch: Launch, capability: int, *, whole: bool) -> None:
    """`triton.compile`, its stages one by one."""
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
    metadata = {"target": target, **options.__dict__}
    for name, stage in stages.items():
        if whole or name == "ttir":
            made = stage(made, metadata)


def _root(error: BaseException) -> str:
    """The last line of the first cause: Triton wraps it in the source around it."""
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1]


def each_value_once(launches: Sequence[Launch]) -> list[Launch]:
    """A part of them in which every kernel meets each value of each constant, each type of each
    argument and each number of warps that it meets in all of them, though not every combination."""
    kept, seen = [], set()
    for launch in launches:
        facts = set(_facts(launch))
        if not facts <= seen:
            seen |= facts
            kept.append(launch)
    return kept


def _facts(launch: Launch) -> Iterable[tuple[Any, ...]]:
    def with_kernel() -> Iterator[tuple[str, object]]:
        types = {name: kind for name, kind in launch.signature.items() if kind != "constexpr"}
        yield from chain(launch.named_constants.items(), types.items())
        yield "warps", launch.num_warps

    return ((launch.name, name, repr(value)) for name, value in with_kernel())
