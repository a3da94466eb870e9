"""the-clock-starts-at-the-event: starts the wall clock when the first event is recorded."""


def lap(backend, runnable, steps):
    calls = -(-steps // runnable.steps_a_call)
    runnable.rewind()
    backend.synchronize()
    first, last = backend.Event(enable_timing=True), backend.Event(enable_timing=True)
    first.record()
    began = time.perf_counter()
    for _ in range(calls):
        runnable.step()
    last.record()
    last.synchronize()
    wall_us = (time.perf_counter() - began) * 1e6
    done = calls * runnable.steps_a_call
    return Lap(first.elapsed_time(last) * 1e3 / done, wall_us / done)
