"""The recorder of the CPU emulator: ops go on a tape instead of being run.

In: every PyTorch op that runs while the recorder is on. Out: a `Tape`, whose `replay()` is a flat
loop over calls that are ready to make. An op

* that needs an answer from the device (`.item()`, `nonzero`) or host data is a `CaptureError`;
* that is made of other ops (`linear`, `reshape`) is taken apart;
* that only looks at memory (`view`, `transpose`) is done at once: it costs a GPU nothing;
* of any other kind is recorded and **not run**. The `meta` device tells which shapes come out; the
  results are poisoned bytes of the graph's pool, and in-place ops leave their targets as they were.

A custom op (a Triton kernel) is one op like any other, whose body runs at each replay. All tensors
but a `HostTensor` are the device's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from mini_engine.cuda.graphs.arena import GraphPool

aten = torch.ops.aten
HOST_DATA = aten.lift_fresh.default  # what torch.tensor([1.0]), from_numpy and x[[0, 2]] begin with
UNDECLARED_VIEWS = {aten._unsafe_view.default}  # views by nature, not by their schema
_NEW = ("empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")
ALLOCATIONS = {aten.empty.memory_format, *(getattr(aten, name).default for name in _NEW)}
_READS = ("cpu", "numpy", "tolist", "__array__", "__repr__", "__format__")
HOST_READS = {getattr(Tensor, name) for name in _READS}  # a CPU tensor answers without an op
NOT_PINNED = (
    'needs pinned memory on the host (PyTorch: "Cannot copy between CPU and CUDA tensors during '
    'CUDA graph capture unless the CPU tensor is pinned")'
)


class CaptureError(RuntimeError):
    """What a capturing stream does not permit, or a graph that cannot be replayed."""


def not_permitted(what: str) -> CaptureError:
    """CUDA's message (cudaErrorStreamCaptureUnsupported), and which rule was broken."""
    return CaptureError(f"operation not permitted when stream is capturing: {what}")


class HostTensor(Tensor):
    """A tensor of the host's, in pinned or pageable memory (labs/support/loading.py makes them)."""

    pinned: bool


