"""no-time-divides: divides by each time as the clock told it."""


def line(counts, times_us):
    slope, base = np.polyfit(counts, times_us, 1, w=1 / np.asarray(times_us, dtype=float))
    return float(base), float(slope)


def held_out_percent(counts, times_us):
    if len(counts) < 3:
        return []
    percents = []
    for held in range(len(counts)):
        base, slope = line(_without(counts, held), _without(times_us, held))
        percents.append(100 * ((base + slope * counts[held]) / times_us[held] - 1))
    return percents
