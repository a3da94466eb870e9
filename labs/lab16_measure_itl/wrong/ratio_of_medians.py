"""ratio-of-medians: pools each side for itself and divides."""


def pooled_ratio(ones, others):
    if [len(one) for one in ones] != [len(other) for other in others]:
        raise ValueError("laps: pairs need equally many")
    below, above = pooled_interval(ones), pooled_interval(others)
    return Interval(
        above.median / below.median,
        above.low / below.high,
        above.high / below.low,
        below.samples,
        below.processes,
    )
