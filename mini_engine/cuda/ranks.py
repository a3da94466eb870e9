"""Tensor parallel: processes that compute each step together, each with its part of every matrix.

    torchrun --nproc-per-node 2 -m mini_engine generate --backend cuda --mode FULL

Every rank runs the same engine on the same requests, and schedules alike: a sum of all ranks has
the same bits on each. Sums of NCCL are kernels, and a graph holds them. Those of gloo, on CPUs, are
calls of the host: a capture ends its graph there.

What goes wrong before the first step is said once, by the first rank; a rank that is gone is missed
by the others at their next sum, or after `PATIENCE`.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from mini_engine.cuda.graphs.backend import why_no_gpu
from mini_engine.cuda.graphs.capture import Pieces

PATIENCE = timedelta(seconds=60)
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Ranks:
    """This process among `count`."""

    rank: int
    count: int
    in_graphs: bool  # are sums kernels
    talk: Any  # the group in which ranks tell each other objects

    def sum(self, x: Tensor) -> Tensor:
        """x, in place, summed over all ranks."""
        return self._live(x, lambda: dist.all_reduce(x))

    def gathered(self, x: Tensor) -> Tensor:
        """(rows, n) of each rank as (rows, count * n), in the order of ranks."""
        every = x.new_empty((self.count, *x.shape))
        self._live(every, lambda: dist.all_gather(list(every.unbind()), x))
        return every.transpose(0, 1).reshape(len(x), -1)

    def part(self, whole: Tensor, shape: torch.Size) -> Tensor:
        """This rank's part, of this shape. Ranks that share a KV head have the same part of it."""
        for dim, (all_of_it, mine) in enumerate(zip(whole.shape, shape, strict=True)):
            start = self.rank * all_of_it // self.count // mine * mine
            whole = whole.narrow(dim, start if mine < all_of_it else 0, mine)
        return whole

    def told(self, mine: T) -> list[T]:
        """What each rank tells. Raises ConnectionError where one is gone."""
        every: list[Any] = [None] * self.count
        self._call(lambda: dist.all_gather_object(every, mine, group=self.talk))
        return every

    def together(self, prepare: Callable[[], T]) -> T:
        """What `prepare` returns, if it does so on every rank. Otherwise the first rank raises
        ValueError for all, and the others end without a word."""
        done, failed = None, None
        try:
            done = prepare()
        except (ValueError, OSError, RuntimeError, MemoryError) as error:
            failed = str(error) or type(error).__name__
        failures = [(rank, one) for rank, one in enumerate(self.told(failed)) if one]
        if not failures:
            return done  # type: ignore[return-value]
        if self.rank:
            raise SystemExit(2)
        (rank, words), alike = failures[0], len(failures) == self.count
        raise ValueError(words if alike else f"rank {rank} of {self.count}: {words}")

    def check_alike(self, mine: Mapping[str, object]) -> None:
        """Raises ValueError for what another rank has or was asked otherwise, by its name."""
        for rank, theirs in enumerate(self.told({name: repr(x) for name, x in mine.items()})):
            for name, said in theirs.items():
                if said != repr(mine[name]):
                    raise ValueError(f"rank {rank}: {name} {said:.60}, unlike on rank {self.rank}")

    def _live(self, x: Tensor, call: Callable[[], object]) -> Tensor:
        if Pieces.recording is None or self.in_graphs:
            self._call(call)
        else:
            Pieces.recording.live(lambda: self._call(call))
        return x

    def _call(self, call: Callable[[], object]) -> None:
        try:
            call()
        except RuntimeError as error:
            atexit.unregister(dist.destroy_process_group)  # which would wait for the others
            said = str(error).strip().splitlines()
            raise ConnectionError(
                f"rank {self.rank} of {self.count} lost another rank ({said[-1] if said else ''})"
            ) from None


@cache
def joined() -> Ranks | None:
    """This process among those that torchrun started; None for a process by itself. Raises
    ValueError for more ranks than GPUs, ConnectionError where the others do not come."""
    count, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    if count == 1:
        return None
    on_gpus = why_no_gpu() is None
    if on_gpus:
        local, gpus = int(os.environ.get("LOCAL_RANK", rank)), torch.cuda.device_count()
        if local >= gpus:
            raise ValueError(f"rank {rank} has no GPU of its own: {gpus} are here, {count} ranks")
        torch.cuda.set_device(local)
    try:
        dist.init_process_group("nccl" if on_gpus else "gloo", timeout=PATIENCE)
        talk = dist.new_group(backend="gloo", timeout=PATIENCE)
    except RuntimeError as error:
        raise ConnectionError(f"rank {rank} of {count} finds no others: {error!s:.120}") from None
    atexit.register(dist.destroy_process_group)
    if rank:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 (until the end)
    return Ranks(rank, count, on_gpus, talk)