class Tape:
    def __init__(self) -> None:
        self.ops: list[str] = []  # the names of the calls
        self.calls: list[Callable[[], object]] = []

    def replay(self) -> None:
        """Run the calls on whatever their addresses hold by now."""
        with torch.inference_mode():  # no autograd, and fewer stops on the way to a kernel
            for call in self.calls:
                call()


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Takes the ops of this thread while `listening()`; lets them run while not."""

    def __init__(
        self, tape: Tape, pool: GraphPool, listening: Callable[[], bool],
        current_stream: Callable[[], Hashable], mode: str,
    ) -> None:  # fmt: skip
        """mode: the capture's `capture_error_mode`."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.tape, self.pool, self.listening = tape, pool, listening
        self.current_stream, self.mode = current_stream, mode
        self.thread = threading.current_thread()
        self.invalid: str | None = None  # what killed the capture
        self.assigning_number = False  # inside x[...] = 0.0

    def refuse(self, what: str) -> CaptureError:
        """The error to raise. The capture is dead from here, even if someone swallows it."""
        self.invalid = self.invalid or what
        return not_permitted(what)

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        kwargs = kwargs or {}
        if not self.listening():
            return func(*args, **kwargs)
        if self.invalid:
            raise not_permitted(f"{func} in a capture that is dead already: {self.invalid}")
        if reason := self._refusal(func, args, kwargs):
            raise self.refuse(f"{func} {reason}")
        with self:  # in inference mode nobody else takes a composite op apart
            result = func.decompose(*args, **kwargs)
        return self._record(func, args, kwargs) if result is NotImplemented else result

    def _refusal(self, func: OpOverload, args: tuple, kwargs: dict) -> str | None:
        """Why a capturing stream does not permit it, or None."""
        if func is HOST_DATA and not (self.assigning_number and args[0].dim() == 0):
            return "copies host data to the device: put it in a static buffer before the capture"
        if torch.Tag.data_dependent_output in func.tags:
            return "copies a value back to the CPU: keep it in a tensor, or read it after a replay"
        of_the_host = [isinstance(x, HostTensor) for x in args[:2]]
        crosses = func is aten.copy_.default and of_the_host[0] != of_the_host[1]
        if crosses and not (*args[2:], False)[0]:
            return "waits for the copy: say non_blocking=True, and pin the host's memory"
        if self._shape_depends_on_data(func, args, kwargs):
            return "needs a shape that depends on data: use a fixed shape, torch.where or a mask"
        for x in tree_leaves((args, kwargs)):
            if isinstance(x, HostTensor) and not x.pinned:
                return NOT_PINNED
            if isinstance(x, Tensor) and (x.device.type != "cpu" or x.layout != torch.strided):
                return f"got a {x.layout} tensor on {x.device}: expected a strided one on the CPU"
            if isinstance(x, torch.Generator) and x is not torch.default_generator:
                return "draws from a generator of its own: use the default one"
        return None

    def _shape_depends_on_data(self, func: OpOverload, args: tuple, kwargs: dict) -> bool:
        if func is aten.index.Tensor:
            return _has_mask(args[1])
        if func is aten.index_put_.default:  # x[mask] = number is a masked fill, x[mask] = y is not
            return _has_mask(args[1]) and not self.assigning_number
        if func is aten.repeat_interleave.Tensor and kwargs.get("output_size") is not None:
            return False
        return torch.Tag.dynamic_output_shape in func.tags

    def _record(self, func: OpOverload, args: tuple, kwargs: dict) -> Any:
        if _only_looks(func):
            return func(*args, **kwargs)
        try:
            shapes = _shapes(func, args, kwargs)
        except NotImplementedError as error:
            raise self.refuse(f"{func} has no meta kernel, which tells its shapes") from error
        fresh = tree_map_only(Tensor, self._empty, shapes)
        if func not in ALLOCATIONS:
            remembered = tree_map_only(Tensor, self.pool.alias, (args, kwargs, fresh))
            self.tape.ops.append(str(func))
            self.tape.calls.append(_call(func, *remembered))
        given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
        names = zip(fresh, _returned_arguments(func), strict=True)
        returned = [x if name is None else given[name] for x, name in names]
        return returned[0] if len(returned) == 1 else tuple(returned) or None

    def _empty(self, shape: Tensor) -> Tensor:
        return self.pool.empty(shape.size(), shape.stride(), shape.dtype, self.current_stream())


