"""Watches kernels in Triton's interpreter: what each program reads and writes, and in which order.

In:  the tensors by name, and the modules whose `pdl_release` and `pdl_wait` the kernels call.
Out: a `Watch`, whose methods fail with one sentence that names the tensor.

    with watching(norm, x=x, out=out) as watch:
        norm.rms_norm(out, x, weight, 1e-6)
    watch.read_once("x")

A kernel in the interpreter is Python: programs run one after another, in the order of the grid.
With `shuffled(seed)` they run in another.
"""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import triton.language as tl
from torch import Tensor
from triton.runtime.interpreter import InterpreterBuilder

from labs.support.interpreter import install_bf16_guard
from labs.support.watched import Event, Program, Watch, within
from mini_engine.cuda.kernels.launch import INTERPRETED

if INTERPRETED:
    install_bf16_guard()

PAST_L1 = ("CG", "CV")  # .cg and .cv: loads that do not look into the multiprocessor's own cache


@contextmanager
def watching(
    *modules: ModuleType,
    imagined: bool = False,
    first: tuple[int, int, int] = (0, 0, 0),
    **tensors: Tensor,
) -> Iterator[Watch]:
    """Take down what the kernels do that are launched inside.

    imagined: addresses outside of the tensors read as 0, and a write there is left out, so that a
    kernel can be run as if a tensor were larger than memory. first: the index of the first program,
    as if a launch had that many before.
    """
    watch = Watch(tensors)
    builder = InterpreterBuilder

    def note(kind: str) -> Any:
        nowhere = np.zeros(0, np.int64)
        return lambda *_, **__: watch.programs[-1].events.append(Event(kind, nowhere))

    def begins(self: Any, x: int, y: int, z: int) -> None:
        set_grid_idx(self, x, y, z)
        self.grid_idx = tuple(i + more for i, more in zip(self.grid_idx, first, strict=True))
        watch.programs.append(Program(self.grid_idx))

    def noting(kind: str, inner: Any, mask_at: int) -> Any:
        def noted(self: Any, *args: Any) -> Any:
            where = args[1] if kind == "atomic" else args[0]
            addresses = np.asarray(where.data).astype(np.int64)
            given = args[mask_at]  # of a block pointer: the bare array
            bare = isinstance(given, np.ndarray)
            mask = np.broadcast_to(np.asarray(given if bare else given.data, bool), addresses.shape)
            past = kind == "load" and (getattr(args[3], "name", "") in PAST_L1 or bool(args[5]))
            watch.programs[-1].events.append(Event(kind, addresses[mask], past))
            if imagined:
                there = mask & within(addresses, tensors)
                if not bare:
                    handle = copy.copy(given)
                    handle.data, there = there, handle
                args = (*args[:mask_at], there, *args[mask_at + 1 :])
            return inner(self, *args)

        return noted

    def dot(self: Any, a: Any, b: Any, d: Any, precision: Any, *rest: Any) -> Any:
        name = str(getattr(precision, "name", precision)).upper()
        if a.dtype.scalar == tl.float32 and name == "TF32":
            watch.rounded.append(name)
        return create_dot(self, a, b, d, precision, *rest)

    set_grid_idx, create_dot = builder.set_grid_idx, builder.create_dot
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(builder, "create_dot", dot))
        for module in modules:
            for kind in ("release", "wait"):
                stack.enter_context(mock.patch.object(module, f"pdl_{kind}", note(kind)))
        stack.enter_context(mock.patch.object(builder, "set_grid_idx", begins))
        for kind, name, mask_at in (
            ("load", "create_masked_load", 1),
            ("store", "create_masked_store", 2),
            ("atomic", "create_atomic_rmw", 3),
        ):
            noted = noting(kind, getattr(builder, name), mask_at)
            stack.enter_context(mock.patch.object(builder, name, noted))
        yield watch


@contextmanager
def shuffled(seed: int) -> Iterator[None]:
    """Run the programs of each launch in another order, the same for the same seed."""
    rng, left = random.Random(seed), list[tuple[int, ...]]()
    set_grid_idx = InterpreterBuilder.set_grid_idx

    def another(self: Any, x: int, y: int, z: int) -> None:
        if (x, y, z) == (0, 0, 0):
            left[:] = itertools.product(*map(range, self.grid_dim))
            rng.shuffle(left)
        set_grid_idx(self, *left.pop())

    with mock.patch.object(InterpreterBuilder, "set_grid_idx", another):
        yield


@contextmanager
def undefined() -> Iterator[None]:
    """What a masked load leaves in the lanes that it does not read: without `other=`, on a GPU
    anything. Here NaN, or a number that is no index, where the interpreter would put zeros."""
    load = InterpreterBuilder.create_masked_load

    def loaded(self: Any, pointers: Any, mask: Any, other: Any, *rest: Any) -> Any:
        tile = load(self, pointers, mask, other, *rest)
        if other is None:
            lanes = ~np.broadcast_to(np.asarray(mask.data, bool), tile.data.shape)
            if lanes.any():
                tile.data = tile.data.copy()
                tile.data.view(np.uint8).reshape(*tile.data.shape, -1)[lanes] = 0xFF
        return tile

    with mock.patch.object(InterpreterBuilder, "create_masked_load", loaded):
        yield
