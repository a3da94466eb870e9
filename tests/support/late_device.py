"""A device that is late: what it was given waits until somebody waits for it.

In: replays and copies. Out: the same results, later. Everywhere else in the emulator work is done
when the call returns, which hides one kind of fault: a host that writes where the device has yet to
read.

    with late_device():
        pinned.fill_(1)
        graph.replay()          # copies from `pinned`, some time
        pinned.fill_(2)         # too early: the replay may read this

Inside, a replay and a `copy_` from pinned memory with `non_blocking=True` are put into a queue. It
is worked off, in order, by what waits on a GPU (`synchronize`, an event) and by every other op on
a device tensor, which a stream would run after them. Ops on host tensors alone do not wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from labs.support.loading import PinnedTensor, of_the_host
from mini_engine.cuda.graphs import emulator
from mini_engine.cuda.graphs.tape import HostTensor


class LateQueue(emulator.Queue):
    """Work that is done when it is waited for. `given` counts all of it, done or not."""

    def __init__(self) -> None:
        self.given = 0
        self.waiting: deque[Callable[[], object]] = deque()

    def give(self, work: Callable[[], object]) -> None:
        self.given += 1
        self.waiting.append(work)

    def mark(self) -> int:
        return self.given

    def done(self, mark: int) -> bool:
        return self.given - len(self.waiting) >= mark

    def finish(self, mark: int | None = None) -> None:
        with torch._C.DisableTorchFunction():  # what is done here puts nothing into the queue
            while self.waiting and (mark is None or not self.done(mark)):
                self.waiting.popleft()()


@contextmanager
def late_device() -> Iterator[LateQueue]:
    """The device is late in the body, and has done everything at its end."""
    queue = LateQueue()
    with _InOrder(queue), mock.patch.object(emulator, "queue", queue):
        try:
            yield queue
        finally:
            queue.finish()


class _InOrder(TorchFunctionMode):
    """Puts copies from pinned memory into the queue, and lets no op of the device overtake it."""

    def __init__(self, queue: LateQueue) -> None:
        super().__init__()
        self.queue = queue

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.copy_ and kwargs.get("non_blocking"):
            target, source = args
            pinned = isinstance(source, PinnedTensor) and source.pinned
            if pinned and not isinstance(target, HostTensor):
                self.queue.give(partial(func, target, source))
                return target
        if not of_the_host(args, kwargs):
            self.queue.finish()
        return func(*args, **kwargs)
