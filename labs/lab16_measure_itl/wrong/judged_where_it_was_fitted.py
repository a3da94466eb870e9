"""judged-where-it-was-fitted: takes residuals of the one line through all points."""


def held_out_percent(counts, times_us):
    if len(counts) < 3:
        return []
    base, slope = line(counts, times_us)
    return [100 * ((base + slope * n) / t - 1) for n, t in zip(counts, times_us)]
