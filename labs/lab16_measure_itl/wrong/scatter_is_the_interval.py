"""scatter-is-the-interval: gives the range that 95% of the samples lie in."""


def median_interval(samples, seed=0):
    if not len(samples):
        raise ValueError("no samples")
    values = np.asarray(samples, dtype=float)
    low, high = np.percentile(values, [2.5, 97.5])
    return Interval(float(np.median(values)), float(low), float(high), len(values))
