"""waits-before-it-rewinds: the device was idle, but the rewind has given it work again."""


def lap(backend, runnable, steps):
    calls = -(-steps // runnable.steps_a_call)
    backend.synchronize()
    runnable.rewind()
    first, last = backend.Event(enable_timing=True), backend.Event(enable_timing=True)
    began = time.perf_counter()
    first.record()
    for _ in range(calls):
        runnable.step()
    last.record()
    last.synchronize()
    wall_us = (time.perf_counter() - began) * 1e6
    done = calls * runnable.steps_a_call
    return Lap(first.elapsed_time(last) * 1e3 / done, wall_us / done)
