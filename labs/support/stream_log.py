"""What the emulated device was given: its work, stream by stream, and who waited for whom.

In:  code that gives work to streams. Out: a `Log` of its ops and copies, and of what it left
     unordered.

    with logged() as log:
        x.fill_(3)                        # queued on the current stream
        with emulator.stream(side):
            y = x * 2                     # and this on another: which is first?
    log.races()                           # stream 1: mul reads what stream 0: fill_ writes
    log.waited_for(side)                  # False: the host doesn't know whether y is there

The emulator does each work at once, so a missing wait gives right numbers there and wrong ones on a
GPU. The log decides by order alone: work on one stream runs in order; on two streams only where one
of them, or the host, has waited (`wait_stream`, events, `synchronize`). This is happens-before with
a clock for each stream (Lamport 1978; Mattern 1988).

What it counts as touched is the run of bytes from a tensor's first element to its last, so two
interleaved views of one tensor count as overlapping. It knows ops that ran: those of a replay, but
not those that a capture took. On a late device (tests/support) work runs later than it was
given: no log can be kept there.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mini_engine.cuda.graphs.emulator import current_stream, observers
from mini_engine.cuda.graphs.tape import ALLOCATIONS

Known = dict[Hashable, int]  # stream -> how many of its works are done by then, for certain


@dataclass(frozen=True)
class Span:
    """Bytes from `start` up to `end`."""

    start: int
    end: int

    def meets(self, other: Span) -> bool:
        return self.start < other.end and other.start < self.end


@dataclass(frozen=True)
class Work:
    """One op that a stream was given. `after`: what had to be done before it."""

    op: str
    stream: Hashable
    number: int  # in its stream, from 1
    after: Known
    reads: tuple[Span, ...]
    writes: tuple[Span, ...]
    host_waits: bool  # a copy without non_blocking=True

    def reads_from(self, tensor: Tensor) -> bool:
        return any(span.meets(span_of(tensor)) for span in self.reads)

    def writes_to(self, tensor: Tensor) -> bool:
        return any(span.meets(span_of(tensor)) for span in self.writes)


class Log:
    """Works in the order in which they were given, and who knows what of whom."""

    def __init__(self) -> None:
        self.works: list[Work] = []
        self._given: Known = {}
        self._streams: dict[Hashable, Known] = {}  # what is done before the next work of each
        self._host: Known = {}
        self._alive: list[Any] = []  # storages: their addresses are not given to anybody else

    # -- what happens ------------------------------------------------------------------------------

    def gave(self, op: str, reads: Sequence[Tensor], writes: Sequence[Tensor], waits: bool) -> None:
        """An op on the current stream."""
        stream = current_stream()
        known = self._before_next(stream)
        self._given[stream] = number = self._given.get(stream, 0) + 1
        read, written = (tuple(map(span_of, tensors)) for tensors in (reads, writes))
        self.works.append(Work(op, stream, number, dict(known), read, written, waits))
        known[stream] = number
        self._alive += [tensor.untyped_storage() for tensor in (*reads, *writes)]

    def marked(self, stream: Hashable) -> Known:
        """What is done when all that `stream` got so far is: an event remembers it."""
        return dict(self._before_next(stream))

    def stream_waited(self, later: Hashable, known: Known) -> None:
        _merge(self._before_next(later), known)

    def host_waited(self, known: Known | None = None) -> None:
        """For what is in `known`, or for everything."""
        _merge(self._host, self._given if known is None else known)

    # -- what can be asked -------------------------------------------------------------------------

    def waited_for(self, stream: Hashable) -> bool:
        """Has the host waited for all work of this stream?"""
        return self._host.get(stream, 0) >= self._given.get(stream, 0)

    def races(self) -> list[str]:
        """Pairs of works on the same bytes, one of them writing, that nothing orders."""
        return [
            f"stream {self.number(later.stream)}: {later.op} {how} "
            f"stream {self.number(earlier.stream)}: {earlier.op} {did}"
            for at, later in enumerate(self.works)
            for earlier in self.works[:at]
            if later.after.get(earlier.stream, 0) < earlier.number
            for how, did in _conflict(earlier, later)
        ]

    def writes_to(self, tensor: Tensor) -> list[Work]:
        return [work for work in self.works if work.writes_to(tensor)]

    def number(self, stream: Hashable) -> int:
        """Streams counted in the order in which they got their first work, from 0."""
        return list(self._given).index(stream)

    # -- parts -------------------------------------------------------------------------------------

    def _before_next(self, stream: Hashable) -> Known:
        known = self._streams.setdefault(stream, {})
        _merge(known, self._host)
        return known


@contextmanager
def logged() -> Iterator[Log]:
    """Keep a log of what any stream is given in the body, by this thread, and of every wait.

    What was given before counts as done. Memory that the body touches is kept until the log goes.
    """
    log = Log()
    observers.append(log)
    try:
        with _Listener(log):
            yield log
    finally:
        observers.remove(log)


def span_of(tensor: Tensor) -> Span:
    """From a tensor's first byte to its last."""
    steps = zip(tensor.size(), tensor.stride(), strict=True)
    length = 1 + sum((size - 1) * step for size, step in steps) if tensor.numel() else 0
    return Span(tensor.data_ptr(), tensor.data_ptr() + length * tensor.element_size())


def _conflict(earlier: Work, later: Work) -> Iterator[tuple[str, str]]:
    """In which ways two works touch the same bytes: at most one is told."""
    pairs = [
        (later.reads, earlier.writes, ("reads what", "writes")),
        (later.writes, earlier.writes, ("writes over what", "writes")),
        (later.writes, earlier.reads, ("writes over what", "reads")),
    ]
    yield from [
        words
        for ours, theirs, words in pairs
        if any(mine.meets(other) for mine in ours for other in theirs)
    ][:1]


def _merge(known: Known, other: Known) -> None:
    for stream, number in other.items():
        known[stream] = max(known.get(stream, 0), number)


def _written(func: OpOverload, args: tuple, kwargs: dict) -> list[Tensor]:
    """The tensors given to an op that it writes into."""
    arguments = func._schema.arguments
    named = dict(zip((a.name for a in arguments), args, strict=False)) | kwargs
    targets = [a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write]
    values = [named[name] for name in targets if name in named]
    return [x for x in tree_leaves(values) if isinstance(x, Tensor)]


class _Listener(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tells a log of every op that reads or writes memory of the device."""

    def __init__(self, log: Log) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._log = log

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        made = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
        if any(x.device.type == "meta" for x in (*given, *made)):  # shapes for a capture
            return result
        written = _written(func, args, kwargs)
        old = {x.untyped_storage().data_ptr() for x in given}
        fresh = [x for x in made if x.untyped_storage().data_ptr() not in old]
        reads = [x for x in given if not any(x is target for target in written)]
        writes = [*written, *fresh]
        if writes and func not in ALLOCATIONS and func.overloadpacket is not torch.ops.aten.set_:
            waits = func is torch.ops.aten.copy_.default and not (*args[2:], False)[0]
            self._log.gave(func._schema.name.partition("::")[2], reads, writes, waits)
        return result
