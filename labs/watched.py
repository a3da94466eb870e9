"""Watches kernels in Triton's interpreter: what each program reads and writes, and in which order.

In:  the tensors by name, and the modules whose `pdl_release` and `pdl_wait` the kernels call.
Out: a `Watch`, whose methods fail with one sentence that names the tensor.

    with watching(norm, x=x, out=out) as watch:
        norm.rms_norm(out, x, weight, 1e-6)
    watch.read_once("x")

A kernel in the interpreter is Python: programs run one after another, in the order of the grid.
With `shuffled(seed)` they run in another. No cache and no race exists there, so what a GPU's caches
and concurrent programs would do must be seen from the addresses and the cache modifiers.
"""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import torch
import triton.language as tl
from torch import Tensor
from triton.runtime.interpreter import InterpreterBuilder

PAST_L1 = ("CG", "CV")  # .cg and .cv: loads that do not look into the multiprocessor's own cache
Addresses = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Event:
    """One thing that a program did. `kind`: release, wait, load, store or atomic."""

    kind: str
    addresses: Addresses  # of the lanes that are not masked
    past_l1: bool = False


@dataclass
class Program:
    """The programs of all launches stand in one list, in the order in which they ran."""

    index: tuple[int, int, int]
    events: list[Event] = field(default_factory=list)

    @property
    def above(self) -> list[Event]:
        """What came before the wait; all of it where there is none."""
        kinds = [event.kind for event in self.events]
        return self.events[: kinds.index("wait")] if "wait" in kinds else self.events

    @property
    def below(self) -> list[Event]:
        return self.events[len(self.above) :]


