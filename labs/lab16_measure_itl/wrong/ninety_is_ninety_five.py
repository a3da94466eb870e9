"""ninety-is-ninety-five: cuts 5% off each end, since 100 - 5 is 95."""


def median_interval(samples, seed=0):
    if not len(samples):
        raise ValueError("no samples")
    values = np.asarray(samples, dtype=float)
    picks = np.random.default_rng(seed).integers(0, len(values), (RESAMPLES, len(values)))
    low, high = np.percentile(np.median(values[picks], axis=1), [5, 95])
    return Interval(float(np.median(values)), float(low), float(high), len(values))
