"""large-graphs-drown-small-ones: plain least squares, in which the longest times decide."""


def line(counts, times_us):
    slope, base = np.polyfit(counts, times_us, 1)
    return float(base), float(slope)
