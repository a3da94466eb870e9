"""wider-is-safer: cuts half a percent off each end, to be on the safe side."""


def median_interval(samples, seed=0):
    if not len(samples):
        raise ValueError("no samples")
    values = np.asarray(samples, dtype=float)
    picks = np.random.default_rng(seed).integers(0, len(values), (RESAMPLES, len(values)))
    low, high = np.percentile(np.median(values[picks], axis=1), [0.5, 99.5])
    return Interval(float(np.median(values)), float(low), float(high), len(values))
