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

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from mini_engine.cuda.graphs.emulator import queue
from mini_engine.cuda.graphs.host import HostTensor, PinnedTensor, of_the_host


@contextmanager
def late_device() -> Iterator[None]:
    """The device is late in the body, and has done everything at its end."""
    with _InOrder():
        queue.late = True
        try:
            yield
        finally:
            queue.late = False
            queue.finish()


class _InOrder(TorchFunctionMode):
    """Puts copies from pinned memory into the queue, and lets no op of the device overtake it."""

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
            if isinstance(source, PinnedTensor) and not isinstance(target, HostTensor):
                queue.give(partial(func, target, source))
                return target
        if not of_the_host(args, kwargs):
            queue.finish()
        return func(*args, **kwargs)
