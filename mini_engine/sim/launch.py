"""What a launch is made of: buffers, kernels, and the node that binds the two.

    @kernel(flops=lambda out, a, b: out.size)
    def add(out, a, b):
        np.add(a, b, out=out)

A kernel is a numpy function that writes its out-parameters, plus its cost: `bytes` and `flops` are
called with the buffers and the same scalars. Where the cost depends on the *contents* of a buffer
(attention reads as much KV as the context is long), it reads `buffer.array`: metadata that the host
wrote, which a device that only counts costs has, too."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mini_engine.sim.memory import Block, Memory
from mini_engine.step.ops import Kind

Scalar = int | float | bool | None


class UseAfterFree(RuntimeError):
    """A buffer that was freed was given to a launch, a copy or a read."""


class Buffer:
    """A typed range of device memory. It is a handle, not the memory: a graph that has captured the
    address goes on using it whatever becomes of the handle."""

    def __init__(
        self, memory: Memory, block: Block, address: int, shape: tuple[int, ...], dtype: np.dtype
    ) -> None:
        self.memory, self.block, self.serial = memory, block, block.serial
        self.address, self.shape, self.dtype = address, shape, dtype
        self.size = math.prod(shape)
        self.nbytes = self.size * dtype.itemsize
        self._array: np.ndarray | None = None
        self._epoch = -1

    @property
    def array(self) -> np.ndarray:
        """What stands at the address now, for kernels and costs only: the host reads with
        `Device.read`, which waits for the GPU."""
        if self._array is None or self._epoch != self.memory.epoch:
            self._array = self.memory.view(self.address, self.shape, self.dtype)
            self._epoch = self.memory.epoch
        return self._array

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> Buffer:
        """`buffer[a:b]`: rows a to b of the first dimension, at their own address."""
        if not isinstance(rows, slice) or rows.step not in (None, 1):
            raise TypeError(f"buffer[{rows!r}]: only a slice of rows, buffer[a:b], has an address")
        start, stop, _ = rows.indices(self.shape[0])
        if rows.stop is not None and rows.stop > self.shape[0]:
            raise ValueError(f"buffer[:{rows.stop}] of a buffer with {self.shape[0]} rows")
        address = self.address + start * (self.nbytes // max(self.shape[0], 1))
        return self._at(address, (max(stop - start, 0), *self.shape[1:]))

    def check_alive(self, use: str) -> None:
        if not self.block.owned_by(self.serial):
            raise UseAfterFree(
                f"{use}: the buffer at {self.address:#x} {self.shape} was freed. "
                "Keep it until its last use, or allocate a new one"
            )

    def _at(self, address: int, shape: tuple[int, ...]) -> Buffer:
        buffer = Buffer(self.memory, self.block, address, shape, self.dtype)
        buffer.serial = self.serial
        return buffer


def _each_buffer_once(*buffers: Buffer, **_: Scalar) -> int:
    return sum(buffer.nbytes for buffer in buffers)


Cost = Callable[..., int | float]


@dataclass(frozen=True)
class Kernel:
    name: str
    function: Callable[..., None]
    bytes: Cost  # bytes moved through device memory
    flops: Cost
    kind: Kind = "other"  # which bandwidth it reaches
    indices: tuple[int, ...] = ()  # which of its buffers hold indices into others


def kernel(
    *, bytes: Cost = _each_buffer_once, flops: Cost = lambda *_, **__: 0, kind: Kind = "other",
    indices: tuple[int, ...] = (),
) -> Callable[[Callable[..., None]], Kernel]:  # fmt: skip
    """Make a kernel of a numpy function. Default cost: each buffer moved once, no arithmetic."""
    return lambda function: Kernel(function.__name__, function, bytes, flops, kind, indices)


@dataclass(frozen=True, eq=False)
class Node:
    """One launch: a kernel, the addresses it was given and the scalars that were baked in."""

    kernel: Kernel
    buffers: tuple[Buffer, ...]
    scalars: Mapping[str, Scalar]
    label: str

    def run(self) -> None:
        """Do the arithmetic, on whatever stands at the addresses now. Raises IndexError for a
        negative index, which numpy would count from the end and a GPU takes before the start."""
        arrays = [b.array for b in self.buffers]
        for place in self.kernel.indices:
            if (least := arrays[place].min(initial=0)) < 0:
                raise IndexError(f"index {least} is before the start of what it points into")
        self.kernel.function(*arrays, **self.scalars)

    @property
    def bytes(self) -> float:
        return self.kernel.bytes(*self.buffers, **self.scalars)

    @property
    def flops(self) -> float:
        return self.kernel.flops(*self.buffers, **self.scalars)


def cost_kernel(name: str, bytes: float, flops: float, kind: Kind = "other") -> Kernel:
    """A kernel that costs and computes nothing: for op lists that exist only as figures."""
    nothing = lambda *_, **__: None  # noqa: E731
    return Kernel(name, nothing, lambda *_, **__: bytes, lambda *_, **__: flops, kind=kind)


@kernel()
def copy(target: np.ndarray, source: np.ndarray) -> None:
    target[...] = source


def check_copy(target: Buffer, shape: Sequence[int]) -> None:
    if tuple(shape) != target.shape:
        raise ValueError(f"copy_ into {target.shape} from {tuple(shape)}: the shapes must be equal")