@dataclass(repr=False)
class Watch:
    """What programs did. The methods that check raise AssertionError."""

    tensors: dict[str, Tensor]
    programs: list[Program] = field(default_factory=list)
    rounded: list[str] = field(default_factory=list)  # of float32 operands of tl.dot, to what

    @property
    def events(self) -> list[Event]:
        return [event for program in self.programs for event in program.events]

    def elements(self, kind: str, name: str, events: list[Event] | None = None) -> list[int]:
        """The elements of a tensor that were loaded or stored, with repeats, in order."""
        tensor, found = self.tensors[name], list[int]()
        first, size = tensor.data_ptr(), tensor.element_size()
        for event in self.events if events is None else events:
            if event.kind == kind:
                at = (event.addresses - first) // size
                found += at[(at >= 0) & (at < tensor.numel())].tolist()
        return found

    # -- the two lines for dependent launch ---------------------------------------------------

    def releases_first_and_waits_once(self) -> None:
        """In every program the release comes before all loads and stores, and there is one wait."""
        for program in self.programs:
            did = [event.kind for event in program.events]
            begins = did[0] if did else "nothing at all"
            assert begins == "release", (
                f"pdl_release must come first: a program begins with {begins}"
            )
            for line in ("release", "wait"):
                times = did.count(line)
                assert times == 1, f"pdl_{line}(PDL) stands in a program once, not {times} times"

    def reads_and_writes_below_the_wait(self, *names: str) -> None:
        """What another kernel of the step writes or reads: no load and no store above the wait."""
        above = [event for program in self.programs for event in program.above]
        for name in names:
            loads, stores = (self.elements(kind, name, above) for kind in ("load", "store"))
            assert not loads, f"{name} is read above pdl_wait, while it may still be written"
            assert not stores, f"{name} is written above pdl_wait"

    def reads_above_the_wait(self, *names: str) -> None:
        """What nobody writes, and should be on its way early: no load below the wait."""
        below = [event for program in self.programs for event in program.below]
        for name in names:
            loads = self.elements("load", name, below)
            assert not loads, f"{name} is read below pdl_wait, where it could be on its way before"

    # -- how often, and where -----------------------------------------------------------------

    def read_once(self, *names: str, by_each_program: bool = False) -> None:
        """Each element is loaded once: in all, or by each program that loads any."""
        for name in names:
            size = self.tensors[name].numel()
            parts = [p.events for p in self.programs] if by_each_program else [self.events]
            each = "by a program" if by_each_program else "in all"
            for part in parts:
                times = np.bincount(self.elements("load", name, part), minlength=size)
                never, most = int((times == 0).sum()), int(times.max())
                assert most <= 1, f"an element of {name} is read {most} times {each}, not once"
                assert not never, f"{never} of {size} elements of {name} are not read {each}"

    def written_once(self, *names: str) -> None:
        for name in names:
            size = self.tensors[name].numel()
            times = np.bincount(self.elements("store", name), minlength=size)
            never, most = int((times == 0).sum()), int(times.max())
            assert most <= 1, f"an element of {name} is written {most} times, not once"
            assert not never, f"{never} of {size} elements of {name} are not written"

    def reaches(self, kind: str, name: str, tensor: Tensor, first: int, size: int) -> None:
        """Of a tensor that is larger than memory (`imagined`): elements first to first + size - 1,
        counted from where `tensor` begins, are loaded or stored."""
        found = {
            (int(at) - tensor.data_ptr()) // tensor.element_size()
            for event in self.events
            if event.kind == kind
            for at in event.addresses
        }
        missing = sorted(set(range(first, first + size)) - found)
        did = {"load": "read", "store": "written"}[kind]
        assert not missing, (
            f"element {missing[0] if missing else 0} of {name} is not {did}: "
            "an offset of more than 2**31 elements needs int64"
        )

    def products_keep_float32(self) -> None:
        """Tensor cores round float32 operands to 10 bits (TF32) unless one says otherwise."""
        rounded = sorted(set(self.rounded))
        assert not rounded, f'tl.dot of float32 rounds to {rounded[0]}: input_precision="ieee"'

    def nothing_outside(self) -> None:
        """No load and no store of an address that lies in none of the tensors."""
        for kind, did in (("load", "read"), ("store", "written"), ("atomic", "added to")):
            for event in self.events:
                if event.kind == kind:
                    beyond = int((~_within(event.addresses, self.tensors)).sum())
                    where = f"beyond the ends of {', '.join(self.tensors)}"
                    assert not beyond, (
                        f"{beyond} elements {where} are {did} at once: is a mask missing?"
                    )

    def reads_past_l1(self, *names: str) -> None:
        """What a kernel of the step wrote is loaded with ".cg"; it may be old in the L1 cache."""
        for name in names:
            plain = [e for e in self.events if e.kind == "load" and not e.past_l1]
            missing = self.elements("load", name, plain)
            assert not missing, f'{name} was just written: load it with cache_modifier=".cg"'


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
            mask = np.broadcast_to(np.asarray(args[mask_at].data, bool), addresses.shape)
            past = kind == "load" and (getattr(args[3], "name", "") in PAST_L1 or bool(args[5]))
            watch.programs[-1].events.append(Event(kind, addresses[mask], past))
            if imagined:
                there = copy.copy(args[mask_at])
                there.data = mask & _within(addresses, tensors)
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


@contextmanager
def unchanged(**tensors: Tensor | None) -> Iterator[None]:
    """What is only read: afterwards each tensor must have the bits that it had before."""
    before = {name: t.clone() for name, t in tensors.items() if t is not None}
    yield
    for name, old in before.items():
        now = tensors[name]
        same = now is not None and torch.equal(_bits(now), _bits(old))
        assert same, f"{name} was changed: the kernel only reads it"


def _bits(tensor: Tensor) -> Tensor:
    """The same memory as integers: NaN equals itself."""
    return tensor.contiguous().view(torch.uint8)


def _within(addresses: Addresses, tensors: dict[str, Tensor]) -> npt.NDArray[np.bool_]:
    inside = np.zeros(addresses.shape, bool)
    for tensor in tensors.values():
        at = (addresses - tensor.data_ptr()) // tensor.element_size()
        inside |= (at >= 0) & (at < tensor.numel())
    return inside
