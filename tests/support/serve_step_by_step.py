"""The same simulation as `simulate.simulate`, one step at a time, with the engine's own Scheduler.

It is slow and plain: the tests and the bench check the strides against it.
"""

from functools import partial

from mini_engine.serving.by_scheduler import simulate_by_scheduler

simulate_step_by_step = partial(simulate_by_scheduler, longest_stride=1)
