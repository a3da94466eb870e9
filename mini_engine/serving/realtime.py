"""A simulated server on the wall's clock: each step ends when it is predicted to.

In:  requests as they come (`submit`, `cancel`), from one thread. Out: `step` by `step`, the batch,
     when its tokens may be given out.

Its clock goes by predictions alone: what Python and a sleep that is too long add to one step is
caught up in the next..
"""

from __future__ import annotations

import time

from mini_engine.dispatch.dispatcher import BatchDescriptor
from mini_engine.engine.batch import Request, ScheduledBatch
from mini_engine.serving.replay import Replica


class RealTime:
    """Drives a `Replica`, whose request ids are numbers."""

    def __init__(self, replica: Replica) -> None:
        self.replica, self.scheduler, self.cancel = replica, replica.scheduler, replica.cancel
        self._began = time.perf_counter()

    @property
    def now_us(self) -> float:
        return (time.perf_counter() - self._began) * 1e6

    def submit(self, request: Request) -> None:
        """Raises ValueError as `Replica.enter` does."""
        self.replica.enter(request, self.now_us)

    def step(self) -> tuple[ScheduledBatch, BatchDescriptor] | None:
        """None: nobody is there."""
        if not self.scheduler.has_unfinished:
            return None
        done = self.replica.step()
        time.sleep(max(0.0, self.replica.now_us - self.now_us) / 1e6)
        return done
