"""What the emulator's captures forbid to which thread: `capture_error_mode` of `torch.cuda.graph`.

In: calls that a capture might not survive. Out: nothing, or a `CaptureError` in the calling thread
and a dead capture in the other one.

CUDA knows two kinds (CUDA Runtime API, `cudaThreadExchangeStreamCaptureMode`; CUDA C++ Programming
Guide, "Prohibited and Unhandled Operations"):

* **potentially unsafe**: done at once, and no part of the graph. `cudaMalloc` is the example; there
  is no list. The mode of the capture says to whom it is forbidden: "global" to every thread,
  "thread_local" to the capturing one, "relaxed" to none.
* **in conflict**, whatever the mode: waiting for what is captured, or for something that contains
  it, as `cudaDeviceSynchronize` does.

Unsafe here are `cudaMalloc`, waiting for a stream or an event, asking an event, and a copy between
host and device that waits for its stream or may (from or to pageable memory). Of these PyTorch's
and vLLM's issues have allocations, queries and copies (pytorch 104555 and 175425, vllm 48053); the
waits are our reading. A thread's own mode, which CUDA lets it change, is always the default one.
"""

from __future__ import annotations

import threading
from typing import Any

MODES = ("global", "thread_local", "relaxed")


class CaptureError(RuntimeError):
    """Something that a capturing stream does not permit, or a graph that cannot be replayed."""


def not_permitted(what: str) -> CaptureError:
    """CUDA's message (cudaErrorStreamCaptureUnsupported), and which rule was broken."""
    return CaptureError(f"operation not permitted when stream is capturing: {what}")


class Underway:
    """A capture that has begun and not ended (`StreamCapture` of emulator.py)."""

    def __init__(self, mode: str, recorder: Any) -> None:
        if mode not in MODES:
            raise ValueError(
                f"capture_error_mode {mode!r}: expected one of {', '.join(map(repr, MODES))}"
            )
        self.mode, self.recorder, self.thread = mode, recorder, threading.current_thread()

    @property
    def mine(self) -> bool:
        return self.thread is threading.current_thread()

    @property
    def forbids(self) -> bool:
        """May this thread make no unsafe call?"""
        return self.mode == "global" or (self.mode == "thread_local" and self.mine)


underway: list[Underway] = []  # of all threads


def captured_here() -> bool:
    """Does the work of this thread go into a graph now?"""
    return any(capture.recorder.listening() for capture in underway)


def unsafe(call: str) -> None:
    """`call` is potentially unsafe. Raises `CaptureError` where a capture forbids it."""
    _refuse([capture for capture in underway if capture.forbids], call, _ADVICE)


def conflict(call: str) -> None:
    """`call` waits for all captures. Raises `CaptureError` where there is one."""
    _refuse(list(underway), call, "No capture_error_mode permits it: wait for a stream or an event")


def _refuse(captures: list[Underway], call: str, advice: str) -> None:
    """The calling thread gets the error, and every capture in the way dies."""
    if not captures:
        return
    me, other = threading.current_thread(), captures[0]
    reason = f"{call} by thread {me.name!r}"
    for capture in captures:
        capture.recorder.refuse(call if capture.mine else reason)
    if other.mine:
        raise not_permitted(call)
    raise not_permitted(
        f"{reason}, while thread {other.thread.name!r} captures with capture_error_mode="
        f"{other.mode!r}; that capture is dead, too. {advice}"
    )


_ADVICE = "Do it before or after the capture, or capture with capture_error_mode='thread_local'"