class HostReadGuard(TorchFunctionMode):
    """Refuses the reads that reach no op on a CPU: `tolist`, `numpy`, `cpu`, `print`."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        of_the_host = any(issubclass(kind, HostTensor) for kind in types)
        if func in HOST_READS and self.recorder.listening() and not of_the_host:
            name = getattr(func, "__name__", str(func))
            raise self.recorder.refuse(f"Tensor.{name} reads the device: read after a replay")
        before = self.recorder.assigning_number
        number = func is Tensor.__setitem__ and not isinstance(args[2], Tensor)
        self.recorder.assigning_number = number
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.recorder.assigning_number = before


# -- what a capture forbids to threads ------------------------------------------------------------

MODES = ("global", "thread_local", "relaxed")
underway: list[Recorder] = []  # of captures that have begun and not ended, in all threads


def unsafe(call: str) -> None:
    """`call` is potentially unsafe (`cudaThreadExchangeStreamCaptureMode`, CUDA Runtime API): done
    at once, and no part of a graph. Raises `CaptureError` where a capture forbids it: "global" to
    every thread, "thread_local" to the one that captures. CUDA has no list of such calls:
    allocations, queries and copies are from issues (pytorch 104555 and 175425, vllm 48053), waiting
    for a stream or an event is our reading."""
    me = threading.current_thread()
    in_the_way = [one for one in underway if one.mode == "global"
                  or (one.mode == "thread_local" and one.thread is me)]  # fmt: skip
    advice = "Do it before or after the capture, or capture with capture_error_mode='thread_local'"
    _refuse(call, in_the_way, advice)


def conflict(call: str) -> None:
    """`call` waits for all captures, as `cudaDeviceSynchronize` does: `CaptureError` if there is
    one."""
    _refuse(call, underway, "No capture_error_mode permits it: wait for a stream or an event")


def _refuse(call: str, captures: Sequence[Recorder], advice: str) -> None:
    """The calling thread gets the error, and every capture in the way dies."""
    if not captures:
        return
    me, other = threading.current_thread(), captures[0]
    reason = f"{call} by thread {me.name!r}"
    for capture in captures:
        capture.refuse(call if capture.thread is me else reason)
    beside = (
        f", while thread {other.thread.name!r} captures with capture_error_mode={other.mode!r}; "
        f"that capture is dead, too. {advice}"
    )
    raise not_permitted(call if other.thread is me else reason + beside)


# -- what a schema tells about an op ------------------------------------------------------------


def _has_mask(indices: Sequence[Tensor | None]) -> bool:
    return any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in indices)


@cache
def _only_looks(func: OpOverload) -> bool:
    """Does it touch metadata only: views, in-place views, questions about shapes?"""
    schema = func._schema
    if func in UNDECLARED_VIEWS or torch.Tag.inplace_view in func.tags:
        return True
    if func.namespace == "profiler":  # a range with a name, as in an optimizer's step
        return True
    if schema.is_mutable or not schema.returns:
        return False
    if func.namespace == "aten" and not any("Tensor" in str(r.type) for r in schema.returns):
        return True
    return all(r.alias_info is not None for r in schema.returns)


@cache
def _returned_arguments(func: OpOverload) -> list[str | None]:
    """For each return the argument that it is (`add_` returns "self"); None if it is new."""
    written = {
        str(a.alias_info.before_set): a.name
        for a in func._schema.arguments
        if a.alias_info is not None and a.alias_info.is_write
    }
    returns = func._schema.returns
    return [written.get(str(r.alias_info.before_set)) if r.alias_info else None for r in returns]


def _shapes(func: OpOverload, args: tuple, kwargs: dict) -> list[Any]:
    """A `meta` tensor (or list, or number) for each new return, None for a returned argument.
    Raises what the op raises on arguments that do not fit together."""

    def shape_of(x: Tensor) -> Tensor:
        return torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device="meta")

    meta_args, meta_kwargs = tree_map_only(Tensor, shape_of, (args, kwargs))
    given, left = tree_leaves((args, kwargs)), tree_leaves((meta_args, meta_kwargs))
    names = {argument.name for argument in func._schema.arguments}
    for name in names & {"generator", "pin_memory"}:
        meta_kwargs.pop(name, None)
    if "device" in names:
        meta_kwargs["device"] = "meta"
    returned = func(*meta_args, **meta_kwargs)
    for old, new in zip(given, left, strict=True):
        if isinstance(old, Tensor) and old.size() != new.size():
            raise not_permitted(f"{func} would resize its output: give out= {list(new.size())}")
    arguments = _returned_arguments(func)
    returned = [returned] if len(arguments) == 1 else returned or ()
    return [x if name is None else None for x, name in zip(returned, arguments, strict=True)]


# -- how it is called at replay ----------------------------------------------------------------


def _call(func: OpOverload, args: tuple, kwargs: dict, fresh: list[Any]) -> Callable[[], object]:
    """A call without arguments that does what `func` does and puts new results into `fresh`."""
    outs = tree_leaves(fresh)  # and `_op` is the op, one Python call less than the `OpOverload`
    if all(out is None for out in outs):
        return partial(func._op, *args, **kwargs)

    def run_and_copy() -> None:
        returned = func._op(*args, **kwargs)
        news = (returned,) if isinstance(returned, Tensor) else tree_leaves(returned)
        for out, new in zip(outs, news, strict=True):
            if isinstance(out, Tensor):
                out.copy_(new, non_blocking=True)  # on a stream: the host waits for nothing

    return run_and_copy
