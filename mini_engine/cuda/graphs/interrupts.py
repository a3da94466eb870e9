"""Ctrl-C that waits: a capture that has begun must also end.

In: a body that says where it may be interrupted. Out: Ctrl-C takes effect there and nowhere else.

    with interrupts_wait() as check:
        for rung in rungs:
            check()                  # KeyboardInterrupt comes here, or at the end of the body
            capture(rung)

Python may raise KeyboardInterrupt between any two lines. If that happens just after a capture has
begun, or while it ends, nobody can tell what is left: a stream that goes on capturing, half a
graph, a garbage collector that stays off.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts_wait() -> Iterator[Callable[[], None]]:
    """Hold Ctrl-C back. Call what it yields wherever an interrupt does no harm.

    A second Ctrl-C takes effect at once. Where Ctrl-C would not raise KeyboardInterrupt (in
    another thread, or when the program handles SIGINT itself) nothing changes.
    """
    pressed = False

    def note(_number: int, _frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    def check() -> None:
        if pressed:
            raise KeyboardInterrupt

    main = threading.current_thread() is threading.main_thread()
    usual = main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if usual:
        signal.signal(signal.SIGINT, note)
    try:
        yield check
    finally:
        if usual:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    check()
