"""A third right way: a while loop, sorted places of draws, base 2, a solver over all points at once."""


def lap(backend, runnable, steps):
    first = backend.Event(enable_timing=True)
    last = backend.Event(enable_timing=True)
    runnable.rewind()
    backend.synchronize()
    began, done = time.perf_counter(), 0
    first.record()
    while done < steps:
        runnable.step()
        done += runnable.steps_a_call
    last.record()
    last.synchronize()
    backend.synchronize()
    ended = time.perf_counter()
    return Lap(first.elapsed_time(last) / done * 1e3, (ended - began) / done * 1e6)


def balanced_order(one, other, rounds):
    if rounds % 2 != 0 or not rounds > 0:
        raise ValueError(rounds)
    order = []
    for _ in range(rounds):
        pair = [other, one] if order and order[-1] == other else [one, other]
        order.extend(pair)
    return order


def median_interval(samples, seed=0):
    values = sorted(samples)
    if not values:
        raise ValueError("an empty list")
    generator = np.random.Generator(np.random.PCG64([seed, 7]))
    places = np.sort(generator.integers(len(values), size=(len(values), RESAMPLES)), axis=0)
    lower, upper = places[(len(values) - 1) // 2], places[len(values) // 2]
    drawn = np.array(values)
    medians = np.sort((drawn[lower] + drawn[upper]) / 2)
    low, high = np.quantile(medians, (0.025, 0.975), method="nearest")
    half = len(values) // 2
    middle = values[half] if len(values) % 2 else (values[half - 1] + values[half]) / 2
    return Interval(middle, float(low), float(high), len(values))


def pooled_interval(groups):
    if len(groups) < 1:
        raise ValueError("no process")
    if len(groups) > MAX_PROCESSES:
        raise ValueError("Student's table ends before")
    if len(groups) == 1:
        return median_interval(groups[0])
    medians = [median_interval(group).median for group in groups]
    n = len(medians)
    mean = sum(medians) / n
    variance = sum((median - mean) ** 2 for median in medians) / (n - 1)
    half = STUDENT_T[n - 2] * math.sqrt(variance / n)
    return Interval(mean, mean - half, mean + half, sum(len(group) for group in groups), n)


def pooled_ratio(ones, others):
    if [*map(len, ones)] != [*map(len, others)]:
        raise ValueError("pairs")
    logs = [
        tuple(math.log2(other[i]) - math.log2(one[i]) for i in range(len(one)))
        for one, other in zip(ones, others, strict=True)
    ]
    found = pooled_interval(logs)
    return Interval(2**found.median, 2**found.low, 2**found.high, found.samples, found.processes)


def line(counts, times_us):
    divisors = np.clip(np.array(times_us, dtype=float), LEAST_US, None)
    rows = np.column_stack([np.ones(len(divisors)), counts]) / divisors[:, None]
    base, slope = np.linalg.lstsq(rows, np.array(times_us) / divisors, rcond=None)[0]
    return float(base), float(slope)


def held_out_percent(counts, times_us):
    if len(times_us) <= 2:
        return []
    keep = ~np.eye(len(counts), dtype=bool)
    n, us = np.array(counts), np.array(times_us, dtype=float)
    lines = [line(n[others], us[others]) for others in keep]
    predicted = np.array([base + slope * n[i] for i, (base, slope) in enumerate(lines)])
    return list(100 * predicted / np.maximum(us, LEAST_US) - 100)
