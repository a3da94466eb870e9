"""a-call-is-a-step: divides by the steps asked for, whatever a call holds."""


def lap(backend, runnable, steps):
    runnable.rewind()
    backend.synchronize()
    first, last = backend.Event(enable_timing=True), backend.Event(enable_timing=True)
    began = time.perf_counter()
    first.record()
    for _ in range(steps):
        runnable.step()
    last.record()
    last.synchronize()
    wall_us = (time.perf_counter() - began) * 1e6
    return Lap(first.elapsed_time(last) * 1e3 / steps, wall_us / steps)
