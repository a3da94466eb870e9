"""A kernel that lets the next one start and then takes its time before it writes anything.

With programmatic dependent launch a kernel may start while the one before still runs, and only its
`pdl_wait` keeps it from reading too early. In ordinary steps the one before is done so soon that a
missing wait hardly ever shows. Here it is not: `late_copy` releases its dependents at once, sleeps,
and then writes. `LateInputs` puts it before every op of a model, for each input in turn.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
import triton
import triton.language as tl
from torch import Tensor

from mini_engine.cuda import fused, kernels
from mini_engine.cuda.fused import FusedModel
from mini_engine.cuda.inputs import StepInputs
from mini_engine.cuda.kernels.launch import grid_control, pdl_release, pdl_wait

# Longer than Python needs to launch the next op, which must start while this one sleeps.
SLEEP_NS = 400_000
BLOCK = 1024

# PTX ISA: %globaltimer counts nanoseconds. A label in braces is local, however often this is used.
SLEEP = tl.constexpr(
    """{
    .reg .u64 now, end;
    .reg .pred early;
    mov.u64 end, %globaltimer;
    cvt.u64.u32 now, $1;
    add.u64 end, end, now;
    again:
    mov.u64 now, %globaltimer;
    setp.lt.u64 early, now, end;
    @early bra again;
    mov.u32 $0, 0;
    }"""
)


@triton.jit
def late_copy_kernel(out, x, size, sleep_ns, block: tl.constexpr):
    """out = x, 32-bit words or smaller, after a sleep in which dependents may already run."""
    pdl_release(True)
    pdl_wait(True)
    tl.inline_asm_elementwise(
        SLEEP, "=r,r,~{memory}", [sleep_ns], dtype=tl.int32, is_pure=False, pack=1
    )
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(out + at, tl.load(x + at, mask=at < size), mask=at < size)


@triton.jit
def copy_kernel(out, x, size, block: tl.constexpr, waits: tl.constexpr):
    """out = x, as a dependent of `late_copy_kernel`: with its wait, or, wrongly, without it."""
    grid_control("griddepcontrol.launch_dependents; mov.u32 $0, 0;")
    if waits:
        pdl_wait(True)
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(out + at, tl.load(x + at, mask=at < size, cache_modifier=".cg"), mask=at < size)


def late_copy(out: Tensor, x: Tensor) -> None:
    """On a GPU; on a CPU, where nothing overlaps, an ordinary copy."""
    if out.device.type == "cpu":
        out.copy_(x)
        return
    grid = (triton.cdiv(out.numel(), BLOCK),)
    late_copy_kernel[grid](out, x, out.numel(), SLEEP_NS, block=BLOCK)


def dependent_copy(out: Tensor, x: Tensor, *, waits: bool) -> None:
    """Starts while the kernel before still runs. `waits` False: reads what lies there."""
    grid = (triton.cdiv(out.numel(), BLOCK),)
    copy_kernel[grid](out, x, out.numel(), block=BLOCK, waits=waits, launch_pdl=True)


# ---------------------------------------------------------------- before every op of a model


# What an op reads above its wait though a step writes it: the last kernel of a step does, and a
# kernel without PDL stands between it and the next step's (fused_attention.py).
READ_BETWEEN_STEPS = {"rope_kv_write_attention": ("context_lens",)}


@dataclass
class LateInputs:
    """Runs each op without PDL, then with it after a late producer: once for every input that some
    kernel of the step writes. AssertionError for the first that differs in a bit."""

    model: FusedModel
    inputs: StepInputs
    pdl: bool  # False: on a CPU, to see that all is wired up
    tried: list[tuple[str, str]] = field(default_factory=list)  # (op, input) in order

    def __post_init__(self) -> None:
        weights, cache = self.model.weights, self.model.cache
        fixed: list[Any] = [weights.embed, weights.final_norm, weights.lm_head]
        for layer in weights.layers:
            fixed += vars(layer).values()
        own = vars(self.model).items()  # rotary tables, addresses: all but how many have arrived
        fixed += [t for name, t in own if isinstance(t, Tensor) and "counters" not in name]
        fixed += [*cache.keys, *cache.values, self.inputs.block_table]
        self.fixed = {memory(t) for t in fixed if t is not None}

    @contextmanager
    def between_ops(self) -> Iterator[None]:
        """Every op that the model calls is called through this."""
        rooms = [info.name for info in pkgutil.iter_modules(kernels.__path__)]
        modules = [importlib.import_module(f"{kernels.__name__}.{name}") for name in rooms]
        with ExitStack() as stack:
            for module in (fused, *modules):
                for name, op in list(vars(module).items()):
                    if isinstance(op, torch.library.CustomOpDef):
                        stack.enter_context(mock.patch.object(module, name, self._through(op)))
            yield

    def _through(self, op: Any) -> Any:
        signature = inspect.signature(op._init_fn)

        def call(*args: Any, **kwargs: Any) -> None:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            self._check(op, bound.arguments)

        return call

    def _check(self, op: Any, arguments: dict[str, Any]) -> None:
        tensors = {name: t for name, t in arguments.items() if isinstance(t, Tensor)}
        between = READ_BETWEEN_STEPS.get(op._name, ())
        stepped = {
            name: t
            for name, t in tensors.items()
            if memory(t) not in self.fixed and name not in between
        }
        before = {name: t.clone() for name, t in tensors.items()}
        early = {"pdl": self.pdl} if "pdl" in arguments else {}  # else it starts when all has ended
        op(**{**arguments, **dict.fromkeys(early, False)})
        expected = {name: t.clone() for name, t in tensors.items()}
        for late, tensor in stepped.items():
            for name, other in tensors.items():
                if name != late:
                    other.copy_(before[name])
            tensor.fill_(float("nan") if tensor.is_floating_point() else 1)
            late_copy(tensor, before[late])
            op(**{**arguments, **early})
            for name, got in tensors.items():
                same = torch.equal(bits(got), bits(expected[name]))
                assert same, f"{op._name}: {name} differs when {late} comes late"
            self.tried.append((op._name, late))


def memory(tensor: Tensor) -> int:
    """Which allocation a tensor lies in; an address would not tell tensors without data apart."""
    return tensor.untyped_storage()._cdata


def bits(tensor: Tensor) -> Tensor:
    """The same memory as integers: NaN equals itself."""
    return tensor.contiguous().view(torch.uint8)
