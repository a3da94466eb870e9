"""A GPU that is not there: code for an H200 launches kernels, and the launches are recorded.

    with pretended(record):   # record(launch) is called at each launch not seen before
        ...                   # code that says "cuda", sm_90 and pdl=True, on tensors without data

What is real: Triton's own launch path, up to the compiler. From the arguments it finds what it
would compile (types, alignments, constants, warps), and there its hook takes over, so nothing is
compiled and nothing runs. What is pretended: `torch.cuda` says that there is an H200; on tensors
of the device "meta" every op of `mini_engine/cuda/kernels` launches, so models of the true size
cost nothing. Ops stay registered like that: a process that has pretended does nothing else.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget

from mini_engine.cuda import kernels
from mini_engine.cuda.graphs import backend, emulator
from mini_engine.cuda.kernels.launch import H200_SM_COUNT

CPU = torch.device("cpu")
CAPABILITY = (9, 0)
Record = Callable[["Launch"], None]


@dataclass(frozen=True)
class Launch:
    """What the compiler is asked for: a kernel, specialized for its arguments."""

    kernel: Any  # the JITFunction
    signature: dict[str, str]  # argument -> "*bf16", "i32", "constexpr", ...
    constants: dict[tuple[int, ...], Any]  # place of the argument -> its value
    attributes: dict[tuple[int, ...], Any]  # place -> divisible by 16
    num_warps: int
    num_stages: int

    @property
    def name(self) -> str:
        return f"{self.kernel.__module__}.{self.kernel.__name__}"

    @property
    def named_constants(self) -> dict[str, Any]:
        """Without those that are None or 1 because the argument was."""
        names = self.kernel.arg_names
        return {names[place[0]]: value for place, value in self.constants.items()}

    @property
    def pdl(self) -> bool:
        return bool(self.named_constants.get("PDL"))


@contextmanager
def pretended(record: Record) -> Iterator[None]:
    calls = _Calls(record)
    with ExitStack() as stack:
        for target, name, value in [*_cuda(), *_triton(calls), *_rooms()]:
            stack.enter_context(mock.patch.object(target, name, value))
        for op in _ops():
            op.register_fake(op._init_fn)
        yield


class _Calls:
    """What has been launched."""

    def __init__(self, record: Record) -> None:
        self.record, self.seen = record, set[Any]()

    def hook(self, *, fn: Any, compile: dict[str, Any], **_: Any) -> bool:
        """Triton's `jit_cache_hook`: True says that there is nothing to compile, or to launch."""
        kernel = fn.jit_function
        known = (id(kernel), compile["specialization_data"])
        if known not in self.seen:
            (attributes,) = compile["configs"]
            self.seen.add(known)
            self.record(Launch(
                kernel, compile["signature"], compile["constants"], attributes,
                compile["num_warps"], compile["num_stages"],
            ))  # fmt: skip
        return True


def _ops() -> list[Any]:
    """Every custom op of the kernels."""
    found = {}
    for room in _kernel_rooms():
        for value in vars(room).values():
            if isinstance(value, torch.library.CustomOpDef):
                found[value._qualname] = value
    return list(found.values())


def _kernel_rooms() -> list[ModuleType]:
    names = [info.name for info in pkgutil.iter_modules(kernels.__path__)]
    return [importlib.import_module(f"{kernels.__name__}.{name}") for name in names]


# ---------------------------------------------------------------- what is pretended


def _rooms() -> Iterator[tuple[Any, str, Any]]:
    for room in _kernel_rooms():
        if hasattr(room, "runs_triton"):
            yield room, "runs_triton", lambda _: True
        if hasattr(room, "launch_options"):
            yield room, "launch_options", _launch_options


def _launch_options(pdl: bool, device: torch.device) -> dict[str, bool]:  # noqa: ARG001
    return {"PDL": True, "launch_pdl": True} if pdl else {"PDL": False}


def _triton(calls: _Calls) -> Iterator[tuple[Any, str, Any]]:
    yield triton.knobs.runtime, "jit_cache_hook", calls.hook
    yield triton.runtime.driver, "_active", _Driver()


class _Driver:
    """As much of Triton's driver as a launch asks for before it compiles."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:  # noqa: ARG002
        return 0

    def get_current_target(self) -> GPUTarget:
        major, minor = CAPABILITY
        return GPUTarget("cuda", 10 * major + minor, 32)


def _cuda() -> Iterator[tuple[Any, str, Any]]:
    properties = SimpleNamespace(
        name="NVIDIA H200", multi_processor_count=H200_SM_COUNT, L2_cache_size=50 << 20,
        total_memory=141 << 30, major=9, minor=0,
    )  # fmt: skip
    said = {
        "is_available": True, "current_device": 0, "get_device_capability": CAPABILITY,
        "get_device_name": properties.name, "get_device_properties": properties,
        "get_arch_list": [], "is_bf16_supported": True, "synchronize": None, "empty_cache": None,
        "memory_reserved": 0, "memory_allocated": 0, "manual_seed_all": None,
    }  # fmt: skip
    for name, value in said.items():
        yield torch.cuda, name, lambda *_, value=value, **__: value
    made = backend._backend_of
    yield backend, "_backend_of", lambda *_: made(CPU, emulator)
