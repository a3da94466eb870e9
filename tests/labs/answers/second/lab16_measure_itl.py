"""Another right way: integers of nanoseconds, places by parity, sorted draws, sums by hand."""


def lap(backend, runnable, steps):
    each = runnable.steps_a_call
    calls, left = divmod(steps, each)
    calls += left > 0
    events = [backend.Event(enable_timing=True) for _ in range(2)]
    runnable.rewind()
    backend.synchronize()
    before_ns = time.perf_counter_ns()
    events[0].record()
    for _ in [None] * calls:
        runnable.step()
    events[1].record()
    events[1].synchronize()
    after_ns = time.perf_counter_ns()
    device_us = 1000 * events[0].elapsed_time(events[1])
    return Lap(
        event_us=device_us / calls / each, wall_us=(after_ns - before_ns) / 1e3 / calls / each
    )


def balanced_order(one, other, rounds):
    if rounds <= 0 or rounds & 1:
        raise ValueError("an even number of rounds, please")
    return [one, other, other, one] * (rounds // 2)


def median_interval(samples, seed=0):
    count = len(samples)
    if count == 0:
        raise ValueError("nothing to take the median of")
    dice = np.random.default_rng(seed + 1)
    medians = sorted(
        float(np.median(dice.choice(samples, size=count, replace=True))) for _ in range(RESAMPLES)
    )
    cut = RESAMPLES // 40
    return Interval(statistics.median(samples), medians[cut - 1], medians[-cut], count)


def pooled_interval(groups):
    laps = [len(group) for group in groups]
    if not laps or 0 in laps or len(laps) > MAX_PROCESSES:
        raise ValueError(f"cannot pool {laps}")
    if len(laps) == 1:
        return median_interval(groups[0])
    middle = np.array([np.median(group) for group in groups])
    half = float(middle.std(ddof=1)) / len(laps) ** 0.5 * STUDENT_T[len(laps) - 2]
    mean = float(middle.mean())
    return Interval(mean, mean - half, mean + half, sum(laps))


def pooled_ratio(ones, others):
    if len(ones) != len(others):
        raise ValueError("as many processes on both sides")
    logs = []
    for one, other in zip(ones, others, strict=True):
        if len(one) != len(other):
            raise ValueError("a lap has no partner")
        logs.append(list(np.log(other) - np.log(one)))
    pooled = pooled_interval(logs)
    low, median, high = (math.e**x for x in (pooled.low, pooled.median, pooled.high))
    return Interval(median, low, high, pooled.samples)


def line(counts, times_us):
    weights = [max(us, LEAST_US) ** -2 for us in times_us]
    total = sum(weights)
    x = sum(w * n for w, n in zip(weights, counts, strict=True)) / total
    y = sum(w * us for w, us in zip(weights, times_us, strict=True)) / total
    points = list(zip(weights, counts, times_us, strict=True))
    slope = sum(w * (n - x) * (us - y) for w, n, us in points) / sum(
        w * (n - x) ** 2 for w, n, us in points
    )
    return y - slope * x, slope


def held_out_percent(counts, times_us):
    points = list(zip(counts, times_us, strict=True))

    def missed(at):
        others = points[:at] + points[at + 1 :]
        base, slope = line(*zip(*others, strict=True))
        count, us = points[at]
        return (base + slope * count - max(us, LEAST_US)) / max(us, LEAST_US) * 100

    return [missed(at) for at in range(len(points))] if len(points) > 2 else []
